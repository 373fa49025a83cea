"""Handle members of Gymnasium's spaces, single and in batches, and write spaces as text for messages and as JSON.

A checkpoint may come from a stranger: its description of spaces is checked before anything is built from it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium.spaces as gs
import numpy as np

from ...types import Bound, Settings
from ..step_arrays import MAX_SPACE_SIZE, Array

Space = gs.Space[Any]
Observation = Any  # a number, an array, or a dict or tuple of these: a member of a space, or a batch of them
MAX_BOUNDS = 1 << 12  # different bounds of one space
MAX_DEPTH = 16  # of nested Dicts
MAX_INTEGER = 2**62
SPACES: dict[str, type[Space]] = {
    kind.__name__: kind for kind in (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Dict, gs.Tuple)
}
DTYPES = {np.dtype(kind).name for kind in "?bBhHiIlLqQefd"}


def entries_of(space: gs.Dict | gs.Tuple[Any]) -> Iterator[tuple[Any, Space]]:
    """(key or index, space) of each entry."""
    yield from space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces)


def leaves(space: Space, obs: Observation) -> Iterator[Array]:
    """The numbers or arrays in an observation, or in a batch of them."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        for key, entry in entries_of(space):
            yield from leaves(entry, obs[key])
    else:
        yield obs


def plain_spaces(space: Space) -> Iterator[Space]:
    """The plain spaces in a space, in the order of `leaves`."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        for _, entry in entries_of(space):
            yield from plain_spaces(entry)
    else:
        yield space


def nested_like(space: Space, arrays: Iterator[Observation]) -> Observation:
    """An observation made of these values, in the order of `leaves`."""
    if isinstance(space, gs.Dict):
        return {key: nested_like(entry, arrays) for key, entry in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(nested_like(entry, arrays) for entry in space.spaces)
    return next(arrays)


def as_lists(member: Observation) -> object:
    """An action or observation as plain numbers, lists, dicts and tuples."""
    if isinstance(member, dict):
        return {key: as_lists(entry) for key, entry in member.items()}
    return tuple(map(as_lists, member)) if isinstance(member, tuple) else np.asarray(member).tolist()


def space_text(space: object) -> str:
    """A space as text for messages. Bounds at the limits of a float are shown as infinite, as libraries mean them."""
    if isinstance(space, gs.Dict):
        return f"Dict({', '.join(f'{key!r}: {space_text(entry)}' for key, entry in space.spaces.items())})"
    if isinstance(space, gs.Tuple):
        return f"Tuple({', '.join(map(space_text, space.spaces))})"
    if not isinstance(space, gs.Box) or not np.issubdtype(space.dtype, np.floating):
        return str(space)
    limit = 0.99 * min(float(np.finfo(np.float32).max), float(np.finfo(space.dtype).max))
    none = (space.high >= limit) & ((space.low <= -limit) | (space.low == np.finfo(np.float32).tiny))
    low, high = np.where(none, -np.inf, space.low), np.where(none, np.inf, space.high)
    return f"Box({bounds_text(low)}, {bounds_text(high)}, {space.shape}, {space.dtype})"


def bounds_text(values: Array) -> str:
    """One number where all are the same, otherwise the first few."""
    each = list(dict.fromkeys(f"{value:g}" for value in values.flatten().tolist()))
    if len(each) == 1:
        return each[0]
    shown = [f"{value:g}" for value in values.flatten()[:8].tolist()]
    return f"[{' '.join(shown)}{' ...' if values.size > 8 else ''}]"


def has_shape_of(space: Space, obs: Observation) -> bool:
    """Whether `obs` has the structure and shape of one member of the space (not whether its values are in bounds)."""
    return shape_mismatch(space, obs, batches=False) is None


def shape_mismatch(space: Space, obs: Observation, place: str = "it", batches: bool = True) -> str | None:
    """Why `obs` is neither like a member of the space nor like a batch of members; None if it is."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        named = isinstance(space, gs.Dict)
        parts = dict(entries_of(space))
        if not isinstance(obs, dict if named else (tuple, list)):
            return f"{place} is a {type(obs).__name__}, not a {'dict' if named else 'tuple'} with {list(parts)}"
        if not named and len(obs) != len(parts):
            return f"{place} has {len(obs)} parts, not {len(parts)}"
        if missing := [key for key in parts if named and key not in obs]:
            return f"{place} has no {missing[0]!r}, only {list(obs)}"
        mismatches = (shape_mismatch(part, obs[key], f"{place}[{key!r}]", batches) for key, part in parts.items())
        return next((reason for reason in mismatches if reason is not None), None)
    try:
        shape = np.shape(obs)
    except ValueError:
        return f"{place} has rows of unequal length"
    wanted = space.shape or ()
    if shape == wanted or (batches and shape[1:] == wanted):
        return None
    return f"{place} has shape {shape}, not {wanted} or (B{''.join(f', {n}' for n in wanted)})"


def stacked(space: Space, singles: Sequence[Observation]) -> Observation:
    """Single observations to a batch in the form vector environments use."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return np.array(singles)
    parts = {key: stacked(entry, [one[key] for one in singles]) for key, entry in entries_of(space)}
    return parts if isinstance(space, gs.Dict) else tuple(parts.values())


def take_rows(space: Space, batch: Observation, rows: Array) -> Observation:
    """Some rows of a batch."""
    return nested_like(space, (np.asarray(leaf)[rows] for leaf in leaves(space, batch)))


# to JSON -------------------------------------------------------------------------------------------------------------


def described(space: Space) -> Settings:
    """A plain space as JSON values. A bound is one number if all are the same, and null if there is none."""
    values: Settings = {"space": type(space).__name__, "shape": list(space.shape or ()), "dtype": dtype_of(space).name}
    if isinstance(space, (gs.Discrete, gs.MultiDiscrete)):
        n = space.n if isinstance(space, gs.Discrete) else space.nvec
        return values | {"n": np.asarray(n).tolist(), "start": np.asarray(space.start).tolist()}
    if isinstance(space, gs.Box):
        for name, values_of_end in (("low", space.low), ("high", space.high)):
            end = bound(values_of_end)
            finite = [x if math.isfinite(x) else None for x in (end if isinstance(end, tuple) else (end,))]
            values[name] = finite if isinstance(end, tuple) else finite[0]
    return values


def spaces_to_json(env: Any) -> Settings | None:
    """Both spaces of a HostEnv for a checkpoint; None if one of them cannot be written as JSON."""
    try:
        return {"observation": space_to_json(env._observation.space), "action": space_to_json(env._action.space)}
    except ValueError:
        return None


def space_to_json(space: Space) -> Settings:
    """A space as JSON values; ValueError if that is not possible."""
    kind = next((name for name, kind in SPACES.items() if isinstance(space, kind)), None)
    if isinstance(space, (gs.Dict, gs.Tuple)):
        entries = list(entries_of(space))
        if not all(type(key) in (str, int) for key, _ in entries):
            raise ValueError("keys that JSON does not have")
        return {"space": kind, "entries": [[key, space_to_json(entry)] for key, entry in entries]}
    values = {**described(space), "space": kind}
    if kind is None or any(isinstance(each, list) and len(each) > MAX_BOUNDS for each in values.values()):
        raise ValueError("a space that is not saved")
    return values


# from JSON -----------------------------------------------------------------------------------------------------------


def space_from_json(values: object, depth: int = 0) -> Space:
    """The space that `space_to_json` wrote; a ValueError says what is invalid."""
    kind = values.get("space") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(kind, str) or kind not in SPACES or depth > MAX_DEPTH:
        raise ValueError(f"{str(values)[:40]!r} is not a space")
    if kind in ("Dict", "Tuple"):
        return dict_or_tuple_space_from_json(kind, values.get("entries"), depth)
    shape, dtype = values.get("shape"), values.get("dtype")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"{kind} has no shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{kind} has no dtype")
    size, number = checked_size(kind, math.prod(shape)), np.dtype(dtype)
    if kind == "Discrete":
        n, start = integers(values.get("n"), 1, least=1), integers(values.get("start"), 1)
        return gs.Discrete(int(n[0]), start=int(start[0]), dtype=number.type)
    if kind == "MultiDiscrete":
        counts = integers(values.get("n"), size, least=1).reshape(shape)
        return gs.MultiDiscrete(counts, number.type, start=integers(values.get("start"), size).reshape(shape))
    if kind == "MultiBinary":
        return gs.MultiBinary(shape[0] if len(shape) == 1 else shape)
    low, high = (bounds(values.get(end), size, number, end).reshape(shape) for end in ("low", "high"))
    if (low > high).any():
        raise ValueError("Box has low above high")
    return gs.Box(low, high, dtype=number.type)


def dict_or_tuple_space_from_json(kind: str, entries: object, depth: int) -> Space:
    """Read a Dict or Tuple space."""
    if not isinstance(entries, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        raise ValueError(f"the saved {kind} space has no valid list of entries")
    if not all(type(key) in (str, int) for key, _ in entries):
        raise ValueError(f"the saved {kind} space has an entry without a name")
    inner = OrderedDict((key, space_from_json(values, depth + 1)) for key, values in entries)
    checked_size(kind, sum(map(size_of, inner.values())))
    return gs.Dict(inner) if kind == "Dict" else gs.Tuple(tuple(inner.values()))


def checked_size(kind: str, size: int) -> int:
    if size > MAX_SPACE_SIZE:
        raise ValueError(f"{kind} has more than {MAX_SPACE_SIZE:,} numbers")
    return size


def size_of(space: Space) -> int:
    """The number of values in a member of a space."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        return sum(size_of(entry) for _, entry in entries_of(space))
    return math.prod(space.shape or ())


def integers(values: object, size: int, least: int = -MAX_INTEGER) -> Array:
    """`size` integers."""
    flat = np.asarray(values, object).flatten().tolist()
    if len(flat) != size or not all(type(n) is int and least <= n < MAX_INTEGER for n in flat):
        raise ValueError("the number of choices in a saved space is not a positive whole number")
    return np.array(flat, np.int64)


def bounds(values: object, size: int, dtype: np.dtype[Any], end: str) -> Array:
    """`size` bounds, from one for all or one for each; None stands for no bound."""
    flat = np.asarray(values, object).flatten().tolist()
    if len(flat) not in (1, size) or not all(n is None or type(n) in (int, float) for n in flat):
        raise ValueError("Box has no bounds")
    if dtype.kind == "f":
        least, most = -math.inf, math.inf
    else:
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, most = (0, 1) if info is None else (int(info.min), int(info.max))
        flat = [None if n is None else min(max(int(n), least), most) for n in flat]
    each = np.array([(least if end == "low" else most) if n is None else n for n in flat], dtype)
    return np.broadcast_to(each, size).copy()


def dtype_of(space: Space) -> np.dtype[Any]:
    """The dtype of a space for a graph, which has no numbers of more than 64 bits."""
    kind = np.dtype(space.dtype)
    return np.dtype(np.float64) if kind.itemsize > 8 else kind


def bound(values: Array) -> Bound:
    """One number where all are the same, otherwise each."""
    flat = [float(v) for v in values.flatten()]
    return flat[0] if len(set(flat)) == 1 else tuple(flat)
