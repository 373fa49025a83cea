"""A run as it was before a phase, kept on the device at the cost of a copy: where to go back to when the phase goes wrong."""

from __future__ import annotations

from dataclasses import fields
from itertools import groupby

import torch
from torch import Tensor

from .state import State


class Snapshot:
    """Room for one state of one run. State keeps its addresses, so that what to copy is listed once."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.live = [list(alike) for _, alike in groupby(live_tensors(state), lambda tensor: tensor.dtype)]
        self.kept = [[torch.empty_like(tensor) for tensor in alike] for alike in self.live]
        self.numbers = [f.name for f in fields(state) if isinstance(getattr(state, f.name), (int, float))]
        self.counters: dict[str, int | float] = {}
        self.env: dict[str, Tensor] = {}

    @property
    def phase(self) -> int | None:
        """The number of whole phases that it is from after; None while there is nothing in it."""
        phase = self.counters.get("phase")
        return None if phase is None else int(phase)

    def take(self) -> None:
        """Keep the state as it is now."""
        state = self.state
        self.counters = {name: getattr(state, name) for name in self.numbers}
        for kept, live in zip(self.kept, self.live, strict=True):
            torch._foreach_copy_(kept, live)
        if state.env.resumable:
            self.env = state.env.state_dict()  # copies already

    def restore(self) -> None:
        """Put the state back, bit for bit. An env that cannot be put back stays where it is."""
        state = self.state
        for live, kept in zip(self.live, self.kept, strict=True):
            torch._foreach_copy_(live, kept)
        for name, x in self.counters.items():
            setattr(state, name, x)
        if state.env.resumable:
            state.env.load_state_dict(self.env)


def live_tensors(state: State) -> list[Tensor]:
    """Every tensor that a phase changes and the next one builds on, but for the env's; those of a type side by side."""
    optimizer = state.optimizer
    tensors = [optimizer.flat, optimizer.first_moment, optimizer.second_moment, optimizer.step, optimizer.learning_rate]
    tensors += state.policy.buffers()  # parameters are views of the flat one
    tensors += [x for f in fields(state) if isinstance(x := getattr(state, f.name), Tensor)]
    return sorted(tensors, key=lambda tensor: str(tensor.dtype))
