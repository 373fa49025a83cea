"""A run as it was before a phase, kept on the device at the cost of a copy: where to go back to when the phase goes wrong."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from .state import State


class Snapshot:
    """Room for one state of one run. State keeps its addresses, so that what to copy is listed once."""

    def __init__(self, state: State) -> None:
        self.state = state
        live = live_tensors(state)
        self.strips = [Strip(alike) for alike in by_dtype([x for x in live if x.is_contiguous()])]
        self.loose = [
            (x, x.clone()) for x in live if not x.is_contiguous() and 0 not in x.stride()
        ]  # 0: never written to
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
        for strip in self.strips:
            strip.take()
        for live, kept in self.loose:
            kept.copy_(live)
        if state.env.resumable:
            self.env = getattr(state.env, "snapshot", state.env.state_dict)()  # copies, of whatever it holds now

    def restore(self) -> None:
        """Put the state back, bit for bit. An env that cannot be put back stays where it is."""
        state = self.state
        for strip in self.strips:
            strip.restore()
        for live, kept in self.loose:
            live.copy_(kept)
        for name, x in self.counters.items():
            setattr(state, name, x)
        if state.env.resumable:
            state.env.load_state_dict(self.env)


class Strip:
    """Tensors of one type end to end: one copy, whatever their number."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.live = [tensor.view(-1) for tensor in tensors]
        self.kept = torch.cat(self.live)

    def take(self) -> None:
        torch.cat(self.live, out=self.kept)

    def restore(self) -> None:
        torch._foreach_copy_(self.live, torch.split(self.kept, [len(x) for x in self.live]))


def live_tensors(state: State) -> list[Tensor]:
    """Every tensor that a phase changes and the next one builds on, but for the env's."""
    optimizer = state.optimizer
    tensors = [optimizer.flat, optimizer.first_moment, optimizer.second_moment, optimizer.step, optimizer.learning_rate]
    tensors += state.policy.buffers()  # parameters are views of the flat one
    tensors += [x for f in fields(state) if isinstance(x := getattr(state, f.name), Tensor)]
    return tensors


def by_dtype(tensors: list[Tensor]) -> list[list[Tensor]]:
    kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
    return [[tensor for tensor in tensors if tensor.dtype == kind] for kind in kinds]
