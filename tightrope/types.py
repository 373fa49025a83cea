"""Data types: Step (one step of N environments), Rollout (T, N), Batch (B), Trajectories (N, T); Env protocol; spaces.

T is the number of steps in a rollout, N the number of parallel environments, B the number of transitions in a flat batch.
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

from .rows import rows_at, sorted_places, zeros_on_demand

Settings = dict[str, Any]  # a user's settings, by name
COPIED_AT_ONCE = 1 << 18  # bytes of small batches: epochs that are shuffled together take fewer calls
Bound = float | tuple[float, ...]  # one bound for all entries, or one for each in row-major order


@dataclass(frozen=True)
class Box:
    """Arrays of a fixed shape with entries between `low` and `high`: vectors, or uint8 images."""

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
    """Several named parts, stored side by side in one row of numbers: of an observation, or of a hybrid action."""

    parts: tuple[tuple[str, Spec], ...]
    dtype: torch.dtype = torch.float32
    conditions: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # ("power", "kind", (1, 2)): of use if kind is 1 or 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(math.prod(part.shape) for _, part in self.parts),)

    def split(self, row: Tensor) -> dict[str, Tensor]:
        """Split rows (B, sum of sizes) into the parts by name, each in its own shape and dtype."""
        pieces = torch.split_with_sizes(row, [math.prod(part.shape) for _, part in self.parts], -1)
        pairs = zip(self.parts, pieces, strict=True)
        return {name: piece.reshape(*row.shape[:-1], *part.shape).to(part.dtype) for (name, part), piece in pairs}


Spec = Box | Discrete | MultiDiscrete | Composite


class Step(NamedTuple):
    """The result of one step of N environments.

    Where an episode ended, `obs` is already the first observation of the next episode, while `final_obs` is always the
    observation that the step led to. `terminated`: the task is over, and the value after it is 0. `truncated`: a time limit
    ended the episode, and the value after it is V(final_obs). A row is never both.
    """

    obs: Tensor  # (N, ...)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    final_obs: Tensor  # (N, ...)
    valid: Tensor | None = None  # (N,) bool: False where an engine only reset itself; None: all are valid


class Env(Protocol):
    """N copies of one environment, which reset themselves within the step that ends an episode. All random numbers of a step
    are in `noise`. An engine with its own generators has noise_size 0, and is reproducible from its last seeded reset."""

    num_envs: int
    device: torch.device
    observation: Spec
    action: Spec
    noise_size: int  # uniform numbers a reset consumes, per environment
    capturable: bool  # True when step never reads a tensor on the host
    resumable: bool  # True when state_dict holds the whole state; otherwise a resumed run starts new episodes
    skips: bool  # True when Step.valid may be False
    groups: int  # number of groups that can be stepped in turn, see GroupedEnv; 0 if there is only `step`

    @property
    def drawable(self) -> bool: ...  # True when `draw` needs only observations
    @property
    def pace(self) -> int: ...  # steps per second of a video

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor: ...
    def step(self, action: Tensor, noise: Tensor | None = None) -> Step: ...
    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray: ...
    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self: ...
    def finished_episodes(self) -> Tensor: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...
    def close(self) -> None: ...


class GroupedEnv(Env, Protocol):
    """An Env whose rows are split, as by `tensor_split`, into groups that work in parallel: while one group steps, the policy
    can act for another."""

    def send(self, action: Tensor, group: int = 0) -> None: ...
    def recv(self, group: int = 0) -> Step: ...  # the group's rows; the next recv overwrites them


class Row(NamedTuple):
    """One time step of a rollout, as views of its tensors."""

    obs: Tensor  # (N, ...)
    action: Tensor  # (N, ...)
    log_prob: Tensor  # (N,)
    value: Tensor  # (N,)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    final_obs: Tensor  # (N, ...)
    valid: Tensor  # (N,) bool

    def write_act(self, obs: Tensor, action: Tensor) -> None:
        """Write the observation and the action."""
        self.obs.copy_(obs)
        self.action.copy_(action)

    def write_evaluation(self, log_prob: Tensor | None = None, value: Tensor | None = None) -> None:
        """Write the action's log-probability and the observation's value, if they are known."""
        if log_prob is not None and value is not None:
            self.log_prob.copy_(log_prob)
            self.value.copy_(value)

    def write_step(self, step: Step) -> None:
        """Write the result of the step."""
        self.reward.copy_(step.reward)
        self.terminated.copy_(step.terminated)
        self.truncated.copy_(step.truncated)
        self.final_obs.copy_(step.final_obs)
        if step.valid is not None:
            self.valid.copy_(step.valid)


@dataclass
class Rollout:
    """T steps of N environments, allocated once and overwritten in each phase. Observations are not normalised."""

    obs: Tensor  # (T, N, ...)
    action: Tensor  # (T, N, ...) as sampled, before scaling and clipping to the env's bounds
    log_prob: Tensor  # (T, N)
    value: Tensor  # (T, N)
    reward: Tensor  # (T, N)
    terminated: Tensor  # (T, N) bool
    truncated: Tensor  # (T, N) bool
    final_obs: Tensor  # (T, N, ...)
    valid: Tensor  # (T, N) bool: False where an engine only reset itself; such rows are not learned from
    skips: bool = False  # whether `valid` can be False
    groups: int = 1  # number of groups of environments that are stepped in turn

    @cached_property
    def rows(self) -> list[Row]:
        """The time steps, as views."""
        return [Row(*(getattr(self, name)[t] for name in Row._fields)) for t in range(self.reward.shape[0])]

    @cached_property
    def parts(self) -> list[Rollout]:
        """The rollouts of the groups, as views."""
        cut = [getattr(self, name).tensor_split(self.groups, 1) for name in Row._fields]
        shares = (dict(zip(Row._fields, pieces, strict=True)) for pieces in zip(*cut, strict=True))
        return [replace(self, groups=1, **share) for share in shares]

    @classmethod
    def allocate(cls, num_steps: int, env: Env) -> Self:
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
        """Return all valid transitions with their advantages and targets as a flat batch, as views where possible."""
        columns = (self.obs, self.action, self.log_prob, self.value, advantage, target)
        batch = Batch(*(column.flatten(0, 1) for column in columns))
        return batch.take(self.valid.flatten().nonzero().squeeze(1)) if self.skips else batch

    def trajectories(self, advantage: Tensor, target: Tensor, alive: Tensor) -> Trajectories:
        """Return all transitions with their advantages and targets, one row per environment."""
        columns = (self.obs, self.action, self.log_prob, self.value, advantage, target, alive)
        return Trajectories(*(column.transpose(0, 1) for column in columns))

    def first(self, steps: int) -> Rollout:
        """Return the first steps, as views: those that were collected if the rollout ended early."""
        if steps == len(self.reward):
            return self
        return replace(self, **{name: getattr(self, name)[:steps] for name in Row._fields})


@dataclass
class Batch:
    """Transitions to learn from, in any order."""

    obs: Tensor  # (B, ...)
    action: Tensor  # (B, ...)
    log_prob: Tensor  # (B,) of the action, under the policy that acted
    value: Tensor  # (B,) of the observation, under the critic at that time
    advantage: Tensor  # (B,)
    target: Tensor  # (B,) of the value loss

    def __len__(self) -> int:
        return self.log_prob.shape[0]

    @property
    def num_valid(self) -> Tensor | int:
        """Number of transitions to learn from."""
        return len(self)

    def take(self, index: Tensor | slice) -> Self:
        """Return the rows at `index`, as views if it is a slice."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def flat(self) -> Self:
        """Return the batch with one transition per row."""
        return self

    def order(self, keys: Tensor) -> Tensor:
        """Return a random order of the rows for each epoch, from random keys (epochs, B or more)."""
        return sorted_places(keys[:, : len(self)])

    def sizes(self, count: int) -> list[int]:
        """Return the sizes of `count` minibatches. They differ by at most one row, and only if invalid rows were left out."""
        ends = [len(self) * i // count for i in range(count + 1)]
        return [end - start for start, end in pairwise(ends) if end > start]

    def minibatches(self, count: int, order: Tensor) -> Minibatches:
        """Return `count` disjoint minibatches for each epoch's order."""
        return Minibatches(self, self.sizes(count), order)


def columns_of(batch: Batch) -> list[Tensor]:
    return [getattr(batch, name) for name in type(batch).__match_args__]


@dataclass(frozen=True, eq=False)
class Minibatches:
    """Parts of a batch, with these sizes for each epoch's order, as views of a shuffled copy of one or several epochs."""

    batch: Batch
    sizes: list[int]
    order: Tensor  # (epochs, rows)

    def __iter__(self) -> Iterator[Batch]:
        columns, kind = columns_of(self.batch), type(self.batch)
        epochs = max(1, COPIED_AT_ONCE // max(1, sum(x.nbytes for x in columns)))
        for orders in torch.split(self.order, epochs):
            rows, ends = orders.flatten(), self.sizes * len(orders)
            for minibatch in zip(*(torch.split_with_sizes(rows_at(x, rows), ends) for x in columns), strict=True):
                yield kind(*minibatch).flat()


@dataclass
class Trajectories(Batch):
    """One row per trajectory, (N, T, ...). Steps after a trajectory's end are padding."""

    alive: Tensor  # (N, T) bool: False on padding

    @property
    def num_valid(self) -> Tensor:
        return self.alive.sum()

    def flat(self) -> Self:
        return replace(self, **{f.name: getattr(self, f.name).flatten(0, 1) for f in fields(self)})
