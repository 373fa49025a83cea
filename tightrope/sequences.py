"""Rollouts and batches for policies with memory: a minibatch is all steps of some environments, in order of time.

The loss sees flat columns (n T, ...), as everywhere. Only the observations keep their form (n, T, ...), so that the policy can
compute the state of its memory along each sequence. Learning needs the state before each sequence alone: `sequences_of_rows`
leaves out the others, which are most of the numbers of a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self, cast

import torch
from torch import Tensor

from .types import Batch, Composite, Env, Rollout, Trajectories


def sequences_of_rows(rows: Tensor, state_size: int) -> Tensor:
    """Rows (N, T, row) of a policy with memory as sequences to learn from, (N, T, ...)."""
    numbers = rows.shape[2] - state_size
    return with_first_state(rows[..., :numbers], rows[:, 0, numbers:])


def with_first_state(rows: Tensor, state: Tensor) -> Tensor:
    """Sequences of rows (N, T, ...) without states, with the states (N, S) before their first row: each row gets a part of the
    state, and zeros are at the end of the last part if need be."""
    (count, length, _), size = rows.shape, state.shape[1]
    share = -(-size // length)
    if missing := share * length - size:
        state = torch.cat([state, state.new_zeros(count, missing)], 1)
    return torch.cat([rows, state.view(count, length, share)], -1)


@dataclass
class Sequences(Batch):
    """One row per environment, (N, T, ...), and in minibatches flat columns (n T, ...) beside observations (n, T, row)."""

    def flat(self) -> Self:
        """Return the batch with one transition per row, but for the observations."""
        others = self.__match_args__[1:]
        return type(self)(self.obs, *(getattr(self, name).flatten(0, 1) for name in others))


@dataclass
class SkippingSequences(Sequences):
    """Sequences of environments that reset themselves in steps of their own, which are not learned from.

    Their observations have one more column, 1 where a step is valid. Minibatches have flat columns of the valid
    steps; their observations keep all steps, and the policy returns results for the valid ones.
    """

    def flat(self) -> Self:
        """Return the batch with one valid transition per row, but for the observations."""
        batch, valid = super().flat(), self.obs[..., -1].flatten().nonzero().squeeze(1)
        return replace(batch, **{f.name: getattr(batch, f.name)[valid] for f in fields(self) if f.name != "obs"})


@dataclass
class SequenceTrajectories(Sequences, Trajectories):
    """Sequences whose steps after the end of a trajectory are padding."""


@dataclass
class SequenceRollout(Rollout):
    """A rollout of a policy with memory."""

    state_size: int = 0  # of the memory: the last numbers of a row

    @classmethod
    def allocate(cls, num_steps: int, env: Env) -> Self:
        made = super().allocate(num_steps, env)
        _, memory = cast(Composite, env.observation).parts[-1]  # see MemoryRows
        made.state_size = memory.shape[0] - 1
        return made

    def batch(self, advantage: Tensor, target: Tensor) -> Batch:
        """Return all transitions with their advantages and targets, one row per environment."""
        obs, *columns = self._columns(advantage, target)
        if not self.skips:
            return Sequences(obs, *columns)
        return SkippingSequences(torch.cat([obs, self.valid.T.unsqueeze(-1)], -1), *columns)

    def trajectories(self, advantage: Tensor, target: Tensor, alive: Tensor) -> Trajectories:
        """Return all transitions with their advantages and targets, one row per environment."""
        return SequenceTrajectories(*self._columns(advantage, target, alive))

    def _columns(self, *others: Tensor) -> list[Tensor]:
        """The columns of a batch, one row per environment."""
        obs, *columns = (x.transpose(0, 1) for x in (self.obs, self.action, self.log_prob, self.value, *others))
        return [sequences_of_rows(obs, self.state_size), *(x.contiguous() for x in columns)]
