"""An environment that is not here, of which a checkpoint has the spaces: enough to read observations and to write actions.

A checkpoint may come from a stranger: what it says about spaces is looked at before anything is made of it.
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
from ..options import MOST_NUMBERS, Array
from ..traced import described
from .host import HostEnv
from .spaces import action, observation

MOST_BOUNDS = 1 << 12  # that are written one by one
DEEPEST = 16  # Dict within Dict
KINDS: dict[str, type[gs.Space[Any]]] = {
    kind.__name__: kind for kind in (gs.Box, gs.Discrete, gs.MultiDiscrete, gs.MultiBinary, gs.Dict, gs.Tuple)
}
DTYPES = {np.dtype(kind).name for kind in "?bBhHiIlLqQefd"}


class AbsentEnv(HostEnv):
    """The spaces of an environment that runs outside torch, where it cannot be run."""

    backend = "absent"

    def __init__(self, name: str, shown: gs.Space[Any], taken: gs.Space[Any], device: torch.device) -> None:
        self.name = name
        self._describe(observation(shown), action(taken), 1, device)

    def _restart(self, seeds: Array | None) -> NoReturn:
        raise not_here(self.name)

    def _recv(self) -> NoReturn:
        raise not_here(self.name)

    def _twin(self, num_envs: int, drawn: bool) -> NoReturn:
        raise not_here(self.name)


class AbsentTensorEnv:
    """The same of an environment that takes and gives tensors."""

    def __init__(self, name: str, shown: Spec, taken: Spec, device: torch.device) -> None:
        self.name, self.observation, self.action, self.device = name, shown, taken, device

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> NoReturn:
        raise not_here(self.name)


def not_here(name: str) -> UsageError:
    return UsageError(f"env {name!r} is not here: only its spaces were loaded. tr.load(path, env=...) brings one")


# to JSON -------------------------------------------------------------------------------------------------------------


def written_spaces(env: Any) -> Settings | None:
    """Both spaces of an environment as a checkpoint keeps them; None where it takes tensors, or if they have no such form."""
    if not isinstance(env, HostEnv):
        return None
    try:
        return {"observation": written(env._observation.space), "action": written(env._action.space)}
    except ValueError:
        return None


def written(space: gs.Space[Any]) -> Settings:
    """A space in words and numbers that JSON has; a ValueError where there are none for it."""
    kind = next((name for name, kind in KINDS.items() if isinstance(space, kind)), None)
    if isinstance(space, gs.Dict):
        if not all(type(key) in (str, int) for key in space.spaces):
            raise ValueError("names that JSON does not have")
        return {"space": kind, "entries": [[key, written(entry)] for key, entry in space.spaces.items()]}
    if isinstance(space, gs.Tuple):
        return {"space": kind, "entries": [[place, written(entry)] for place, entry in enumerate(space.spaces)]}
    words = {**described(space), "space": kind}
    if kind is None or any(isinstance(each, list) and len(each) > MOST_BOUNDS for each in words.values()):
        raise ValueError("no space that is written down")
    return words


# and back ------------------------------------------------------------------------------------------------------------


def read_space(words: Any, depth: int = 0) -> gs.Space[Any]:
    """The space behind such words; a ValueError says what is wrong with them."""
    kind = words.get("space") if isinstance(words, dict) else None
    if not isinstance(kind, str) or kind not in KINDS or depth > DEEPEST:
        raise ValueError(f"{str(words)[:40]!r} is no space")
    if kind in ("Dict", "Tuple"):
        return read_entries(kind, words.get("entries"), depth)
    shape, dtype = words.get("shape"), words.get("dtype")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"{kind} has no shape")
    if math.prod(shape) > MOST_NUMBERS:
        raise ValueError(f"{kind} has more than {MOST_NUMBERS:,} numbers")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{kind} has no dtype")
    size, number = math.prod(shape), np.dtype(dtype)
    if kind == "Discrete":
        n, start = whole_numbers(words.get("n"), 1, least=1), whole_numbers(words.get("start"), 1)
        return gs.Discrete(int(n[0]), start=int(start[0]), dtype=number.type)
    if kind == "MultiDiscrete":
        counts = whole_numbers(words.get("n"), size, least=1).reshape(shape)
        return gs.MultiDiscrete(counts, number.type, start=whole_numbers(words.get("start"), size).reshape(shape))
    if kind == "MultiBinary":
        return gs.MultiBinary(shape[0] if len(shape) == 1 else shape)
    low, high = (bounds(words.get(end), size, number, end).reshape(shape) for end in ("low", "high"))
    if (low > high).any():
        raise ValueError("Box has bounds the wrong way round")
    return gs.Box(low, high, dtype=number.type)


def read_entries(kind: str, entries: Any, depth: int) -> gs.Space[Any]:
    """A Dict or a Tuple from what it holds."""
    if not isinstance(entries, list) or not all(isinstance(entry, list) and len(entry) == 2 for entry in entries):
        raise ValueError(f"{kind} has no entries")
    if not all(type(key) in (str, int) for key, _ in entries):
        raise ValueError(f"{kind} has an entry without a name")
    inner = OrderedDict((key, read_space(words, depth + 1)) for key, words in entries)
    if sum(map(numbers, inner.values())) > MOST_NUMBERS:
        raise ValueError(f"{kind} has more than {MOST_NUMBERS:,} numbers")
    return gs.Dict(inner) if kind == "Dict" else gs.Tuple(tuple(inner.values()))


def numbers(space: gs.Space[Any]) -> int:
    """How many numbers a member has."""
    if isinstance(space, (gs.Dict, gs.Tuple)):
        return sum(map(numbers, space.spaces.values() if isinstance(space, gs.Dict) else space.spaces))
    return math.prod(space.shape or ())


def whole_numbers(values: Any, size: int, least: int = -(2**62)) -> Array:
    """Whole numbers, `size` of them in all."""
    flat = flattened(values)
    if len(flat) != size or not all(type(n) is int and least <= n < 2**62 for n in flat):
        raise ValueError("a choice has no whole number of options")
    return np.array(flat, np.int64)


def bounds(values: Any, size: int, dtype: np.dtype[Any], end: str) -> Array:
    """A bound of each number; None where there is none."""
    flat = flattened(values)
    if len(flat) not in (1, size) or not all(n is None or type(n) in (int, float) for n in flat):
        raise ValueError("Box has no bounds")
    if dtype.kind == "f":
        none = -math.inf if end == "low" else math.inf
        each = [none if n is None else float(n) for n in flat]
    else:
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, most = (0, 1) if info is None else (int(info.min), int(info.max))
        none = least if end == "low" else most
        each = [none if n is None else min(max(int(n), least), most) for n in flat]
    return np.broadcast_to(np.array(each, dtype), size).copy()


def flattened(values: Any, depth: int = 0) -> list[Any]:
    """A number, or lists of them to any sensible depth, as one list."""
    if not isinstance(values, list):
        return [values]
    if depth > 32:
        raise ValueError("numbers are nested too deeply")
    return [number for value in values for number in flattened(value, depth + 1)]
