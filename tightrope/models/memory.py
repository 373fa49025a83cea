"""Memories: recurrent layers between a trunk and its heads, for environments that do not show all that matters.

A memory turns features into other features and keeps a state, one row of numbers per environment. An episode starts with zeros.
A module is a memory if it has two methods and two numbers:

    step(x, state) -> (features, state)       one step: x (B, F), state (B, state_size), features (B, out_features)
    unroll(x, state, first) -> features       sequences: x (n, T, F), state (n, state_size) before the first step,
                                              first (n, T) with 1 where an episode starts, features (n, T, out_features)

`Memory` is a base class with an `unroll` that calls `step`. Acting uses `step`, learning uses `unroll`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..types import Box, Composite, Spec
from .action_mask import OBSERVATION
from .networks import Trunk, orthogonal
from .observation_groups import GroupTrunk

MEMORY = "memory"  # name of the part of a row
LONGEST = 100  # steps over which the slowest units of a new memory forget


class Memory(nn.Module):
    """A recurrent layer. A subclass sets `state_size` and `out_features` and defines `step`."""

    state_size: int
    out_features: int
    scans = False  # whether `unroll` computes all steps at once

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features (B, out_features) and the next state (B, state_size) for one step."""
        raise NotImplementedError

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> Tensor:
        """Return the features (n, T, out_features) of sequences. The state starts from zeros where `first` is 1."""
        features, kept = [], (1 - first).unbind(1)
        for t, row in enumerate(x.unbind(1)):
            out, state = self.step(row, state * kept[t].unsqueeze(1))
            features.append(out)
        return torch.stack(features, 1)


def gates(in_features: int, size: int, count: int) -> nn.Linear:
    """A linear layer to `count` gates side by side, each orthogonal."""
    layer = nn.Linear(in_features, count * size)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([orthogonal(nn.Linear(in_features, size), 1.0).weight for _ in range(count)]))
        layer.bias.zero_()
    return layer


def time_scales(size: int) -> Tensor:
    """Biases with which new gates keep from 1/2 to 0.99 of the state in a step: some units forget soon, others hardly, so that
    gradients reach far back from the start (Tallec, Ollivier 2018, arXiv:1804.11188)."""
    return torch.linspace(0.0, math.log(LONGEST - 1), size)


class GRU(Memory):
    """Gated recurrent unit, with the equations of torch.nn.GRU (Cho et al. 2014, arXiv:1406.1078)."""

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size = self.state_size = self.out_features = size
        self.inputs, self.recurrent = gates(in_features, size, 3), gates(size, size, 3)
        self.inputs.bias.data[size : 2 * size] = time_scales(size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self._next(self.inputs(x), state)
        return state, state

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> Tensor:
        states, kept = [], (1 - first).unsqueeze(2).unbind(1)
        for t, row in enumerate(self.inputs(x).unbind(1)):  # all inputs in one product
            state = self._next(row, state * kept[t])
            states.append(state)
        return torch.stack(states, 1)

    def _next(self, inputs: Tensor, state: Tensor) -> Tensor:
        both = [2 * self.size, self.size]
        seen, seen_new = inputs.split_with_sizes(both, 1)
        known, known_new = self.recurrent(state).split_with_sizes(both, 1)
        reset, keep = torch.sigmoid(seen + known).chunk(2, 1)
        new = torch.tanh(seen_new + reset * known_new)
        return new + keep * (state - new)


class LSTM(Memory):
    """Long short-term memory, with the equations of torch.nn.LSTM but the candidate as the last gate. Its state is the
    output and the cell, side by side."""

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size = self.out_features = size
        self.state_size = 2 * size
        self.inputs, self.recurrent = gates(in_features, size, 4), gates(size, size, 4)
        self.inputs.bias.data[size : 2 * size] = time_scales(size)
        self.inputs.bias.data[:size] = -time_scales(size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out, cell = self._next(self.inputs(x), *state.chunk(2, 1))
        return out, torch.cat([out, cell], 1)

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> Tensor:
        outs, kept = [], (1 - first).unsqueeze(2).unbind(1)
        out, cell = state.chunk(2, 1)
        for t, row in enumerate(self.inputs(x).unbind(1)):
            out, cell = self._next(row, out * kept[t], cell * kept[t])
            outs.append(out)
        return torch.stack(outs, 1)

    def _next(self, inputs: Tensor, out: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        opened, new = (inputs + self.recurrent(out)).split_with_sizes([3 * self.size, self.size], 1)
        write, keep, show = torch.sigmoid(opened).chunk(3, 1)  # one call for the three: in learning, calls cost most
        cell = write * torch.tanh(new) + keep * cell
        return show * torch.tanh(cell), cell


class MinGRU(Memory):
    """Minimal GRU (Feng et al. 2024, arXiv:2410.01201): h' = (1 - z) h + z n, where z and n depend on the input alone.

    So a whole sequence is one scan of logarithmic depth. A tanh layer over state and input follows, since h is linear in n."""

    scans = True

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.size = self.state_size = self.out_features = size
        self.inputs = gates(in_features, size, 2)
        self.out = orthogonal(nn.Linear(size + in_features, size), math.sqrt(2))
        self.inputs.bias.data[:size] = -time_scales(size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        keep, new = self._gates(x)
        state = new + keep * state
        return self._features(state, x), state

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> Tensor:
        keep, new = self._gates(x)
        keep = keep * (1 - first).unsqueeze(2)
        new = torch.cat([new[:, :1] + keep[:, :1] * state.unsqueeze(1), new[:, 1:]], 1)
        return self._features(scan(keep, new), x)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The share of the state that is kept, and what is added to it."""
        write, new = self.inputs(x).chunk(2, -1)
        write = torch.sigmoid(write)
        return 1 - write, write * new

    def _features(self, state: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.out(torch.cat([state, x], -1)))


def scan(factor: Tensor, added: Tensor) -> Tensor:
    """h_t = factor_t h_{t-1} + added_t with h_{-1} = 0, along dimension 1 of (n, T, H), in log2(T) steps (Hillis, Steele 1986).

    After a step of width w, factor and added of t are those of all 2 w steps up to t."""
    width, length = 1, added.shape[1]
    while width < length:
        later = factor[:, width:]
        joined = added[:, width:] + later * added[:, :-width]
        added = torch.cat([added[:, :width], joined], 1)
        width *= 2
        if width < length:  # the last step needs no factors
            half = width // 2
            factor = torch.cat([factor[:, :half], later * factor[:, :-half]], 1)
    return added


class Stack(Memory):
    """Several memories, each on the features of the one before it."""

    def __init__(self, layers: Sequence[Memory]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.sizes = [layer.state_size for layer in layers]
        self.state_size, self.out_features = sum(self.sizes), layers[-1].out_features

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = []
        for layer, part in zip(self._each(), state.split_with_sizes(self.sizes, 1), strict=True):
            x, following = layer.step(x, part)
            states.append(following)
        return x, torch.cat(states, 1)

    def unroll(self, x: Tensor, state: Tensor, first: Tensor) -> Tensor:
        for layer, part in zip(self._each(), state.split_with_sizes(self.sizes, 1), strict=True):
            x = layer.unroll(x, part, first)
        return x

    def _each(self) -> list[Memory]:
        return [cast(Memory, layer) for layer in self.layers]


MEMORIES: dict[str, type[Memory]] = {"gru": GRU, "lstm": LSTM, "mingru": MinGRU}


def memory_for(kind: type[Memory], in_features: int, size: int, layers: int) -> Memory:
    """Build `layers` memories of one kind, on top of each other. UsageError for a class that is no memory."""
    made: list[Memory] = []
    for _ in range(layers):
        made.append(checked_memory(kind, in_features, size))
        in_features = made[-1].out_features
    return made[0] if layers == 1 else Stack(made)


def checked_memory(kind: type[Memory], in_features: int, size: int) -> Memory:
    """Build one memory, and try both methods of a user's own."""
    if kind in MEMORIES.values():
        return kind(in_features, size)
    name, rows, steps = getattr(kind, "__name__", str(kind)), 2, 3
    try:
        made: Memory = kind(in_features, size)
        generator = torch.Generator().manual_seed(0)
        x, state = (
            torch.randn(*shape, generator=generator) for shape in ((rows, steps, in_features), (rows, made.state_size))
        )
        first = torch.tensor([[0.0, 1.0, 0.0]] * rows)  # an episode starts at the second step
        with torch.no_grad():
            features, following = made.step(x[:, 0], state)
            unrolled = made.unroll(x, state, first)
        found = tuple(features.shape), tuple(following.shape), tuple(unrolled.shape)
    except Exception as error:
        reason = f"{type(error).__name__} {error}".strip().splitlines()[0]
        raise UsageError(f"memory {name} cannot be made and called: {reason}; see tr.models.memory.Memory") from None
    out = made.out_features
    if found != ((rows, out), (rows, made.state_size), (rows, steps, out)):
        want = f"({rows}, {out}) and ({rows}, {made.state_size}) from step, ({rows}, {steps}, {out}) from unroll"
        raise UsageError(f"memory {name} returns shapes {found[0]}, {found[1]}, {found[2]}: return {want}")
    with torch.no_grad():
        stepwise = Memory.unroll(made, x, state, first)
    if not torch.allclose(unrolled, stepwise, rtol=1e-3, atol=1e-4):
        raise UsageError(f"memory {name} unrolls other features than its steps give: start from zeros where first is 1")
    return made


class RecurrentTrunk(nn.Module):
    """A trunk followed by a memory."""

    def __init__(self, trunk: Trunk | GroupTrunk, memory: Memory) -> None:
        super().__init__()
        self.trunk, self.memory = trunk, memory
        self.out_features, self.state_size = memory.out_features, memory.state_size

    def forward(self, obs: Tensor, state: Tensor, first: Tensor) -> Tensor:
        """Features (n T, F) of n sequences of T observations (n T, ...), with state (n, S) and first (n, T)."""
        return self.memory.unroll(self.trunk(obs).unflatten(0, first.shape), state, first).flatten(0, 1)

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, F) and the next state (B, S) of single observations (B, ...)."""
        return self.memory.step(self.trunk(obs), state)


class MemoryRows:
    """The layout of the rows of a policy with memory."""

    def __init__(self, observation: Spec, state_size: int) -> None:
        self.observation, self.state_size = observation, state_size
        self.width = math.prod(observation.shape)  # numbers of an observation
        parts = observation.parts if isinstance(observation, Composite) else ((OBSERVATION, observation),)
        self.spec = Composite((*parts, (MEMORY, Box((1 + state_size,)))))

    def join(self, obs: Tensor, first: Tensor, state: Tensor) -> Tensor:
        """Rows of observations (N, ...), flags (N,) and states (N, S)."""
        return torch.cat([obs.reshape(obs.shape[0], -1).float(), first.float().unsqueeze(1), state], 1)

    def start(self, obs: Tensor) -> Tensor:
        """Rows of the first observations of episodes."""
        return self.join(obs, obs.new_ones(len(obs)), torch.zeros(len(obs), self.state_size, device=obs.device))

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers of observations, flags and states of rows (..., row), or parts of states in sequences."""
        obs, first, state = rows.split_with_sizes([self.width, 1, rows.shape[-1] - self.width - 1], -1)
        return obs, first.squeeze(-1), state

    def split_sequences(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Of sequences (n, T, ...), see sequences.py: the numbers of observations, flags, the first states (n, state_size), and
        where a step is valid, if that is given."""
        share = -(-self.state_size // rows.shape[1])  # of the state in each row
        valid = rows[..., -1] if rows.shape[-1] > self.width + 1 + share else None
        rows = rows[..., : self.width + 1 + share]
        obs, first, parts = self.split(rows)
        return obs, first, parts.flatten(1)[:, : self.state_size], valid

    def split_action(self, rows: Tensor, action: Spec) -> tuple[Tensor, Tensor]:
        """The actions for an environment, and the states, in rows that a policy with memory returns."""
        given, state = rows.split_with_sizes([math.prod(action.shape), self.state_size], 1)
        return given.reshape(-1, *action.shape).to(action.dtype), state

    def observed(self, rows: Tensor) -> Tensor:
        """The observations (B, ...) in rows (B, row)."""
        return rows[:, : self.width].reshape(-1, *self.observation.shape).to(self.observation.dtype)
