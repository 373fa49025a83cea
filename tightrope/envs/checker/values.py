"""Examine and compare values that environments return: members of spaces, arrays, trajectories, random streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import gymnasium.spaces as gs
import numpy as np
from torch import Tensor

from ...models.hybrid_spec import flat_parts
from ...types import Box, Composite, Spec
from ..adapters.space_members import entries_of, space_text
from ..random_streams import GENERATORS, GLOBAL_STREAMS, generator_state
from ..step_arrays import Array
from ..validate import describe_value, short_text

Violation = tuple[Literal["error", "warning"], str, str]  # level, check and message
Trace = list[tuple[str, Array]]  # what a trajectory showed, in order, each by its name


def same_numbers(one: object, other: Any) -> bool:
    """Whether two arrays, tensors or containers of them hold the same numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_numbers(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same_numbers, one, other))
    a, b = (x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (one, other))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def differs_at(one: Array, other: Array) -> Array:
    """Where two arrays differ; nan equals nan."""
    return (one != other) & ((one == one) | (other == other))


def difference(one: Trace, other: Trace) -> str | None:
    """The first thing in which two trajectories differ."""
    for (name, a), (_, b) in zip(one, other, strict=True):
        differing = np.argwhere(differs_at(a, b))
        if len(differing):
            at = tuple(differing[0])
            return f"{name} differs: {a[at]:.6g} and {b[at]:.6g} in row {at[0]}"
    return None


def scalar_label(spec: Spec, index: int) -> str:
    """The name of one number of an observation, such as obs['camera'][0, 2]."""
    for name, part in flat_parts(spec):
        size = math.prod(part.shape)
        if index < size:
            whole = f"obs[{name!r}]" if name else "obs"
            return f"{whole}{[int(i) for i in np.unravel_index(index, part.shape)] if part.shape else ''}"
        index -= size
    raise IndexError(index)


def limits(spec: Box) -> tuple[Array, Array]:
    """The bounds of every entry."""
    low, high = (
        np.full(spec.shape, np.reshape(bound, spec.shape) if isinstance(bound, tuple) else bound, np.float64)
        for bound in (spec.low, spec.high)
    )
    return low, high


def uniform_actions(spec: Spec, rows: int, rng: np.random.Generator) -> Array:
    """Random actions (rows, ...); where there is no bound, numbers between two that are 2 apart."""
    if isinstance(spec, Composite):
        parts = [uniform_actions(part, rows, rng).reshape(rows, -1) for _, part in flat_parts(spec)]
        return np.concatenate(parts, 1).astype(np.float32)
    if isinstance(spec, Box):
        low, high = limits(spec)
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, -1.0))
        high = np.where(np.isfinite(high), high, low + 2)
        return (low + rng.random((rows, *low.shape)) * (high - low)).astype(np.float32)
    return (rng.random((rows, *spec.shape)) * np.asarray(spec.n)).astype(np.int64)


def extreme_action(spec: Spec, side: int) -> Array | None:
    """The lowest (0) or highest (1) action; None where there is none."""
    if isinstance(spec, Composite):
        found = (extreme_action(part, side) for _, part in flat_parts(spec))
        parts = [part.flatten() for part in found if part is not None]
        return np.concatenate(parts).astype(np.float32) if len(parts) == len(flat_parts(spec)) else None
    if isinstance(spec, Box):
        bound = limits(spec)[side].astype(np.float32)
        return bound if np.isfinite(bound).all() else None
    return np.asarray(side * (np.asarray(spec.n) - 1))


def spec_range(spec: Spec) -> tuple[Array, Array]:
    """The smallest and the largest that each number of an observation can be."""
    if isinstance(spec, Composite):
        low, high = zip(*(spec_range(part) for _, part in spec.parts), strict=True)
        return np.concatenate(low), np.concatenate(high)
    if isinstance(spec, Box):
        least, most = limits(spec)
        return least.flatten(), most.flatten()
    most = np.atleast_1d(np.asarray(spec.n)) - 1
    return np.zeros_like(most), most


def space_violations(space: object, value: Any, place: str = "") -> Iterator[Violation]:
    """The reasons why a value is not a member of a Gymnasium space: level, check and message."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        parts = dict(entries_of(space))
        kind = dict if isinstance(space, gs.Dict) else tuple
        values = dict(enumerate(value)) if isinstance(value, tuple) else value
        if not isinstance(value, kind) or set(values) != set(parts):
            message = f"{at(place)} is {describe_value(value)}, not a {kind.__name__} of {list(parts)}"
            yield "error", "structure", message
            return
        for key, part in parts.items():
            yield from space_violations(part, values[key], f"{place}[{key!r}]")
        return
    if not isinstance(space, (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary)):
        if isinstance(space, gs.Space) and not space.contains(value):
            yield (
                "error",
                "structure",
                f"{at(place)} is {describe_value(value)}, not in {short_text(space_text(space))}",
            )
        return
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        yield "error", "structure", f"{at(place)} is {describe_value(value)}, not numbers"
    elif array.shape != space.shape:
        yield "error", "shape", f"{at(place)} is {describe_value(value)}, not of shape {space.shape}"
    else:
        yield from number_violations(space, value, array, place)


def number_violations(space: Any, value: object, array: Array, place: str) -> Iterator[Violation]:
    """The reasons why an array of the right shape is not a member of the space: its dtype and its bounds."""
    plain = not isinstance(value, (np.ndarray, np.generic))  # Python's numbers have no dtype to be wrong
    if plain and space.shape:
        yield "warning", "structure", f"{at(place)} is {describe_value(value)}, not an array"
    fitting = plain or np.can_cast(array.dtype, space.dtype) if isinstance(space, gs.Box) else array.dtype.kind in "biu"
    if not fitting:
        yield "error", "dtype", f"{at(place)} has dtype {array.dtype}, not {space.dtype}"
    low: Any = 0
    high: Any = 1
    if isinstance(space, gs.Box):
        low, high = space.low, space.high
    elif not isinstance(space, gs.MultiBinary):
        low, high = space.start, space.start + (space.n if isinstance(space, gs.Discrete) else space.nvec) - 1
    outside = (array < low) | (array > high)
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        least, most = (np.broadcast_to(bound, array.shape)[index] for bound in (low, high))
        message = f"{at(place, *index)} is {array[index]:.6g}, outside [{least:.6g}, {most:.6g}]"
        yield "warning" if isinstance(space, gs.Box) else "error", "bounds", message


def at(place: str, *index: int) -> str:
    """' at [2]' for a part of a value, nothing for the whole of it."""
    return f" at {place}{list(index) or ''}" if place or index else ""


def global_streams() -> dict[str, Any]:
    """The positions of the random generators that all code shares."""
    return {name: generator_state(stream) for name, stream in GLOBAL_STREAMS.items()}


def own_streams(env: object) -> list[Any]:
    """The positions of the random generators that an environment holds."""
    values = getattr(getattr(env, "unwrapped", env), "__dict__", {}).values()
    return [generator_state(value) for value in values if isinstance(value, GENERATORS)]
