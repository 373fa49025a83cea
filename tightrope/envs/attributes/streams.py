"""Random generators: where each stands, and how to move one there."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch

GLOBAL_STREAMS: tuple[Any, ...] = (  # the objects behind random.random(), np.random.rand() and torch.rand()
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
streams_lock = threading.RLock()  # for who changes them and puts them back: not two threads at once
GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
INDICES = {"pos": 624, "buffer_pos": 4}  # of NumPy's states, which it uses without looking, and the most each can be


def position(generator: Any) -> Any:
    """Where a generator stands, in values that JSON has."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes().hex()
    if isinstance(generator, np.random.Generator):
        return plain(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return plain(generator.state)
    if isinstance(generator, np.random.RandomState):
        return plain(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, list(words), gauss]


def move(generator: Any, given: Any) -> None:
    """Let a generator go on from a position. An exception, if that is none of its kind."""
    if isinstance(generator, torch.Generator):
        state = torch.frombuffer(bytearray.fromhex(given), dtype=torch.uint8)
        if state.shape == generator.get_state().shape:  # not so between kinds of device
            generator.set_state(state)
    elif isinstance(generator, random.Random):
        version, words, gauss = given
        generator.setstate((version, tuple(words), gauss))
    else:
        check(given)
        if isinstance(generator, np.random.RandomState):
            generator.set_state(given)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = given
        else:
            generator.state = given


def check(state: Any) -> None:
    """NumPy reads from beyond the end of its memory where an index is not within it."""
    inner = state["state"]
    for name, most in INDICES.items():
        for found in (state, inner):
            index = found.get(name, 0) if isinstance(found, dict) else 0
            if type(index) is not int or not 0 <= index <= most:
                raise ValueError(f"{name} {index} is not within 0 and {most}")
    if state["bit_generator"] == "MT19937" and len(inner["key"]) != INDICES["pos"]:
        raise ValueError(f"a key of {len(inner['key'])} words")


def plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


class Randomness:
    """Where the process's random streams and those that an object holds stand."""

    def __init__(self, thing: Any) -> None:
        sources = [*GLOBAL_STREAMS, *(value for value in vars(thing).values() if isinstance(value, GENERATORS))]
        self.before = [(source, position(source)) for source in sources]

    def back(self) -> bool:
        """Let all of them go on from there; whether none had been drawn from."""
        untouched = True
        for source, before in self.before:
            if position(source) != before:
                move(source, before)
                untouched = False
        return untouched
