"""Rollouts and batches for policies with memory: a minibatch is all steps of some environments, in order of time.

The loss sees flat columns (n T, ...), as everywhere. Only the observations keep their form (n, T, row), so that the policy can
compute the state of its memory along each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from .types import Batch, Rollout, Trajectories


@dataclass
class Sequences(Batch):
    """One row per environment, (N, T, ...), and in minibatches flat columns (n T, ...) beside observations (n, T, row)."""

    def flat(self) -> Self:
        """Return the batch with one transition per row, but for the observations."""
        return replace(self, **{f.name: getattr(self, f.name).flatten(0, 1) for f in fields(self) if f.name != "obs"})


@dataclass
class SkippingSequences(Sequences):
    """Sequences of environments that reset themselves in steps of their own, which are not learned from.

    Observations (N, T, row + 1) have a last column that is 1 where a step is valid. Minibatches have flat columns of the valid
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

    def batch(self, advantage: Tensor, target: Tensor) -> Batch:
        """Return all transitions with their advantages and targets, one row per environment."""
        obs = torch.cat([self.obs, self.valid.unsqueeze(-1)], -1) if self.skips else self.obs
        columns = (obs, self.action, self.log_prob, self.value, advantage, target)
        return (SkippingSequences if self.skips else Sequences)(
            *(column.transpose(0, 1).contiguous() for column in columns)
        )

    def trajectories(self, advantage: Tensor, target: Tensor, alive: Tensor) -> Trajectories:
        """Return all transitions with their advantages and targets, one row per environment."""
        columns = (self.obs, self.action, self.log_prob, self.value, advantage, target, alive)
        return SequenceTrajectories(*(column.transpose(0, 1).contiguous() for column in columns))
