"""What environments hand out, looked at and compared: members of spaces, arrays, trajectories, random streams."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import torch
from torch import Tensor

from ...types import Box, Composite, Spec
from ..step_arrays import Array
from ..validate import brief, described
from .report import Level

Seen = list[tuple[str, Array]]  # what a trajectory showed, in order, each by its name


def same(one: Any, other: Any) -> bool:
    """Whether two things hold the same numbers, in whatever they are kept."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    a, b = (x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (one, other))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


def unequal(one: Array, other: Array) -> Array:
    """Where two arrays differ; a nan is the same as a nan."""
    return (one != other) & ((one == one) | (other == other))


def difference(one: Seen, other: Seen) -> str | None:
    """The first thing in which two trajectories differ."""
    for (name, a), (_, b) in zip(one, other, strict=True):
        differing = np.argwhere(unequal(a, b))
        if len(differing):
            at = tuple(differing[0])
            return f"{name} differs: {a[at]:.6g} and {b[at]:.6g} in row {at[0]}"
    return None


def parts_of(spec: Spec) -> list[tuple[str, Spec]]:
    return [(f"[{name!r}]", part) for name, part in spec.parts] if isinstance(spec, Composite) else [("", spec)]


def entry(spec: Spec, index: int) -> str:
    """The name of one number of an observation."""
    for name, part in parts_of(spec):
        size = math.prod(part.shape)
        if index < size:
            place = [int(i) for i in np.unravel_index(index, part.shape)] if part.shape else ""
            return f"obs{name}{place}"
        index -= size
    raise IndexError(index)


def limits(spec: Box) -> tuple[Array, Array]:
    """The bounds of every entry."""
    low, high = (
        np.full(spec.shape, np.reshape(bound, spec.shape) if isinstance(bound, tuple) else bound, np.float64)
        for bound in (spec.low, spec.high)
    )
    return low, high


def span(spec: Spec) -> tuple[Array, Array]:
    """The least and the greatest that each number of an observation can be."""
    if isinstance(spec, Composite):
        low, high = zip(*(span(part) for _, part in spec.parts), strict=True)
        return np.concatenate(low), np.concatenate(high)
    if isinstance(spec, Box):
        least, most = limits(spec)
        return least.flatten(), most.flatten()
    most = np.atleast_1d(np.asarray(spec.n)) - 1
    return np.zeros_like(most), most


def misfits(space: Any, value: Any, place: str = "") -> Iterator[tuple[Level, str, str]]:
    """What keeps a value from being a member of a space of Gymnasium's: level, check and words."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        parts: dict[Any, Any] = dict(space.spaces.items() if isinstance(space, gs.Dict) else enumerate(space.spaces))
        kind = dict if isinstance(space, gs.Dict) else tuple
        held = dict(enumerate(value)) if isinstance(value, tuple) else value
        if not isinstance(value, kind) or set(held) != set(parts):
            yield "error", "structure", f"{here(place)} is {described(value)}, not a {kind.__name__} of {list(parts)}"
            return
        for key, part in parts.items():
            yield from misfits(part, held[key], f"{place}[{key!r}]")
        return
    if not isinstance(space, (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary)):
        if isinstance(space, gs.Space) and not space.contains(value):
            yield "error", "structure", f"{here(place)} is {described(value)}, not in {brief(space)}"
        return
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal length
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        yield "error", "structure", f"{here(place)} is {described(value)}, not numbers"
    elif array.shape != space.shape:
        yield "error", "shape", f"{here(place)} is {described(value)}, not of shape {space.shape}"
    else:
        yield from misfit_numbers(space, value, array, place)


def misfit_numbers(space: Any, value: Any, array: Array, place: str) -> Iterator[tuple[Level, str, str]]:
    """What keeps an array of the right shape from being a member of the space."""
    plain = not isinstance(value, (np.ndarray, np.generic))  # numbers of Python's have no dtype to be wrong
    if plain and space.shape:
        yield "warning", "structure", f"{here(place)} is {described(value)}, not an array"
    fitting = plain or np.can_cast(array.dtype, space.dtype) if isinstance(space, gs.Box) else array.dtype.kind in "biu"
    if not fitting:
        yield "error", "dtype", f"{here(place)} has dtype {array.dtype}, not {space.dtype}"
    first: Any = 0
    last: Any = 1
    if isinstance(space, gs.Box):
        first, last = space.low, space.high
    elif not isinstance(space, gs.MultiBinary):
        first, last = space.start, space.start + (space.n if isinstance(space, gs.Discrete) else space.nvec) - 1
    outside = (array < first) | (array > last)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        low, high = (np.broadcast_to(bound, array.shape)[at] for bound in (first, last))
        message = f"{here(place, *at)} is {array[at]:.6g}, outside [{low:.6g}, {high:.6g}]"
        yield "warning" if isinstance(space, gs.Box) else "error", "bounds", message


def here(place: str, *index: int) -> str:
    """' at [2]' in words about a part of something, nothing about the whole of it."""
    return f" at {place}{list(index) or ''}" if place or index else ""


def told(info: dict[str, Any], rows: Any) -> dict[int, tuple[float, float]]:
    """Return and length of finished rows as RecordEpisodeStatistics writes them, where it does."""
    final = info.get("final_info")
    source = info if "episode" in info else final if isinstance(final, dict) else {}
    try:
        returns, lengths = (np.atleast_1d(source["episode"][key]).astype(float) for key in ("r", "l"))
        mask = source.get("_episode", np.ones(len(returns), bool))
        return {int(row): (float(returns[row]), float(lengths[row])) for row in rows if mask[row]}
    except (KeyError, TypeError, IndexError, ValueError):
        return {}


def global_streams() -> dict[str, str]:
    """The random generators that all code shares, as they are now."""
    return {
        "numpy": where(np.random.get_state(legacy=False)),
        "random": where(random.getstate()),
        "torch": where(torch.get_rng_state().tolist()),
    }


def own_streams(env: Any) -> list[str]:
    """The random generators that an environment holds, as they are now."""
    held = getattr(getattr(env, "unwrapped", env), "__dict__", {}).values()
    numpy_ones = [where(thing.bit_generator.state) for thing in held if isinstance(thing, np.random.Generator)]
    older_ones = [where(thing.get_state(legacy=False)) for thing in held if isinstance(thing, np.random.RandomState)]
    return numpy_ones + older_ones + [where(thing.getstate()) for thing in held if isinstance(thing, random.Random)]


def where(state: Any) -> str:
    """The state of a random generator as text, whole."""
    with np.printoptions(threshold=sys.maxsize):
        return repr(state)
