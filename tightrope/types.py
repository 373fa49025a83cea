"""The records that flow: Step (env to loop), Rollout (T, N), Batch (B); the Env protocol; what spaces look like.

T is time within a rollout, N the number of parallel environments, B a flat batch of transitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

SHORT, ALIGNMENT = 64, 64  # numbers of a row; bytes
Settings = dict[str, Any]  # what a user may set, by name
Bound = float | tuple[float, ...]  # of every entry, or of each in row-major order


@dataclass(frozen=True)
class Box:
    """Arrays of a fixed shape between `low` and `high`: vectors, or images of bytes."""

    shape: tuple[int, ...]
    low: Bound = -float("inf")
    high: Bound = float("inf")
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Discrete:
    """One of the integers 0 .. n-1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True)
class MultiDiscrete:
    """Several integers, the i-th in 0 .. n[i]-1."""

    n: tuple[int, ...]
    dtype: torch.dtype = torch.int64

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.n),)


@dataclass(frozen=True)
class Composite:
    """Several named parts, which travel as one row of numbers and are taken apart by the network."""

    parts: tuple[tuple[str, Spec], ...]
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(math.prod(part.shape) for _, part in self.parts),)

    def split(self, row: Tensor) -> dict[str, Tensor]:
        """Rows (B, sum of sizes) to each part by name, in its own shape and type."""
        pieces = torch.split_with_sizes(row, [math.prod(part.shape) for _, part in self.parts], -1)
        pairs = zip(self.parts, pieces, strict=True)
        return {name: piece.reshape(*row.shape[:-1], *part.shape).to(part.dtype) for (name, part), piece in pairs}


Spec = Box | Discrete | MultiDiscrete | Composite


class Step(NamedTuple):
    """What one step of N environments returns.

    Where an episode ended, `obs` is already the first observation of the next one; `final_obs` is the true successor of
    the step in every row. `terminated` says that the task is over (its value is 0), `truncated` that only the clock ran
    out (its value is V(final_obs)); a row is never both.
    """

    obs: Tensor  # (N, ...)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    final_obs: Tensor  # (N, ...)
    real: Tensor | None = None  # (N,) bool: False where an engine only reset itself; None: all real


class Env(Protocol):
    """N copies of one environment. Same-step auto-reset; all randomness of a step comes in as `noise`.

    An engine with random streams of its own has noise_size 0 and is reproducible from the seed of its last seeded reset.
    """

    num_envs: int
    device: torch.device
    observation: Spec
    action: Spec
    noise_size: int  # uniform numbers a reset consumes, per environment
    capturable: bool  # True when step never reads a tensor on the host
    resumable: bool  # True when state_dict holds all there is to know; otherwise a resumed run starts fresh episodes
    skips: bool  # True when steps may have rows that are not real
    groups: int  # parts of the rows that can be stepped by turns, see GroupedEnv; 0 where there is only `step`

    @property
    def drawable(self) -> bool: ...  # True when draw needs nothing but observations
    @property
    def pace(self) -> int: ...  # steps that a video shows in a second

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor: ...
    def step(self, action: Tensor, noise: Tensor | None = None) -> Step: ...
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray: ...
    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self: ...
    def finished_episodes(self) -> Tensor: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...
    def close(self) -> None: ...


class GroupedEnv(Env, Protocol):
    """An Env whose rows are cut, as `tensor_split` cuts them, into groups that work side by side: what was sent to one is
    worked on while another is received, answered and sent."""

    def send(self, action: Tensor, group: int = 0) -> None: ...
    def recv(self, group: int = 0) -> Step: ...  # of that group's rows; overwritten by its next recv


class Row(NamedTuple):
    """One time step of a rollout, as views to be written through."""

    obs: Tensor  # (N, ...)
    action: Tensor  # (N, ...)
    log_prob: Tensor  # (N,)
    value: Tensor  # (N,)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    final_obs: Tensor  # (N, ...)
    real: Tensor  # (N,) bool

    def write_act(self, obs: Tensor, action: Tensor) -> None:
        """What the policy saw and did."""
        self.obs.copy_(obs)
        self.action.copy_(action)

    def write_evaluation(self, log_prob: Tensor | None = None, value: Tensor | None = None) -> None:
        """How likely it was and what the critic said, where that is known already."""
        if log_prob is not None and value is not None:
            self.log_prob.copy_(log_prob)
            self.value.copy_(value)

    def write_step(self, step: Step) -> None:
        """What came of it."""
        self.reward.copy_(step.reward)
        self.terminated.copy_(step.terminated)
        self.truncated.copy_(step.truncated)
        self.final_obs.copy_(step.final_obs)
        if step.real is not None:
            self.real.copy_(step.real)


def zeros_on_demand(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take up no memory of the host before they are written: NumPy asks for pages, torch fills them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    pages = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    start = -pages.data_ptr() % ALIGNMENT
    return pages[start : start + size].view(dtype).view(shape)


@dataclass
class Rollout:
    """T steps of N environments, preallocated once and overwritten each phase. Observations are raw and never aliases."""

    obs: Tensor  # (T, N, ...)
    action: Tensor  # (T, N, ...) as sampled, before any clipping to the env's bounds
    log_prob: Tensor  # (T, N)
    value: Tensor  # (T, N)
    reward: Tensor  # (T, N)
    terminated: Tensor  # (T, N) bool
    truncated: Tensor  # (T, N) bool
    final_obs: Tensor  # (T, N, ...)
    real: Tensor  # (T, N) bool: False where nothing happened, never learned from
    skips: bool = False  # whether there can be such rows
    groups: int = 1  # of environments that are stepped by turns

    @cached_property
    def rows(self) -> list[Row]:
        """Each time step as views, made once."""
        return [Row(*(getattr(self, name)[t] for name in Row._fields)) for t in range(self.reward.shape[0])]

    @cached_property
    def parts(self) -> list[Rollout]:
        """Each group's share, as views, made once."""
        cut = [getattr(self, name).tensor_split(self.groups, 1) for name in Row._fields]
        shares = (dict(zip(Row._fields, pieces, strict=True)) for pieces in zip(*cut, strict=True))
        return [replace(self, groups=1, **share) for share in shares]

    @classmethod
    def allocate(cls, num_steps: int, env: Env) -> Rollout:
        def empty(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = ()) -> Tensor:
            return zeros_on_demand((num_steps, env.num_envs, *shape), dtype, env.device)

        obs, action = env.observation, env.action
        action_shape = (math.prod(action.shape),) if isinstance(action, Box) else action.shape
        acted = empty(obs.dtype, obs.shape), empty(action.dtype, action_shape), empty(), empty(), empty()
        ended = empty(torch.bool), empty(torch.bool), empty(obs.dtype, obs.shape), ~empty(torch.bool)
        return cls(*acted, *ended, skips=env.skips, groups=max(env.groups, 1))

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated

    def batch(self, advantage: Tensor, target: Tensor) -> Batch:
        """All T * N real transitions with their advantages and targets, flat, as views where possible."""
        columns = (self.obs, self.action, self.log_prob, self.value, advantage, target)
        batch = Batch(*(column.flatten(0, 1) for column in columns))
        return batch.take(self.real.flatten().nonzero().squeeze(1)) if self.skips else batch

    def trajectories(self, advantage: Tensor, target: Tensor, alive: Tensor) -> Trajectories:
        """All transitions with their advantages and targets, one row per environment."""
        columns = (self.obs, self.action, self.log_prob, self.value, advantage, target, alive)
        return Trajectories(*(column.transpose(0, 1) for column in columns))

    def first(self, steps: int) -> Rollout:
        """The first rows, as views: what was really collected when a rollout stopped early."""
        views = {name: getattr(self, name)[:steps] for name in Row._fields}
        return self if steps == len(self.reward) else replace(self, **views)


@dataclass
class Batch:
    """Transitions to learn from, in any order."""

    obs: Tensor  # (B, ...)
    action: Tensor  # (B, ...)
    log_prob: Tensor  # (B,) under the policy that acted
    value: Tensor  # (B,) of the critic that acted
    advantage: Tensor  # (B,)
    target: Tensor  # (B,) what the critic should have said

    def __len__(self) -> int:
        return self.log_prob.shape[0]

    @property
    def weight(self) -> Tensor | int:
        """How many transitions there are to learn from."""
        return len(self)

    def take(self, index: Tensor | slice) -> Self:
        """The rows at `index`; views if it is a slice."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def flat(self) -> Self:
        """One transition a row."""
        return self

    def order(self, keys: Tensor) -> Tensor:
        """A random order of the rows for each pass, from random keys (passes, B or more)."""
        return keys[:, : len(self)].argsort()  # all at once: on a GPU, many sorts cost little more than one

    def sizes(self, count: int) -> list[int]:
        """Of `count` minibatches. They differ by at most one row, where rows that were not real are left out of the batch."""
        ends = [len(self) * i // count for i in range(count + 1)]
        return [end - start for start, end in pairwise(ends) if end > start]

    def minibatches(self, count: int, order: Tensor) -> Iterator[Self]:
        """For each pass's order, one pass over the batch in `count` disjoint minibatches, views of one shuffled copy."""
        sizes = self.sizes(count)
        for rows in order:
            columns = (torch.split(rows_at(getattr(self, f.name), rows), sizes) for f in fields(self))
            for minibatch in zip(*columns, strict=True):
                yield type(self)(*minibatch).flat()


def rows_at(column: Tensor, index: Tensor) -> Tensor:
    """column[index]; on a GPU short rows number by number, for torch takes a block of threads to copy each of them."""
    width = column[0].numel()
    if not column.is_cuda or not 1 < width <= SHORT:
        return column[index]
    at = index.unsqueeze(1) * width + torch.arange(width, device=index.device)
    return column.reshape(-1)[at].view(len(index), *column.shape[1:])


@dataclass
class Trajectories(Batch):
    """One row per trajectory, (N, T, ...). Steps after a trajectory's end are padding."""

    alive: Tensor  # (N, T) bool: False on padding

    @property
    def weight(self) -> Tensor:
        return self.alive.sum()

    def flat(self) -> Self:
        return replace(self, **{f.name: getattr(self, f.name).flatten(0, 1) for f in fields(self)})
