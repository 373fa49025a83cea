"""What a tensor environment keeps besides its state: attributes of a subclass's own that change while it is stepped.

They belong to the run as the state does. Kept are tensors, arrays, numbers and random generators, whatever their names, each
as a tensor; an environment that keeps anything else extends `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

GLOBAL_STREAMS: tuple[Any, ...] = (  # the objects behind random.random(), np.random.rand() and torch.rand()
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
streams_lock = threading.RLock()  # for who changes them and puts them back: not two threads at once


class Kind(NamedTuple):
    """A kind of value that can be kept."""

    name: str
    type: Any
    write: Callable[[Any], Tensor]
    read: Callable[[Tensor, Any], Any]  # given what is there now
    fresh: Callable[[], Any] = lambda: None  # what is there where there was nothing


def text(value: Any) -> Tensor:
    return torch.tensor(list(json.dumps(value, default=lambda array: array.tolist()).encode()), dtype=torch.uint8)


def untext(tensor: Tensor) -> Any:
    return json.loads(bytes(tensor.tolist()))


def into_tensor(given: Tensor, there: Any) -> Tensor:
    """Written into the tensor that is there, which others may hold, if it fits."""
    if isinstance(there, Tensor) and (there.shape, there.dtype) == (given.shape, given.dtype):
        there.detach().copy_(given)
        return there
    return given.clone()


def into_torch(given: Tensor, there: Any) -> torch.Generator:
    if given.shape == there.get_state().shape:  # not so between kinds of device
        there.set_state(given.cpu())
    return there


def into_numpy(given: Tensor, there: Any) -> Any:
    there.bit_generator.state = untext(given)
    return there


def into_legacy(given: Tensor, there: Any) -> Any:
    there.set_state(untext(given))
    return there


def into_python(given: Tensor, there: Any) -> Any:
    version, words, gauss = untext(given)
    there.setstate((version, tuple(words), gauss))
    return there


STREAMS = (
    Kind("torch", torch.Generator, lambda x: x.get_state(), into_torch, torch.Generator),
    Kind("numpy", np.random.Generator, lambda x: text(x.bit_generator.state), into_numpy, np.random.default_rng),
    Kind(
        "legacy", np.random.RandomState, lambda x: text(x.get_state(legacy=False)), into_legacy, np.random.RandomState
    ),
    Kind("python", random.Random, lambda x: text(x.getstate()), into_python, random.Random),
)
KINDS = (
    Kind("tensor", Tensor, lambda x: x.detach().clone(), into_tensor),
    Kind("array", (np.ndarray, np.generic), lambda x: torch.from_numpy(np.array(x)), lambda x, _: x.numpy().copy()[()]),
    Kind("number", (bool, int), torch.tensor, lambda x, _: x.item()),
    Kind("number", float, lambda x: torch.tensor(x, dtype=torch.float64), lambda x, _: x.item()),
    *STREAMS,
)


def written(value: Any, kinds: tuple[Kind, ...] = KINDS) -> tuple[str, Tensor] | None:
    """(kind, tensor) of a value, None if it is of no kind that is kept."""
    for kind in kinds:
        if isinstance(value, kind.type):
            try:
                return kind.name, kind.write(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of objects, a number too large
                return None
    return None


def own(thing: Any, but: frozenset[str]) -> dict[str, Tensor]:
    """What an object keeps, by kind.name, except under these names."""
    found = {name: written(value) for name, value in vars(thing).items() if name not in but}
    return {f"{pair[0]}.{name}": pair[1] for name, pair in found.items() if pair is not None}


def changed(now: Mapping[str, Tensor], before: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """What is not as it was: what an object has been given once and for all is not part of how far it has come."""
    return {name: x for name, x in now.items() if before is None or name not in before or not same(x, before[name])}


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return alike and torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))


def put_back(thing: Any, given: Mapping[str, Tensor], but: frozenset[str]) -> None:
    """Give an object what it kept. Names come from a file: none may stand for something else than a value."""
    for key, tensor in given.items():
        kind_name, _, name = key.partition(".")
        kind = next((kind for kind in KINDS if kind.name == kind_name), None)
        inherited = getattr(type(thing), name, None)
        if kind is None or name in but or not name.isidentifier() or not (inherited is None or written(inherited)):
            raise RuntimeError(f"env has nothing of its own called {key[:40]!r}")
        there = vars(thing).get(name)
        there = there if isinstance(there, kind.type) else kind.fresh()
        try:
            setattr(thing, name, kind.read(tensor.to(getattr(there, "device", thing.device)), there))
        except Exception as error:
            raise RuntimeError(f"env's {name} is not one: {type(error).__name__}") from None


def copied(value: Any) -> Any:
    """A copy of what is kept, so that a step of one owner changes nothing of the other's; anything else is shared."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, torch.Generator):
        return value.clone_state()
    generators = (np.random.Generator, np.random.RandomState, random.Random)
    return copy.deepcopy(value) if isinstance(value, (np.ndarray, *generators)) else value


class Randomness:
    """Where the process's random streams and those that an object holds stand."""

    def __init__(self, thing: Any) -> None:
        sources = [*GLOBAL_STREAMS, *vars(thing).values()]
        kinds = [(source, kind) for source in sources for kind in STREAMS if isinstance(source, kind.type)]
        self.before = [(source, kind, kind.write(source)) for source, kind in kinds]

    def back(self) -> bool:
        """Let all of them go on from there; whether none had been drawn from."""
        untouched = True
        for source, kind, state in self.before:
            if not torch.equal(kind.write(source), state):
                kind.read(state, source)
                untouched = False
        return untouched
