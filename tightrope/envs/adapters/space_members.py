"""Members of Gymnasium's spaces, one by one and in batches; and spaces as text, for messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium.spaces as gs
import numpy as np

from ..step_arrays import Array

Space = gs.Space[Any]
Observation = Any  # a number, an array, or a dict or tuple of these: a member of a space, or a batch of them


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


def nested_like(space: Space, arrays: Iterator[Array]) -> Observation:
    """An observation made of these, in the order of `leaves`."""
    if isinstance(space, gs.Dict):
        return {key: nested_like(entry, arrays) for key, entry in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(nested_like(entry, arrays) for entry in space.spaces)
    return next(arrays)


def space_text(space: object) -> str:
    """A space for messages. Bounds at the limits of a float are shown as infinite: engines write no bound that way."""
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
    if isinstance(space, gs.Dict):
        return isinstance(obs, dict) and all(k in obs and has_shape_of(s, obs[k]) for k, s in space.spaces.items())
    if isinstance(space, gs.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            return False
        return all(has_shape_of(s, o) for s, o in zip(space.spaces, obs, strict=True))
    try:
        return np.shape(obs) == space.shape
    except ValueError:  # a ragged list
        return False


def shape_mismatch(space: Space, obs: Observation, place: str = "it") -> str | None:
    """Why `obs` has neither the structure and shape of a member of the space nor of a batch of them; None if it has."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        named = isinstance(space, gs.Dict)
        parts = dict(entries_of(space))
        if not isinstance(obs, dict if named else (tuple, list)):
            return f"{place} is a {type(obs).__name__}, not a {'dict' if named else 'tuple'} with {list(parts)}"
        if not named and len(obs) != len(parts):
            return f"{place} has {len(obs)} parts, not {len(parts)}"
        if missing := [key for key in parts if named and key not in obs]:
            return f"{place} has no {missing[0]!r}, only {list(obs)}"
        mismatches = (shape_mismatch(part, obs[key], f"{place}[{key!r}]") for key, part in parts.items())
        return next((reason for reason in mismatches if reason is not None), None)
    try:
        shape = np.shape(obs)
    except ValueError:
        return f"{place} has rows of unequal length"
    wanted = space.shape or ()
    if wanted in (shape, shape[1:]):
        return None
    return f"{place} has shape {shape}, not {wanted} or (B{''.join(f', {n}' for n in wanted)})"


def stacked(space: Space, singles: Sequence[Observation]) -> Observation:
    """Single observations to a batch in the form vector environments use."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        return np.array(singles)
    return nested_like(space, map(np.array, zip(*(leaves(space, one) for one in singles), strict=True)))


def take_rows(space: Space, batch: Observation, rows: Array) -> Observation:
    """Some rows of a batch."""
    return nested_like(space, (np.asarray(leaf)[rows] for leaf in leaves(space, batch)))
