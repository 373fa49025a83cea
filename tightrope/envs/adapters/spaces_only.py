"""The spaces of an environment that is not installed: read from a checkpoint, they suffice to encode and decode.

A checkpoint may come from a stranger: its description of spaces is checked before anything is built from it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, NoReturn

import gymnasium.spaces as gs
import numpy as np
import torch

from ...errors import UsageError
from ...types import Settings, Spec
from ..step_arrays import MAX_SPACE_SIZE, Array
from ..traced import described
from .host import HostEnv
from .spaces import action_writer, observation_reader

MAX_BOUNDS = 1 << 12  # that are written one by one
MAX_DEPTH = 16  # Dict within Dict
MAX_INTEGER = 2**62
SPACES: dict[str, type[gs.Space[Any]]] = {
    kind.__name__: kind for kind in (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Dict, gs.Tuple)
}
DTYPES = {np.dtype(kind).name for kind in "?bBhHiIlLqQefd"}


class SpacesOnlyEnv(HostEnv):
    """The spaces of an environment that runs outside torch, where it cannot be run."""

    backend = "none"

    def __init__(self, name: str, observation: gs.Space[Any], action: gs.Space[Any], device: torch.device) -> None:
        self.name = name
        self._set_spaces(observation_reader(observation), action_writer(action), 1, device)

    def _reset(self, seeds: Array | None) -> NoReturn:
        raise not_loaded(self.name)

    def _recv(self) -> NoReturn:
        raise not_loaded(self.name)

    def _spawn(self, num_envs: int, drawn: bool) -> NoReturn:
        raise not_loaded(self.name)


class SpacesOnlyTensorEnv:
    """The spaces of an environment that takes and returns tensors, where it cannot be run."""

    def __init__(self, name: str, observation: Spec, action: Spec, device: torch.device) -> None:
        self.name, self.observation, self.action, self.device = name, observation, action, device

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> NoReturn:
        raise not_loaded(self.name)


def not_loaded(name: str) -> UsageError:
    return UsageError(f"env {name!r} cannot be run: only its spaces were loaded. Give one with tr.load(path, env=...)")


# to JSON -------------------------------------------------------------------------------------------------------------


def spaces_to_json(env: HostEnv) -> Settings | None:
    """Both spaces of an environment as a checkpoint keeps them; None if one has no such form."""
    try:
        return {"observation": space_to_json(env._observation.space), "action": space_to_json(env._action.space)}
    except ValueError:
        return None


def space_to_json(space: gs.Space[Any]) -> Settings:
    """A space in values that JSON has; a ValueError where that is not possible."""
    kind = next((name for name, kind in SPACES.items() if isinstance(space, kind)), None)
    if isinstance(space, (gs.Dict, gs.Tuple)):
        entries: Any = space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces)
        if isinstance(space, gs.Dict) and not all(type(key) in (str, int) for key in space.spaces):
            raise ValueError("keys that JSON does not have")
        return {"space": kind, "entries": [[key, space_to_json(entry)] for key, entry in entries]}
    values = {**described(space), "space": kind}
    if kind is None or any(isinstance(each, list) and len(each) > MAX_BOUNDS for each in values.values()):
        raise ValueError("a space that is not saved")
    return values


# from JSON -----------------------------------------------------------------------------------------------------------


def space_from_json(values: Any, depth: int = 0) -> gs.Space[Any]:
    """The space that `space_to_json` wrote; a ValueError says what is invalid."""
    kind = values.get("space") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in SPACES or depth > MAX_DEPTH:
        raise ValueError(f"{str(values)[:40]!r} is not a space")
    if kind in ("Dict", "Tuple"):
        return entries_from_json(kind, values.get("entries"), depth)
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


def entries_from_json(kind: str, entries: Any, depth: int) -> gs.Space[Any]:
    """A Dict or a Tuple."""
    if not isinstance(entries, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        raise ValueError(f"{kind} has no entries")
    if not all(type(key) in (str, int) for key, _ in entries):
        raise ValueError(f"{kind} has an entry without a name")
    inner = OrderedDict((key, space_from_json(values, depth + 1)) for key, values in entries)
    checked_size(kind, sum(map(size_of, inner.values())))
    return gs.Dict(inner) if kind == "Dict" else gs.Tuple(tuple(inner.values()))


def checked_size(kind: str, size: int) -> int:
    if size > MAX_SPACE_SIZE:
        raise ValueError(f"{kind} has more than {MAX_SPACE_SIZE:,} numbers")
    return size


def size_of(space: gs.Space[Any]) -> int:
    """How many numbers a member has."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        return sum(map(size_of, space.spaces.values() if isinstance(space, gs.Dict) else space.spaces))
    return math.prod(space.shape or ())


def integers(values: Any, size: int, least: int = -MAX_INTEGER) -> Array:
    """`size` integers."""
    flat = flattened(values)
    if len(flat) != size or not all(type(n) is int and least <= n < MAX_INTEGER for n in flat):
        raise ValueError("a choice has no whole number of options")
    return np.array(flat, np.int64)


def bounds(values: Any, size: int, dtype: np.dtype[Any], end: str) -> Array:
    """`size` bounds, from one for all or one for each; None stands for no bound."""
    flat = flattened(values)
    if len(flat) not in (1, size) or not all(n is None or type(n) in (int, float) for n in flat):
        raise ValueError("Box has no bounds")
    if dtype.kind == "f":
        unbounded = -math.inf if end == "low" else math.inf
        each = [unbounded if n is None else float(n) for n in flat]
    else:
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, most = (0, 1) if info is None else (int(info.min), int(info.max))
        each = [(least if end == "low" else most) if n is None else min(max(int(n), least), most) for n in flat]
    return np.broadcast_to(np.array(each, dtype), size).copy()


def flattened(values: Any, depth: int = 0) -> list[Any]:
    """A number, or lists of them to any sensible depth, as one list."""
    if not isinstance(values, list):
        return [values]
    if depth > 32:
        raise ValueError("numbers are nested too deeply")
    return [number for value in values for number in flattened(value, depth + 1)]
