"""The metrics that a learner's own phase returns, from the terms and gradient norms of its updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..algorithms import PPOMetrics, VPGMetrics
from ..engine import State, health
from ..functional import PPOTerms, VPGTerms
from ..types import Batch, Trajectories

Row = tuple[tuple[Tensor, ...], Tensor]  # what runtime.backward and runtime.step returned


def ppo_metrics(state: State, batch: Batch, rows: Sequence[Row]) -> PPOMetrics:
    """The metrics of a phase of PPO that made these updates from this batch."""
    terms, norm = PPOTerms(*means(rows)[:-1]), means(rows)[-1]
    rollout, runtime = state.rollout, state.runtime
    return PPOMetrics(
        terms, norm, state.optimizer.learning_rate.clone(), runtime.explained_variance(batch.value, batch.target),
        reward=rollout.reward.mean(), episodes=state.env.finished_episodes(),
        health=health(state, rollout.valid, terms, norm),
    )  # fmt: skip


def vpg_metrics(state: State, batch: Trajectories, rows: Sequence[Row]) -> VPGMetrics:
    """The metrics of a phase of VPG that made these updates from this batch."""
    terms, norm = VPGTerms(*means(rows)[:-1]), means(rows)[-1]
    rollout, alive = state.rollout, batch.alive.transpose(0, 1)
    lifespan = alive.sum(0).float()
    return VPGMetrics(
        terms, norm, state.optimizer.learning_rate.clone(), lifespan.mean(), lifespan.std(correction=0), lifespan.max(),
        steps=torch.tensor(alive.numel()), solved=~(rollout.terminated & alive).any(),
        reward=(rollout.reward * alive).sum() / alive.sum(),
        episodes=torch.stack([torch.ones_like(lifespan).sum(), (rollout.reward * alive).sum(), lifespan.sum()]),
        health=health(state, alive, terms, norm),
    )  # fmt: skip


def means(rows: Sequence[Row]) -> list[Tensor]:
    """The mean of each term, and of the norm, over the updates."""
    return list(torch.stack([torch.stack([*terms, norm]) for terms, norm in rows]).mean(0))
