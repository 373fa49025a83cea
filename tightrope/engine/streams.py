"""The process's own random streams: Python's, NumPy's, torch's on the CPU and on the run's device.

Tightrope draws nothing from them (see `noise`), but an environment or a network of a user's own may. While a run trains they
are the run's: they start from its seed, are saved with it and go on where they were; whoever called finds theirs untouched.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .noise import stream_seed


class Streams:
    """What a run's streams are, between the times that they are in force."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.device, self.in_use = device, False
        self.stored = seeded(seed, device)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, the process draws from the run's streams."""
        callers = drawn_from(self.device)
        draw_from(self.stored, self.device)
        self.in_use = True
        try:
            yield
        finally:
            self.stored, self.in_use = drawn_from(self.device), False
            draw_from(callers, self.device)

    def state_dict(self) -> dict[str, Tensor]:
        return drawn_from(self.device) if self.in_use else dict(self.stored)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes what fits: between kinds of device generators differ."""
        mine = self.state_dict()
        if missing := mine.keys() - state.keys() - {"cuda"}:
            raise KeyError(f"streams.{min(missing)}")
        self.stored = {k: state[k] if k in state and state[k].shape == v.shape else v for k, v in mine.items()}
        check(self.stored)
        if self.in_use:
            draw_from(self.stored, self.device)


@contextmanager
def apart(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, the process draws from streams of this seed; outside, nothing has happened."""
    with Streams(seed, device).in_force():
        yield


def seeded(seed: int, device: torch.device) -> dict[str, Tensor]:
    """The streams as one seed would start them, each on its own."""
    numpy = np.random.RandomState(stream_seed(seed, "numpy") % 2**32)
    state = from_python(random.Random(stream_seed(seed, "python"))) | from_numpy(numpy)
    state["torch"] = torch.Generator().manual_seed(stream_seed(seed, "torch")).get_state()
    if device.type == "cuda":
        state["cuda"] = torch.Generator(device).manual_seed(stream_seed(seed, "cuda")).get_state()
    return state


def drawn_from(device: torch.device) -> dict[str, Tensor]:
    """The process's streams as they are now."""
    state = from_python(random) | from_numpy(np.random)
    state["torch"] = torch.get_rng_state()
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def draw_from(state: dict[str, Tensor], device: torch.device) -> None:
    """Let the process go on from there."""
    into(state, random, np.random)
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def check(state: dict[str, Tensor]) -> None:
    """Raise if these are no generators' states, before anything draws from them."""
    into(state, random.Random(), np.random.RandomState())
    torch.Generator().set_state(state["torch"])


def into(state: dict[str, Tensor], python: Any, numpy: Any) -> None:
    kept, gauss = state["python.gauss"].tolist()
    python.setstate((3, tuple(state["python"].tolist()), gauss if kept else None))
    *key, position, has_gauss = state["numpy"].tolist()
    if not 0 <= position <= len(key):
        raise ValueError(f"streams.numpy has position {position} of {len(key)}")  # NumPy would read from beyond its end
    words = {"key": np.array(key, np.uint32), "pos": position}
    rest = {"has_gauss": has_gauss, "gauss": float(state["numpy.gauss"])}
    numpy.set_state({"bit_generator": "MT19937", "state": words, **rest})


def from_python(source: Any) -> dict[str, Tensor]:
    _, words, gauss = source.getstate()
    return {
        "python": torch.tensor(words),
        "python.gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),  # kept for the next call
    }


def from_numpy(source: Any) -> dict[str, Tensor]:
    state = source.get_state(legacy=False)
    words = [*state["state"]["key"].tolist(), state["state"]["pos"], state["has_gauss"]]
    return {"numpy": torch.tensor(words), "numpy.gauss": torch.tensor(state["gauss"], dtype=torch.float64)}
