"""What spaces.py does to arrays, as torch functions that a graph can hold; and the way back, from rows to what an
environment would have shown. An exported policy is held to spaces.py itself, see training/export.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import torch
from torch import Tensor

from ..models.networks import is_image
from ..types import Bound, Box, Composite, Discrete, Env, MultiDiscrete, Spec
from .adapters.host import HostEnv
from .adapters.spaces import CHANNELS, NUMPY, bound, observation_reader
from .step_arrays import Array

OBS = "obs"  # the name of an observation that has no parts


@dataclass(frozen=True)
class Part:
    """One tensor of an observation: all of it, or an entry of a Dict or Tuple."""

    name: str
    space: gs.Space[Any]  # what the environment shows
    spec: Spec  # what the policy reads
    read: Callable[[Tensor], Tensor]  # a batch from the one to the other
    show: Callable[[Array], Array]  # and back, to the nearest member

    def example(self, count: int) -> Array:
        """A batch of one member."""
        return self.show(np.zeros((count, *self.spec.shape), NUMPY[self.spec.dtype]))


def parts_of(env: Env) -> list[Part]:
    """What the environment shows, tensor by tensor, in the order in which the parts of its spec lie side by side."""
    if not isinstance(env, HostEnv):
        return [Part(OBS, space_of(env.observation), env.observation, lambda shown: shown, lambda rows: rows)]
    return [part(name or OBS, leaf) for name, leaf in leaves(env._observation.space)]


def leaves(space: gs.Space[Any], path: str = "") -> Iterator[tuple[str, gs.Space[Any]]]:
    """The plain spaces within a space, each by the name that the policy's spec has for it."""
    if not isinstance(space, (gs.Dict, gs.Tuple)):
        yield path, space
        return
    inner = space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces)
    for key, entry in inner:
        yield from leaves(entry, f"{path}/{key}" if path else str(key))


def read(parts: Sequence[Part], shown: Sequence[Tensor], spec: Spec) -> Tensor:
    """Batches of all parts to rows of the policy's spec."""
    pieces = [part.read(piece) for part, piece in zip(parts, shown, strict=True)]
    if len(parts) == 1 and not isinstance(spec, Composite):
        return pieces[0]
    return torch.cat([piece.reshape(piece.shape[0], -1).to(spec.dtype) for piece in pieces], dim=1)


def show(parts: Sequence[Part], rows: Array) -> list[Array]:
    """Rows of the policy's spec to a batch of each part."""
    if len(parts) == 1:
        return [np.ascontiguousarray(parts[0].show(rows.reshape(len(rows), *parts[0].spec.shape)))]
    ends = np.cumsum([math.prod(part.spec.shape) for part in parts])
    pieces = np.split(rows, ends[:-1], axis=1)
    return [
        np.ascontiguousarray(part.show(piece.reshape(len(rows), *part.spec.shape).astype(NUMPY[part.spec.dtype])))
        for part, piece in zip(parts, pieces, strict=True)
    ]


def nested(env: Env, shown: Sequence[Array]) -> Any:
    """Batches of all parts in the form in which the environment shows them."""
    given = iter(shown)

    def member(space: gs.Space[Any]) -> Any:
        if isinstance(space, gs.Dict):
            return {key: member(entry) for key, entry in space.spaces.items()}
        if isinstance(space, gs.Tuple):
            return tuple(member(entry) for entry in space.spaces)
        return next(given)

    return member(env._observation.space) if isinstance(env, HostEnv) else next(given)


# observations --------------------------------------------------------------------------------------------------------


def part(name: str, space: gs.Space[Any]) -> Part:
    """One plain space, between the form it has outside and the one the policy reads."""
    spec = observation_reader(space).spec
    if isinstance(space, gs.Box):
        return box_part(name, space, spec)
    shape, kind = space.shape or (), dtype_of(space)
    if isinstance(space, (gs.Discrete, gs.MultiDiscrete)):
        start = np.asarray(space.start, np.int64)
        first = torch.as_tensor(start)
        return Part(
            name,
            space,
            spec,
            lambda shown: in_shape(shown.to(torch.int64) - first, spec.shape),
            lambda rows: (rows.reshape(-1, *shape) + start).astype(kind),
        )
    return Part(
        name, space, spec, lambda shown: shown.to(spec.dtype), lambda rows: rows.round().clip(0, 1).astype(kind)
    )


def box_part(name: str, space: gs.Box, spec: Spec) -> Part:
    """Numbers as they are, pictures with their channels first, brightnesses of what is too small for a picture in [0, 1]."""
    picture = is_image(spec)
    bright = space.dtype == np.uint8 and isinstance(spec, Box) and spec.high == 1.0
    channels_last = picture and len(space.shape) == 3 and space.shape != spec.shape
    stack_of_last = picture and len(space.shape) == 4 and space.shape[3] in CHANNELS
    unit, kind = 255 if bright else 1, dtype_of(space)

    def read(shown: Tensor) -> Tensor:
        if channels_last:
            return shown.permute(0, 3, 1, 2).to(spec.dtype)
        if stack_of_last:
            return in_shape(shown.permute(0, 1, 4, 2, 3).to(spec.dtype), spec.shape)
        numbers = in_shape(shown.to(spec.dtype), spec.shape)
        return numbers / unit if bright else numbers

    def show(rows: Array) -> Array:
        if stack_of_last:
            frames, height, width, channels = space.shape
            numbers = np.moveaxis(rows.reshape(-1, frames, channels, height, width), 2, -1)
        else:
            numbers = np.moveaxis(rows, 1, -1) if channels_last else rows.reshape(-1, *space.shape)
        if spec.dtype == torch.uint8:
            return numbers
        if kind.kind == "f":  # whatever the bounds say: some engines' are wrong
            return numbers.astype(kind)
        least, most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        return np.clip((numbers.astype(np.float64) * unit).round(), least, most).astype(kind)

    return Part(name, space, spec, read, show)


# actions -------------------------------------------------------------------------------------------------------------


def writer(env: Env) -> Callable[[Tensor], Tensor]:
    """What `HostEnv.decode` does to a batch of actions; nothing, where the environment takes tensors."""
    if not isinstance(env, HostEnv):
        return lambda action: action
    space = env._action.space
    shape, kind = space.shape or (), torch.from_numpy(np.empty(0, dtype_of(space))).dtype
    if isinstance(space, gs.Box):
        if kind == torch.float32:
            return lambda action: action
        low, high = (torch.from_numpy(end.astype(dtype_of(space))) for end in (space.low, space.high))
        return lambda action: torch.minimum(torch.maximum(action.to(kind), low), high)
    start = torch.as_tensor(np.asarray(getattr(space, "start", 0), np.int64))
    return lambda action: (in_shape(action, shape) + start).to(kind)


def action_space(env: Env) -> gs.Space[Any]:
    return env._action.space if isinstance(env, HostEnv) else space_of(env.action)


def in_shape(batch: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The rows of a batch in another shape; no node of the graph where they have it already."""
    return batch if batch.shape[1:] == shape else batch.reshape(-1, *shape)


# in words ------------------------------------------------------------------------------------------------------------


def space_of(spec: Spec) -> gs.Space[Any]:
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


def described(space: gs.Space[Any]) -> dict[str, Any]:
    """A plain space in words and numbers that JSON has. A bound is one number where all are the same, null where there is
    none."""
    words: dict[str, Any] = {
        "space": type(space).__name__,
        "shape": list(space.shape or ()),
        "dtype": dtype_of(space).name,
    }
    if isinstance(space, gs.Discrete):
        return words | {"n": int(space.n), "start": int(space.start)}
    if isinstance(space, gs.MultiDiscrete):
        return words | {"n": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
    if isinstance(space, gs.Box):
        return words | {"low": finite_bound(space.low), "high": finite_bound(space.high)}
    return words


def finite_bound(values: Array) -> Any:
    ends = bound(values)
    each = [end if math.isfinite(end) else None for end in (ends if isinstance(ends, tuple) else (ends,))]
    return each if isinstance(ends, tuple) else each[0]


def dtype_of(space: gs.Space[Any]) -> np.dtype[Any]:
    """What the environment hands out. Numbers longer than 64 bits are handed over as 64: no graph has them."""
    kind = np.dtype(space.dtype)
    return np.dtype(np.float64) if kind.itemsize > 8 else kind
