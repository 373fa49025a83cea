"""Gymnasium's spaces to ours and back: an engine's observations become rows of numbers, the policy's choices its actions.

Observations: Box of any shape and dtype, images as (height, width, channels) or (channels, height, width), stacks of them
(whose frames become channels), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these to any depth. Actions:
Discrete, MultiDiscrete, MultiBinary and Box. Anything else is a UsageError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium.spaces as gs
import numpy as np
import torch

from ...errors import EnvError, UsageError
from ...models.networks import IMAGE_SIDE
from ...types import Bound, Box, Composite, Discrete, MultiDiscrete, Spec
from ..step_arrays import Array

OBSERVATIONS = "observations"
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
NUMPY = {torch.float32: np.float32, torch.int64: np.int64, torch.uint8: np.uint8}


@dataclass(frozen=True)
class ObservationReader:
    """Reads one observation space: `rows` takes a batch as the engine returns it to (N, *spec.shape)."""

    space: gs.Space[Any]
    spec: Spec
    rows: Callable[[Any], Array]


@dataclass(frozen=True)
class ActionWriter:
    """Writes one action space: `batch` takes (N, *spec.shape) to what the engine's step expects."""

    space: gs.Space[Any]
    spec: Spec
    batch: Callable[[Array], Array]


def observation_reader(space: gs.Space[Any], name: str = OBSERVATIONS) -> ObservationReader:
    """The reader of an observation space; UsageError for a space that is not supported."""
    spec, rows = _reader(space, name)
    dtype = NUMPY[spec.dtype]
    return ObservationReader(space, spec, lambda obs: np.ascontiguousarray(rows(obs), dtype))


def _reader(space: gs.Space[Any], name: str) -> tuple[Spec, Callable[[Any], Array]]:
    if isinstance(space, gs.Box):
        return _box_reader(space, name)
    if isinstance(space, gs.Discrete):
        choices = DiscreteValues(space, name, np.array(int(space.start)), np.array([int(space.n)]))
        return Discrete(int(space.n)), lambda obs: choices.from_zero(as_integers(obs, np.int64, space, name))
    if isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        n = tuple(int(k) for k in space.nvec.flatten())
        choices = DiscreteValues(space, name, np.asarray(space.start, np.int64).flatten(), np.array(n))
        return MultiDiscrete(n), lambda obs: choices.from_zero(
            as_integers(obs, np.int64, space, name).reshape(-1, len(n))
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
        raise UsageError(f"{name} of shape {shape} are empty: give at least one number")
    if shape == ():
        spec, rows = _box_reader(gs.Box(space.low.reshape(1), space.high.reshape(1), dtype=space.dtype), name)
        return spec, lambda obs: rows(np.asarray(obs)[:, None])
    pixels = space.dtype == np.uint8 and bool((space.high == 255).all() and (space.low == 0).all())
    if pixels or np.issubdtype(space.dtype, np.floating):
        kind = torch.uint8 if pixels else torch.float32
        read = partial(as_integers, kind=np.uint8, space=space, name=name) if pixels else np.asarray
        low, high = (0, 255) if pixels else (float(space.low.min()), float(space.high.max()))
        if len(shape) == 2 and min(shape) >= IMAGE_SIDE:
            return Box((1, *shape), low, high, kind), lambda obs: read(obs)[:, None]
        if len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS and min(shape[:2]) >= IMAGE_SIDE:
            channels_first = (shape[2], shape[0], shape[1])
            return Box(channels_first, low, high, kind), lambda obs: np.moveaxis(read(obs), -1, 1)
        if len(shape) == 3 and min(shape[1:]) >= IMAGE_SIDE:
            return Box(shape, low, high, kind), read
        if is_image_stack(shape):
            last = shape[3] in CHANNELS
            frames, channels, height, width = (shape[0], shape[3], *shape[1:3]) if last else shape
            merged = (frames * channels, height, width)
            return Box(merged, low, high, kind), lambda obs: (
                np.moveaxis(read(obs), -1, 2) if last else read(obs)
            ).reshape(-1, *merged)
    if pixels:  # too small for convolutions, but still brightnesses
        return Box(shape, 0.0, 1.0), lambda obs: read(obs).astype(np.float32) / 255
    return Box(shape), lambda obs: np.asarray(obs, np.float32)


def is_image_stack(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a few images: (frames, height, width, channels) or (frames, channels, height, width)."""
    if len(shape) != 4 or shape[0] >= IMAGE_SIDE:
        return False
    return (shape[3] in CHANNELS and min(shape[1:3]) >= IMAGE_SIDE) or (
        shape[1] in CHANNELS and min(shape[2:]) >= IMAGE_SIDE
    )


def _composite_reader(space: gs.Dict | gs.Tuple[Any], name: str) -> tuple[Spec, Callable[[Any], Array]]:
    keys: list[Any] = list(space.spaces) if isinstance(space, gs.Dict) else list(range(len(space.spaces)))
    if not keys:
        raise UsageError(f"{name} of an empty {type(space).__name__} are empty: give at least one part")
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


def action_writer(space: gs.Space[Any]) -> ActionWriter:
    """The writer of an action space; UsageError for a space that is not supported."""
    if isinstance(space, gs.Discrete):
        start, kind = int(space.start), space.dtype
        return ActionWriter(space, Discrete(int(space.n)), lambda a: (a + start).astype(kind))
    if isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        n, origin = tuple(int(k) for k in space.nvec.flatten()), np.asarray(space.start, np.int64)
        shape, kind = space.shape, space.dtype
        return ActionWriter(space, MultiDiscrete(n), lambda a: (a.reshape(-1, *shape) + origin).astype(kind))
    if isinstance(space, gs.MultiBinary):
        shape, kind = space.shape, space.dtype
        n = (2,) * int(np.prod(shape))
        return ActionWriter(space, MultiDiscrete(n), lambda a: a.reshape(-1, *shape).astype(kind))
    if isinstance(space, gs.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        kind = space.dtype

        def write(actions: Array) -> Array:
            """A copy, which the environment may write into; clipped where conversion may round beyond a bound."""
            return actions.copy() if kind == np.float32 else np.clip(actions.astype(kind), space.low, space.high)

        return ActionWriter(space, Box(space.shape, bound(space.low), bound(space.high)), write)
    what = f"Box of dtype {space.dtype} and shape {space.shape}" if isinstance(space, gs.Box) else type(space).__name__
    raise UsageError(
        f"actions of {what} are not supported: give Discrete, MultiDiscrete, MultiBinary or a Box of real numbers, for "
        "example with a gymnasium.ActionWrapper"
    )


class NotInSpace(EnvError):
    """An observation with a value that its space does not have: a network would fail on it without a message."""

    def __init__(self, row: int, value: Any, name: str, space: gs.Space[Any]) -> None:
        part = name.removeprefix(OBSERVATIONS)
        self.row, self.reason = row, f"{value}{f' for{part}' if part else ''}, which is not in {space_text(space)}"
        super().__init__(f"an observation is {self.reason}")


def as_integers(obs: Any, kind: type[np.integer[Any]], space: gs.Space[Any], name: str) -> Array:
    """An array of that type. NotInSpace where a value would change: 0.5 would become 0, 256 would become 0 in a byte."""
    values = np.asarray(obs)
    with np.errstate(invalid="ignore"):
        numbers = values.astype(kind, copy=False)
    if values.dtype != kind and not np.array_equal(numbers, values):
        at = tuple(np.argwhere(numbers != values)[0])
        raise NotInSpace(int(at[0]) if at else 0, values[at].item(), name, space)
    return numbers


class DiscreteValues(NamedTuple):
    """The options of a Discrete or MultiDiscrete space."""

    space: gs.Space[Any]
    name: str  # of the space, in messages
    start: Array
    counts: Array

    def from_zero(self, values: Array) -> Array:
        """Values (N,) or (N, K) counted from 0; NotInSpace if one is not a member of the space."""
        numbers = values - self.start
        outside = (numbers < 0) | (numbers >= self.counts)
        if outside.any():
            row = int(np.argwhere(outside)[0][0])
            raise NotInSpace(row, values[row].tolist(), self.name, self.space)
        return numbers


def bound(values: Array) -> Bound:
    """One number where all are the same, otherwise each."""
    flat = [float(v) for v in values.flatten()]
    return flat[0] if len(set(flat)) == 1 else tuple(flat)


def space_text(space: Any) -> str:
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


def has_shape_of(space: gs.Space[Any], obs: Any) -> bool:
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


def shape_mismatch(space: gs.Space[Any], obs: Any, place: str = "it") -> str | None:
    """Why `obs` has neither the structure and shape of a member of the space nor of a batch of them; None if it has."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        named = isinstance(space, gs.Dict)
        parts: dict[Any, Any] = dict(space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces))
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


def take_rows(space: gs.Space[Any], batch: Any, rows: Array) -> Any:
    """Some rows of a batch."""
    if isinstance(space, gs.Dict):
        return {k: take_rows(s, batch[k], rows) for k, s in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(take_rows(s, batch[i], rows) for i, s in enumerate(space.spaces))
    return np.asarray(batch)[rows]
