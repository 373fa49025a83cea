"""Convert observations of Gymnasium's spaces to rows of numbers, and back. `actions` does the same for actions.

Box of any shape and dtype, images as (height, width, channels) or (channels, height, width), stacks of them (whose frames
become channels), Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these to any depth. Anything else is a UsageError.

Arrays from a simulator are converted with NumPy; `traced` does the same to tensors, for exported graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import torch
from torch import Tensor

from ...errors import EnvError, UsageError
from ...models.networks import IMAGE_SIDE
from ...types import Bound, Box, Composite, Discrete, Env, MultiDiscrete, Spec
from ..step_arrays import Array
from .space_members import Observation, Space, dtype_of, entries_of, leaves, nested_like, space_text

OBSERVATIONS, OBS = "observations", "obs"  # names of the whole, in messages and in a graph
CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
NUMPY = {torch.float32: np.float32, torch.int64: np.int64, torch.uint8: np.uint8}


def in_shape(batch: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The rows of a batch in another shape; no node of the graph where they have it already."""
    return batch if batch.shape[1:] == shape else batch.reshape(-1, *shape)


def split_rows(rows: Array, specs: Sequence[Spec]) -> list[Array]:
    """Split rows that hold parts side by side into a batch of each part; whole rows if there is one."""
    ends = np.cumsum([math.prod(spec.shape) for spec in specs])[:-1]
    pieces = [rows] if len(specs) == 1 else np.split(rows, ends, axis=1)
    shaped = zip(specs, pieces, strict=True)
    return [piece.reshape(len(rows), *spec.shape).astype(NUMPY[spec.dtype]) for spec, piece in shaped]


class NotInSpace(EnvError):
    """An observation has a value outside its space, on which a network would fail silently."""

    def __init__(self, row: int, value: object, label: str, space: Space) -> None:
        part = label.removeprefix(OBSERVATIONS)
        self.row, self.reason = row, f"{value}{f' for{part}' if part else ''}, which is not in {space_text(space)}"
        super().__init__(f"an observation is {self.reason}")


# observations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One plain space of an observation, and the rows that the policy reads of it."""

    name: str  # in the policy's spec
    label: str  # in messages
    space: Space
    spec: Spec
    axes: tuple[int, ...] | None = None  # the order of axes that puts channels before rows and columns
    whole: type[np.integer[Any]] | None = None  # what is read as whole numbers: pixels, choices
    start: Array | None = None  # of choices, which may not count from 0
    unit: int = 1  # divisor: 255 for uint8 inputs too small for the CNN

    def rows(self, obs: Array) -> Array:
        """Convert a batch from a simulator to rows; NotInSpace if a value is outside the space."""
        values = np.asarray(obs) if self.whole is None else self._integers(np.asarray(obs), self.whole)
        shape = self.spec.shape
        if values.shape[1:] == self.space.shape != shape:
            values = (values if self.axes is None else values.transpose(self.axes)).reshape(len(values), *shape)
        if self.start is not None and isinstance(self.spec, (Discrete, MultiDiscrete)):
            choices = values - self.start
            outside = (choices < 0) | (choices >= self.spec.n)
            if outside.any():
                row = int(np.argwhere(outside)[0][0])
                raise NotInSpace(row, values[row].tolist(), self.label, self.space)
            return choices
        return values if self.unit == 1 else values.astype(np.float32) / self.unit

    def _integers(self, values: Array, kind: type[np.integer[Any]]) -> Array:
        """Convert values to a whole-number type; NotInSpace if one would change, as 0.5 or, in a byte, 256."""
        with np.errstate(invalid="ignore"):
            numbers = values.astype(kind, copy=False)
        if values.dtype != kind and not np.array_equal(numbers, values):
            at = tuple(np.argwhere(numbers != values)[0])
            raise NotInSpace(int(at[0]) if at else 0, values[at].item(), self.label, self.space)
        return numbers

    def traced(self, shown: Tensor) -> Tensor:
        """Do the same as `rows`, on tensors and without checks."""
        numbers = shown if self.axes is None else shown.permute(self.axes)
        numbers = in_shape(numbers.to(self.spec.dtype), self.spec.shape)
        if self.start is not None:
            numbers = numbers - torch.from_numpy(self.start)
        return numbers if self.unit == 1 else numbers / self.unit

    def show(self, rows: Array) -> Array:
        """Convert rows back to the nearest observation of the space; float bounds are not applied."""
        kind, shape = dtype_of(self.space), self.space.shape or ()
        numbers = rows if self.start is None else rows + self.start
        if self.axes is None:
            numbers = numbers.reshape(-1, *shape)
        else:
            order = [axis - 1 for axis in self.axes[1:]]
            numbers = numbers.reshape(-1, *(shape[axis] for axis in order)).transpose(np.argsort(self.axes))
        if kind.kind in "iub" and numbers.dtype.kind == "f":
            binary = kind.kind == "b" or isinstance(self.space, gs.MultiBinary)
            least, most = (0, 1) if binary else (np.iinfo(kind).min, np.iinfo(kind).max)
            numbers = np.clip((numbers.astype(np.float64) * self.unit).round(), least, most)
        return np.ascontiguousarray(numbers.astype(kind, copy=False))


@dataclass(frozen=True)
class ObservationReader:
    """Reads one observation space, part by part: in order, the parts lie side by side in a row."""

    space: Space
    spec: Spec
    parts: tuple[Part, ...]

    def rows(self, obs: Observation) -> Array:
        """Convert a batch from a simulator to (N, *spec.shape)."""
        if not isinstance(self.spec, Composite):
            return np.ascontiguousarray(self.parts[0].rows(obs), NUMPY[self.spec.dtype])
        pieces = zip(self.parts, leaves(self.space, obs), strict=True)
        rows = [np.asarray(part.rows(piece), np.float32) for part, piece in pieces]
        return np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)

    def traced(self, shown: Sequence[Tensor]) -> Tensor:
        """Batches of all parts to (N, *spec.shape), as tensors."""
        pieces = [part.traced(piece) for part, piece in zip(self.parts, shown, strict=True)]
        if not isinstance(self.spec, Composite):
            return pieces[0]
        return torch.cat([piece.reshape(piece.shape[0], -1).to(self.spec.dtype) for piece in pieces], dim=1)

    def show(self, rows: Array) -> list[Array]:
        """Rows to a batch of each part."""
        pieces = split_rows(rows, [part.spec for part in self.parts])
        return [part.show(piece) for part, piece in zip(self.parts, pieces, strict=True)]

    def nested(self, shown: Sequence[Array]) -> Observation:
        """Combine batches of all parts to a batch as a simulator returns it."""
        return nested_like(self.space, iter(shown))


def observation_reader(space: Space) -> ObservationReader:
    """The reader of an observation space; UsageError for a space that is not supported."""
    parts = tuple(parts_of_space(space, "", OBSERVATIONS))
    names = [part.name for part in parts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{OBSERVATIONS} have two parts called {twice[0]!r}: rename one of them")
    composite = isinstance(space, (gs.Dict, gs.Tuple))
    spec = Composite(tuple((part.name, part.spec) for part in parts)) if composite else parts[0].spec
    return ObservationReader(space, spec, parts)


def parts_of_space(space: Space, path: str, label: str) -> Iterator[Part]:
    name = path or OBS
    if isinstance(space, (gs.Dict, gs.Tuple)):
        if not space.spaces:
            raise UsageError(f"{label} of an empty {type(space).__name__} are empty: give at least one part")
        for key, entry in entries_of(space):
            yield from parts_of_space(entry, f"{path}/{key}" if path else str(key), f"{label} {key!r}")
    elif isinstance(space, gs.Box):
        yield box_part(space, name, label)
    elif isinstance(space, gs.Discrete):
        start = np.array(int(space.start))
        yield Part(name, label, space, Discrete(int(space.n)), whole=np.int64, start=start)
    elif isinstance(space, gs.MultiDiscrete) and space.nvec.size:
        spec = MultiDiscrete(tuple(int(n) for n in space.nvec.flatten()))
        yield Part(name, label, space, spec, whole=np.int64, start=np.asarray(space.start, np.int64).flatten())
    elif isinstance(space, gs.MultiBinary):
        yield Part(name, label, space, Box(space.shape, 0.0, 1.0))
    else:
        raise UsageError(
            f"{label} of {type(space).__name__} are not supported: give Box, Discrete, MultiDiscrete, MultiBinary, or Dict "
            "and Tuple of these, for example with a gymnasium.ObservationWrapper"
        )


def box_part(space: gs.Box, name: str, label: str) -> Part:
    shape, kind = space.shape, np.dtype(space.dtype)
    if kind.kind not in "fiub":
        raise UsageError(f"{label} of dtype {kind} are not supported: give real numbers, whole numbers or bools")
    if 0 in shape:
        raise UsageError(f"{label} of shape {shape} are empty: give at least one number")
    pixels = kind == np.uint8 and bool((space.high == 255).all() and (space.low == 0).all())
    whole = np.uint8 if pixels else None
    image = image_layout(shape) if pixels or kind.kind == "f" else None
    if image is not None:
        low, high = (0, 255) if pixels else (float(space.low.min()), float(space.high.max()))
        spec = Box(image[0], low, high, torch.uint8 if pixels else torch.float32)
        return Part(name, label, space, spec, image[1], whole)
    if pixels:  # too small for convolutions, but still brightnesses
        return Part(name, label, space, Box(shape or (1,), 0.0, 1.0), whole=whole, unit=255)
    return Part(name, label, space, Box(shape or (1,)))


def image_layout(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...] | None] | None:
    """(shape with channels first, order of axes that leads to it) of an image or a few of them; None of other shapes."""
    if len(shape) == 2 and min(shape) >= IMAGE_SIDE:
        return (1, *shape), None
    if len(shape) == 3:
        height, width, channels = shape
        if channels in CHANNELS and height not in CHANNELS and min(height, width) >= IMAGE_SIDE:
            return (channels, height, width), (0, 3, 1, 2)
        return (shape, None) if min(shape[1:]) >= IMAGE_SIDE else None
    if len(shape) == 4 and shape[0] < IMAGE_SIDE:
        if shape[3] in CHANNELS and min(shape[1:3]) >= IMAGE_SIDE:
            return (shape[0] * shape[3], *shape[1:3]), (0, 1, 4, 2, 3)
        if shape[1] in CHANNELS and min(shape[2:]) >= IMAGE_SIDE:
            return (shape[0] * shape[1], *shape[2:]), None
    return None


# of environments --------------------------------------------------------------------------------------------------------


def reader_of(env: Env) -> ObservationReader:
    """The reader of an environment's observations; of a tensor environment's, one that changes nothing."""
    if isinstance(reader := getattr(env, "_observation", None), ObservationReader):
        return reader
    space, spec = space_of(env.observation), env.observation
    return ObservationReader(space, spec, (Part(OBS, OBS, space, spec),))


def space_of(spec: Spec) -> Space:
    """Gymnasium's name for one of our specs; parts that travel as one row are a row."""
    if isinstance(spec, Discrete):
        return gs.Discrete(spec.n)
    if isinstance(spec, MultiDiscrete):
        return gs.MultiDiscrete(np.array(spec.n))
    if isinstance(spec, Composite):
        return gs.Box(-np.inf, np.inf, spec.shape, np.float32)
    kind = NUMPY[spec.dtype]

    def each(end: Bound) -> Array:
        return np.broadcast_to(np.asarray(end, kind), math.prod(spec.shape)).reshape(spec.shape)

    return gs.Box(each(spec.low), each(spec.high), dtype=kind)
