"""Save and restore random generators: the global ones (random, numpy.random, torch) and those of an environment."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import torch

GLOBAL_STREAMS: dict[str, Any] = {  # the objects behind random.random(), np.random.rand() and torch.rand()
    "random": random.random.__self__,  # type: ignore[attr-defined]
    "numpy": np.random.rand.__self__,  # type: ignore[attr-defined]
    "torch": torch.default_generator,
}
streams_lock = threading.RLock()  # held while the global streams are changed and restored
GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
INDICES = {"pos": 624, "buffer_pos": 4}  # in NumPy's states, with the largest valid value: NumPy does not check them


def generator_state(generator: Any) -> Any:
    """The state of a generator, as JSON values."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes().hex()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return [version, list(words), gauss]
    if isinstance(generator, np.random.RandomState):
        return to_plain(generator.get_state(legacy=False))
    return to_plain(getattr(generator, "bit_generator", generator).state)


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator; raises an exception if the state is not valid."""
    if isinstance(generator, torch.Generator):
        words = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        if words.shape == generator.get_state().shape:  # they differ between kinds of device
            generator.set_state(words)
    elif isinstance(generator, random.Random):
        version, words, gauss = state
        generator.setstate((version, tuple(words), gauss))
    else:
        check_generator_state(state)
        if isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            getattr(generator, "bit_generator", generator).state = state


def check_generator_state(state: Any) -> None:
    """Check the indices in a NumPy state: with invalid ones NumPy reads outside of its memory."""
    inner = state["state"]
    for name, most in INDICES.items():
        for found in (state, inner):
            index = found.get(name, 0) if isinstance(found, dict) else 0
            if type(index) is not int or not 0 <= index <= most:
                raise ValueError(f"{name} {index} is not within 0 and {most}")
    if state["bit_generator"] == "MT19937" and len(inner["key"]) != INDICES["pos"]:
        raise ValueError(f"a key of {len(inner['key'])} words")


def to_plain(state: object) -> object:
    if isinstance(state, dict):
        return {name: to_plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


class GeneratorSnapshot:
    """The states of the global random generators and of the generators that an object holds."""

    def __init__(self, thing: object) -> None:
        sources = [
            *GLOBAL_STREAMS.values(),
            *(value for value in vars(thing).values() if isinstance(value, GENERATORS)),
        ]
        self.before = [(source, generator_state(source)) for source in sources]

    def restore(self) -> bool:
        """Restore all states, and return whether no generator was used meanwhile."""
        untouched = True
        for source, before in self.before:
            if generator_state(source) != before:
                set_generator_state(source, before)
                untouched = False
        return untouched
