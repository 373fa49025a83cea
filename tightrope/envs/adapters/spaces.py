"""Gymnasium's spaces to ours and back: what an engine shows becomes rows of numbers, what the policy chose becomes actions.

Observations: Box of any shape and dtype, images as (height, width, channels) or (channels, height, width), stacks of them
(whose frames become channels), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these to any depth. Actions:
Discrete, MultiDiscrete, MultiBinary and Box.
Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import torch

from ...errors import EnvError, UsageError
from ...models.networks import IMAGE_SIDE
from ...types import Bound, Box, Composite, Discrete, MultiDiscrete, Spec
from ..options import Array

OBSERVATIONS = "observations"
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
NUMPY = {torch.float32: np.float32, torch.int64: np.int64, torch.uint8: np.uint8}


@dataclass(frozen=True)
class Observation:
    """How one observation space is read: `rows` takes a batch as the engine gives it to (N, *spec.shape)."""

    space: gs.Space[Any]
    spec: Spec
    rows: Callable[[Any], Array]

    def holds(self, obs: Any) -> bool:
        """Whether `obs` is one observation, not a batch of them."""
        return fits(self.space, obs)


@dataclass(frozen=True)
class Action:
    """How one action space is written: `batch` takes (N, *spec.shape) to what the engine's step expects."""

    space: gs.Space[Any]
    spec: Spec
    batch: Callable[[Array], Array]


def observation(space: gs.Space[Any], name: str = OBSERVATIONS) -> Observation:
    """The reader of an observation space."""
    spec, rows = _reader(space, name)
    dtype = NUMPY[spec.dtype]
    return Observation(space, spec, lambda obs: np.ascontiguousarray(rows(obs), dtype))


def _reader(space: gs.Space[Any], name: str) -> tuple[Spec, Callable[[Any], Array]]:
    if isinstance(space, gs.Box):
        return _box_reader(space, name)
    if isinstance(space, gs.Discrete):
        first, count = np.array(int(space.start)), np.array([int(space.n)])
        return Discrete(int(space.n)), lambda obs: in_range(
            whole(obs, np.int64, space, name), first, count, space, name
        )
    if isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        start = np.asarray(space.start, np.int64)
        n = tuple(int(k) for k in space.nvec.flatten())
        counts = np.array(n)
        return MultiDiscrete(n), lambda obs: in_range(
            whole(obs, np.int64, space, name).reshape(-1, len(n)), start.flatten(), counts, space, name
        )
    if isinstance(space, gs.MultiBinary):
        return Box(space.shape, 0.0, 1.0), lambda obs: np.asarray(obs, np.float32)
    if isinstance(space, (gs.Dict, gs.Tuple)):
        return _composite_reader(space, name)
    raise UsageError(
        f"{name} of {type(space).__name__} are not supported: give Box, Discrete, MultiDiscrete, MultiBinary, or Dict and "
        "Tuple of these, for example with a gymnasium.ObservationWrapper"
    )


def _box_reader(space: gs.Box, name: str) -> tuple[Spec, Callable[[Any], Array]]:
    shape = space.shape
    if not (np.issubdtype(space.dtype, np.floating) or np.issubdtype(space.dtype, np.integer) or space.dtype == bool):
        raise UsageError(f"{name} of dtype {space.dtype} are not supported: give real numbers, whole numbers or bools")
    if 0 in shape:
        raise UsageError(f"{name} of shape {shape} hold nothing: give at least one number")
    if shape == ():
        spec, rows = _box_reader(gs.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype), name)
        return spec, lambda obs: rows(np.asarray(obs)[:, None])
    pixels = space.dtype == np.uint8 and bool((space.high == 255).all() and (space.low == 0).all())
    if pixels or np.issubdtype(space.dtype, np.floating):
        kind = torch.uint8 if pixels else torch.float32
        read = partial(whole, kind=np.uint8, space=space, name=name) if pixels else np.asarray
        low, high = (0, 255) if pixels else (float(space.low.min()), float(space.high.max()))
        if len(shape) == 2 and min(shape) >= IMAGE_SIDE:
            return Box((1, *shape), low, high, kind), lambda obs: read(obs)[:, None]
        if len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS and min(shape[:2]) >= IMAGE_SIDE:
            channels_first = (shape[2], shape[0], shape[1])
            return Box(channels_first, low, high, kind), lambda obs: np.moveaxis(read(obs), -1, 1)
        if len(shape) == 3 and min(shape[1:]) >= IMAGE_SIDE:
            return Box(shape, low, high, kind), read
        if is_stack(shape):
            last = shape[3] in CHANNELS
            frames, channels, height, width = (shape[0], shape[3], *shape[1:3]) if last else shape
            merged = (frames * channels, height, width)
            return Box(merged, low, high, kind), lambda obs: (
                np.moveaxis(read(obs), -1, 2) if last else read(obs)
            ).reshape(-1, *merged)
    if pixels:  # too small for convolutions, but still brightnesses
        return Box(shape, 0.0, 1.0), lambda obs: read(obs).astype(np.float32) / 255
    return Box(shape), lambda obs: np.asarray(obs, np.float32)


def is_stack(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a few images: (frames, height, width, channels) or (frames, channels, height, width)."""
    if len(shape) != 4 or shape[0] >= IMAGE_SIDE:
        return False
    return (shape[3] in CHANNELS and min(shape[1:3]) >= IMAGE_SIDE) or (
        shape[1] in CHANNELS and min(shape[2:]) >= IMAGE_SIDE
    )


def _composite_reader(space: gs.Dict | gs.Tuple[Any], name: str) -> tuple[Spec, Callable[[Any], Array]]:
    keys: list[Any] = list(space.spaces) if isinstance(space, gs.Dict) else list(range(len(space.spaces)))
    if not keys:
        raise UsageError(f"{name} of an empty {type(space).__name__} hold nothing: give at least one part")
    parts: list[tuple[str, Spec]] = []
    readers: list[Callable[[Any], Array]] = []
    for key in keys:
        spec, rows = _reader(space.spaces[key], f"{name} {key!r}")
        inner = spec.parts if isinstance(spec, Composite) else (("", spec),)
        parts += [(f"{key}/{path}" if path else str(key), leaf) for path, leaf in inner]
        readers.append(rows)
    names = [part for part, _ in parts]
    twice = next((part for part in names if names.count(part) > 1), None)
    if twice is not None:
        raise UsageError(f"{name} have two parts called {twice!r}: rename one of them")

    def read(obs: Any) -> Array:
        rows = [np.asarray(rows(obs[key]), np.float32) for key, rows in zip(keys, readers, strict=True)]
        return np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)

    return Composite(tuple(parts)), read


def action(space: gs.Space[Any]) -> Action:
    """The writer of an action space."""
    if isinstance(space, gs.Discrete):
        start, kind = int(space.start), space.dtype
        return Action(space, Discrete(int(space.n)), lambda a: (a + start).astype(kind))
    if isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        n, origin = tuple(int(k) for k in space.nvec.flatten()), np.asarray(space.start, np.int64)
        shape, kind = space.shape, space.dtype
        return Action(space, MultiDiscrete(n), lambda a: (a.reshape(-1, *shape) + origin).astype(kind))
    if isinstance(space, gs.MultiBinary):
        shape, kind = space.shape, space.dtype
        n = (2,) * int(np.prod(shape))
        return Action(space, MultiDiscrete(n), lambda a: a.reshape(-1, *shape).astype(kind))
    if isinstance(space, gs.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        kind = space.dtype

        def write(actions: Array) -> Array:
            """A copy, which the environment may write into. Of another dtype than ours, a bound may lie between two of our
            numbers."""
            return actions.copy() if kind == np.float32 else np.clip(actions.astype(kind), space.low, space.high)

        return Action(space, Box(space.shape, bound(space.low), bound(space.high)), write)
    what = f"Box of dtype {space.dtype} and shape {space.shape}" if isinstance(space, gs.Box) else type(space).__name__
    raise UsageError(
        f"actions of {what} are not supported: give Discrete, MultiDiscrete, MultiBinary or a Box of real numbers, for "
        "example with a gymnasium.ActionWrapper"
    )


class NotInSpace(EnvError):
    """A choice that its space does not have, in the row of some environment: a network would fail on it without a word."""

    def __init__(self, row: int, value: Any, part: str, space: gs.Space[Any]) -> None:
        self.row, self.words = row, f"{value}{part}, which is not in {space_in_words(space)}"
        super().__init__(f"an observation is {self.words}")


def whole(obs: Any, kind: type[np.integer[Any]], space: gs.Space[Any], name: str) -> Array:
    """Whole numbers of that kind, if these are such: 0.5 would become 0, and 256 wrap to 0 in a byte, without a word."""
    given = np.asarray(obs)
    with np.errstate(invalid="ignore"):
        numbers = given.astype(kind, copy=False)
    if given.dtype != kind and not np.array_equal(numbers, given):
        at = tuple(np.argwhere(numbers != given)[0])
        part = name.removeprefix(OBSERVATIONS)
        raise NotInSpace(int(at[0]) if at else 0, given[at].item(), f" for{part}" if part else "", space)
    return numbers


def in_range(given: Array, start: Array, counts: Array, space: gs.Space[Any], name: str) -> Array:
    """Choices (N,) or (N, K) counted from 0, if all are members of the space."""
    choices = given - start
    outside = (choices < 0) | (choices >= counts)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        part = name.removeprefix(OBSERVATIONS)
        raise NotInSpace(row, given[row].tolist(), f" for{part}" if part else "", space)
    return choices


def bound(values: Array) -> Bound:
    """One number where all are the same, otherwise each."""
    flat = [float(v) for v in values.flatten()]
    return flat[0] if len(set(flat)) == 1 else tuple(flat)


def space_in_words(space: Any) -> str:
    """A space as it is shown to people. Bounds at the end of what a float can be are none: engines write them so."""
    if isinstance(space, gs.Dict):
        return f"Dict({', '.join(f'{key!r}: {space_in_words(entry)}' for key, entry in space.spaces.items())})"
    if isinstance(space, gs.Tuple):
        return f"Tuple({', '.join(map(space_in_words, space.spaces))})"
    if not isinstance(space, gs.Box) or not np.issubdtype(space.dtype, np.floating):
        return str(space)
    limit = 0.99 * min(float(np.finfo(np.float32).max), float(np.finfo(space.dtype).max))
    none = (space.high >= limit) & ((space.low <= -limit) | (space.low == np.finfo(np.float32).tiny))
    low, high = np.where(none, -np.inf, space.low), np.where(none, np.inf, space.high)
    return f"Box({one_or_each(low)}, {one_or_each(high)}, {space.shape}, {space.dtype})"


def one_or_each(values: Array) -> str:
    """One number where all are the same, otherwise the first few."""
    each = list(dict.fromkeys(f"{value:g}" for value in values.flatten().tolist()))
    if len(each) == 1:
        return each[0]
    shown = [f"{value:g}" for value in values.flatten()[:8].tolist()]
    return f"[{' '.join(shown)}{' ...' if values.size > 8 else ''}]"


def fits(space: gs.Space[Any], obs: Any) -> bool:
    """Whether `obs` has the structure and shape of one member of the space (not whether its values are in bounds)."""
    if isinstance(space, gs.Dict):
        return isinstance(obs, dict) and all(k in obs and fits(s, obs[k]) for k, s in space.spaces.items())
    if isinstance(space, gs.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            return False
        return all(fits(s, o) for s, o in zip(space.spaces, obs, strict=True))
    try:
        return np.shape(obs) == space.shape
    except ValueError:  # a ragged list
        return False


def misfit(space: gs.Space[Any], obs: Any, place: str = "it") -> str | None:
    """What keeps `obs` from being a member of the space or a batch of them, by structure and shape; None if nothing does."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        named = isinstance(space, gs.Dict)
        parts: dict[Any, Any] = dict(space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces))
        if not isinstance(obs, dict if named else (tuple, list)):
            return f"{place} is a {type(obs).__name__}, not a {'dict' if named else 'tuple'} with {list(parts)}"
        if not named and len(obs) != len(parts):
            return f"{place} has {len(obs)} parts, not {len(parts)}"
        if missing := [key for key in parts if named and key not in obs]:
            return f"{place} has no {missing[0]!r}, only {list(obs)}"
        found = (misfit(part, obs[key], f"{place}[{key!r}]") for key, part in parts.items())
        return next((words for words in found if words is not None), None)
    try:
        shape = np.shape(obs)
    except ValueError:
        return f"{place} has rows of unequal length"
    wanted = space.shape or ()
    return (
        None
        if wanted in (shape, shape[1:])
        else f"{place} has shape {shape}, not {wanted} or (B{''.join(f', {n}' for n in wanted)})"
    )


def stacked(space: gs.Space[Any], singles: list[Any]) -> Any:
    """Single observations to a batch in the form vector environments use."""
    if isinstance(space, gs.Dict):
        return {k: stacked(s, [one[k] for one in singles]) for k, s in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(stacked(s, [one[i] for one in singles]) for i, s in enumerate(space.spaces))
    return np.array(singles)


def chosen(space: gs.Space[Any], batch: Any, rows: Array) -> Any:
    """Some rows of a batch."""
    if isinstance(space, gs.Dict):
        return {k: chosen(s, batch[k], rows) for k, s in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(chosen(s, batch[i], rows) for i, s in enumerate(space.spaces))
    return np.asarray(batch)[rows]
