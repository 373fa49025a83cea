"""Vanilla policy gradient (VPG): REINFORCE with reward-to-go and a baseline (Williams 1992). See ppo.py for where things are.

With full_reset, the default, every environment starts a new episode in each rollout and only that episode is learned from.
Episodes cut short by the time limit or the rollout's end are kept; a critic adds the value of what would have followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..engine import Noise, State, health, run_as, under_guard
from ..functional import VPGLoss, VPGTerms, alive_mask, last_row, standardize, successor_values
from ..types import Rollout, Settings, Trajectories
from .common import MaySchedule, OnPolicyConfig, divides, fraction, positive, refuse, training_loop
from .common import start as start  # re-exported


@dataclass(frozen=True, kw_only=True)
class VPGConfig(OnPolicyConfig):
    """Settings of VPG."""

    network_defaults: ClassVar[Settings] = {"hidden_sizes": (120, 84), "activation": "relu"}
    searched: ClassVar[str] = "learning_rate num_envs gamma normalize_returns ent_coef max_grad_norm"
    epoch_settings: ClassVar[tuple[str, ...]] = ("rollout_uses", "num_batches")
    by_trajectory: ClassVar[bool] = True
    replaceable: ClassVar[str] = "discounted_returns timestep_mean importance_weights policy_gradient collect phase"
    total_timesteps: int = 640_000
    num_envs: int = 32
    num_steps: int = 500
    """Maximum number of steps of each environment in one rollout."""
    learning_rate: MaySchedule = 1e-2
    anneal_lr: bool = False
    baseline: Literal["timestep", "critic", "none"] = "timestep"
    """Baseline subtracted from returns: the mean over environments at the same step (needs full_reset), a critic, or none."""
    normalize_returns: bool = False
    """Standardise returns over the whole rollout."""
    ent_coef: MaySchedule = 0.0
    max_grad_norm: float | None = None
    rollout_uses: int = 1
    """Passes over each rollout; more than 1 needs use_importance_weights."""
    num_batches: int = 1
    """Batches of whole trajectories in each pass; more than 1 needs use_importance_weights."""
    use_importance_weights: bool = False
    """Weight each step by the probability of its action under the current policy over that under the policy that acted."""
    weight_clamp: float | None = 0.2
    """Clamp importance weights to [1 - c, 1 + c], or None."""
    dead_fraction: float = 1.0
    """With full_reset, end a rollout once this fraction of the environments has terminated."""
    full_reset: bool = True
    """Reset every environment before each rollout and learn only from its first episode; otherwise episodes continue."""
    stop_when_solved: bool = False
    """End training after a rollout in which no environment terminated."""

    def check(self) -> None:
        positive(self, "dead_fraction")
        fraction(self, "dead_fraction", "weight_clamp")
        divides(self, "num_batches", "num_envs", self.num_envs)
        message = "baseline timestep needs full_reset: set full_reset true, or set baseline to critic or none"
        refuse(self.baseline == "timestep" and not self.full_reset, message)
        uses = f"rollout_uses {self.rollout_uses} x num_batches {self.num_batches}"
        message = f"{uses} makes several updates from one rollout: set use_importance_weights true, or both to 1"
        refuse(self.updates_per_phase > 1 and not self.use_importance_weights, message)

    @property
    def has_critic(self) -> bool:
        return self.baseline == "critic"


class VPGMetrics(NamedTuple):
    """Metrics of one phase, as tensors on the device. Losses and norms are means over the phase's updates."""

    terms: VPGTerms
    grad_norm: Tensor
    learning_rate: Tensor
    lifespan_mean: Tensor  # steps of each environment up to the end of its first episode in the rollout
    lifespan_std: Tensor
    lifespan_max: Tensor
    steps: Tensor  # environment steps of this phase, over all environments
    solved: Tensor  # 1 if no environment terminated
    reward: Tensor  # mean training reward per step
    episodes: Tensor  # number, sum of returns, sum of lengths: of first episodes; without full_reset, of finished ones
    health: Tensor  # (ranks, 1 + parts): finite only where all numbers of that part are finite, see engine/metrics.py


@under_guard
def vpg(state: State, config: VPGConfig) -> Iterator[VPGMetrics]:
    """Train to the end of the run and yield the metrics of each phase. NotFinite restores the state before the bad phase."""
    return training_loop(state, config, phase)


@run_as("phase")
def phase(state: State, config: VPGConfig, noise: Noise) -> VPGMetrics:
    """Collect a rollout, then learn from it. Deterministic in (state, noise)."""
    obs = state.env.reset(noise=noise.start) if config.full_reset else state.obs
    dead = config.dead_fraction if config.full_reset else None  # end the rollout once this fraction has terminated
    taken = state.collect(obs, noise, dead)
    finished = None if config.full_reset else state.runtime.all_reduce_sum(state.env.finished_episodes())
    return learn(state, config, taken, noise.shuffle, finished)


@run_as("part")
@torch.no_grad()
def estimate(state: State, config: VPGConfig, rollout: Rollout, collected: Tensor) -> Trajectories:
    """Return the rollout as trajectories, with returns and advantages."""
    runtime, done, used = state.runtime, rollout.done, collected & rollout.valid
    alive = alive_mask(done) & used if config.full_reset else used.expand_as(done)
    final_value = runtime.final_values(state.policy, rollout)
    next_value = successor_values(rollout.value, runtime.value(state.policy, state.obs), done, final_value)
    cut = done | last_row(collected)
    returns = state.functions.discounted_returns(rollout.reward, rollout.terminated, cut, next_value, config.gamma)
    advantage = returns - rollout.value if config.has_critic else returns.clone()
    if config.baseline == "timestep":
        advantage -= state.functions.timestep_mean(returns, alive)
    if config.normalize_returns:
        mean, std = runtime.masked_moments(returns, alive)
        advantage = standardize(advantage, mean if config.baseline == "none" else 0.0, std)
    return rollout.trajectories(advantage, target=returns, alive=alive)


@run_as("part")
def learn(state: State, config: VPGConfig, taken: int, shuffle: Tensor, finished: Tensor | None) -> VPGMetrics:
    """Estimate returns over the first `taken` steps, then take gradient steps on batches of whole trajectories."""
    policy, optimizer, runtime, rollout = state.policy, state.optimizer, state.runtime, state.rollout.first(taken)
    dead, use = config.dead_fraction if config.full_reset else None, state.functions
    collected = runtime.collected_mask(rollout.terminated, dead)  # (T, 1) False after the end of the rollout
    batch = estimate(state, config, rollout, collected)
    reuse, vf_coef = (config.use_importance_weights, config.weight_clamp), config.vf_coef * config.has_critic
    loss = VPGLoss(*reuse, vf_coef, config.entropy_weight(state), use.importance_weights, use.policy_gradient)
    updates = runtime.updates(batch.minibatches(config.num_batches, runtime.order(batch, shuffle)))
    for trajectories in updates:
        terms = runtime.backward(loss, policy, trajectories, optimizer)
        updates.add(*terms, runtime.step(optimizer, config.max_grad_norm))

    *means, grad_norm = updates.means()
    terms, alive = VPGTerms(*means), batch.alive.transpose(0, 1)
    runtime.update_statistics(policy, rollout.obs, alive)  # after learning: statistics are constant within a phase
    lifespan = (alive & alive_mask(rollout.done)).sum(0).float()
    lifespan_moments = runtime.moments(lifespan, correction=0)  # mean and standard deviation
    first = torch.stack([torch.ones_like(lifespan).sum(), (rollout.reward * alive).sum(), lifespan.sum()])
    return VPGMetrics(
        terms, grad_norm, optimizer.learning_rate.clone(), *lifespan_moments, runtime.all_reduce_max(lifespan.max()),
        steps=collected.sum() * config.num_envs, solved=~runtime.any_rank((rollout.terminated & alive).any()),
        reward=runtime.masked_mean(rollout.reward, alive), health=health(state, alive, terms, grad_norm),
        episodes=runtime.all_reduce_sum(first) if finished is None else finished,
    )  # fmt: skip
