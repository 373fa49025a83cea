"""Spaces without an engine: of tensor environments, as JSON, and of an environment that is not installed.

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
from ...types import Bound, Composite, Discrete, Env, MultiDiscrete, Settings, Spec
from ..step_arrays import MAX_SPACE_SIZE, Array
from .host import HostEnv
from .space_members import Space, entries_of
from .spaces import (
    NUMPY,
    OBS,
    ActionWriter,
    ObservationReader,
    Part,
    action_writer,
    bound,
    dtype_of,
    observation_reader,
)

MAX_BOUNDS = 1 << 12  # that are written one by one
MAX_DEPTH = 16  # Dict within Dict
MAX_INTEGER = 2**62
SPACES: dict[str, type[Space]] = {
    kind.__name__: kind for kind in (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Dict, gs.Tuple)
}
DTYPES = {np.dtype(kind).name for kind in "?bBhHiIlLqQefd"}


def reader_of(env: Env) -> ObservationReader:
    """The reader of an environment's observations; of a tensor environment's, one that changes nothing."""
    if isinstance(env, HostEnv):
        return env._observation
    space, spec = space_of(env.observation), env.observation
    return ObservationReader(space, spec, (Part(OBS, OBS, space, spec),))


def writer_of(env: Env) -> ActionWriter:
    """The writer of an environment's actions; of a tensor environment's, one that changes nothing."""
    return env._action if isinstance(env, HostEnv) else ActionWriter(space_of(env.action), env.action)


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


class SpacesOnlyEnv(HostEnv):
    """The spaces of an environment that runs outside torch, where it cannot be run."""

    backend = "none"

    def __init__(self, name: str, observation: Space, action: Space, device: torch.device) -> None:
        self.name = name
        self._set_spaces(observation_reader(observation), action_writer(action), 1, device)

    def _reset(self, seeds: Array | None) -> NoReturn:
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


def described(space: Space) -> Settings:
    """A plain space in values that JSON has. A bound is one number where all are the same, null where there is none."""
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


def spaces_to_json(env: HostEnv) -> Settings | None:
    """Both spaces of an environment as a checkpoint keeps them; None if one has no such form."""
    try:
        return {"observation": space_to_json(env._observation.space), "action": space_to_json(env._action.space)}
    except ValueError:
        return None


def space_to_json(space: Space) -> Settings:
    """A space in values that JSON has; a ValueError where that is not possible."""
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


def entries_from_json(kind: str, entries: object, depth: int) -> Space:
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


def size_of(space: Space) -> int:
    """How many numbers a member has."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        return sum(size_of(entry) for _, entry in entries_of(space))
    return math.prod(space.shape or ())


def integers(values: object, size: int, least: int = -MAX_INTEGER) -> Array:
    """`size` integers."""
    flat = flattened(values)
    if len(flat) != size or not all(type(n) is int and least <= n < MAX_INTEGER for n in flat):
        raise ValueError("a choice has no whole number of options")
    return np.array(flat, np.int64)


def bounds(values: object, size: int, dtype: np.dtype[Any], end: str) -> Array:
    """`size` bounds, from one for all or one for each; None stands for no bound."""
    flat = flattened(values)
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


def flattened(values: object, depth: int = 0) -> list[Any]:
    """A number, or lists of them to any sensible depth, as one list."""
    if not isinstance(values, list):
        return [values]
    if depth > 32:
        raise ValueError("numbers are nested too deeply")
    return [number for value in values for number in flattened(value, depth + 1)]
