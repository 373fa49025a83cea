"""Vanilla policy gradient: REINFORCE with reward-to-go and a baseline (Williams 1992). The whole algorithm is on this page.

Each environment lives one life per rollout: what happens in a column after its first episode has ended is not learned from. An
episode that the window or the clock cuts short is kept, with its reward-to-go up to the cut (and V beyond it, with a critic).
The equations are in functional/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..engine import Noise, State, health, run_as, under_guard
from ..functional import VPGLoss, VPGTerms, alive_mask, discounted_returns, last_row, standardize, successor_values
from ..types import Rollout, Settings, Trajectories
from .common import OnPolicyConfig, divides, fraction, positive, refuse, training_loop
from .common import start as start


@dataclass(frozen=True, kw_only=True)
class VPGConfig(OnPolicyConfig):
    """Settings of VPG."""

    network_defaults: ClassVar[Settings] = {"hidden_sizes": (120, 84), "activation": "relu"}
    searched: ClassVar[str] = "learning_rate num_envs gamma normalize_returns ent_coef max_grad_norm"
    passes_by: ClassVar[tuple[str, ...]] = ("rollout_uses", "num_batches")
    by_trajectory: ClassVar[bool] = True
    total_timesteps: int = 640_000
    num_envs: int = 32
    num_steps: int = 500
    """The most steps of each environment in one rollout."""
    learning_rate: float = 1e-2
    anneal_lr: bool = False
    baseline: Literal["timestep", "critic", "none"] = "timestep"
    """What is subtracted from returns: the mean over environments at the same step, a learned critic, or nothing."""
    normalize_returns: bool = False
    """Standardise returns over the whole rollout."""
    ent_coef: float = 0.0
    max_grad_norm: float | None = None
    rollout_uses: int = 1
    """Times each rollout is learned from; more than 1 needs use_importance_weights."""
    num_batches: int = 1
    """Batches of whole trajectories per use of a rollout; more than 1 needs use_importance_weights."""
    use_importance_weights: bool = False
    """Weigh each step by how much likelier the current policy makes its action than the one that took it."""
    weight_clamp: float | None = 0.2
    """Clamp importance weights to [1 - c, 1 + c], or None."""
    dead_fraction: float = 1.0
    """A rollout ends once this fraction of the environments has terminated (with full_reset)."""
    full_reset: bool = True
    """Start every environment anew in each rollout and learn from its first life there, instead of letting episodes go on."""
    stop_when_solved: bool = False
    """End training once every environment survives a whole rollout."""

    def check(self) -> None:
        positive(self, "dead_fraction")
        fraction(self, "dead_fraction", "weight_clamp")
        divides(self, "num_batches", "num_envs", self.num_envs)
        clocks = "baseline timestep needs full_reset, so that all clocks agree: set it, or choose critic or none"
        refuse(self.baseline == "timestep" and not self.full_reset, clocks)
        uses = f"rollout_uses {self.rollout_uses} x num_batches {self.num_batches}"
        stale = f"{uses} learns from a policy that has moved on: set use_importance_weights, or both to 1"
        refuse(self.updates_per_phase > 1 and not self.use_importance_weights, stale)

    @property
    def has_critic(self) -> bool:
        return self.baseline == "critic"


class VPGMetrics(NamedTuple):
    """Of a phase, on the device: means, unless said otherwise."""

    terms: VPGTerms
    grad_norm: Tensor
    learning_rate: Tensor
    lifespan_mean: Tensor
    lifespan_std: Tensor
    lifespan_max: Tensor
    steps: Tensor
    solved: Tensor  # 1 if no environment terminated
    reward: Tensor  # mean of what a step was paid in training
    episodes: Tensor  # number, returns, lengths: of lives in the rollout; without full_reset, of episodes that finished
    health: Tensor  # (ranks, parts) an entry that is not finite marks what failed


@under_guard
def vpg(state: State, config: VPGConfig) -> Iterator[VPGMetrics]:
    """Train to the end of the plan, one yield per phase. Raises NotFinite, with the state restored to before that phase."""
    return training_loop(state, config, phase)


@run_as("phase")
def phase(state: State, config: VPGConfig, noise: Noise) -> VPGMetrics:
    """VPG: collect, estimate, learn. Deterministic in (state, noise)."""
    obs = state.env.reset(noise=noise.start) if config.full_reset else state.obs
    dead = config.dead_fraction if config.full_reset else None  # the fraction of environments that ends the rollout
    obs, taken = state.runtime.collect(state.env, state.policy, state.rollout, obs, noise, dead)
    state.obs.copy_(obs)
    metrics = learn(state, config, taken, noise.shuffle)
    return metrics if config.full_reset else metrics._replace(episodes=state.runtime.sum(state.env.finished_episodes()))


@run_as("part")
@torch.no_grad()
def estimate(state: State, config: VPGConfig, rollout: Rollout, collected: Tensor) -> Trajectories:
    """The rollout as trajectories, with returns and advantages."""
    runtime, done, used = state.runtime, rollout.done, collected & rollout.real
    alive = alive_mask(done) & used if config.full_reset else used.expand_as(done)
    final_value = runtime.final_values(state.policy, rollout)
    next_value = successor_values(rollout.value, state.policy.value(state.obs), done, final_value)
    cut = done | last_row(collected)
    returns = discounted_returns(rollout.reward, rollout.terminated, cut, next_value, config.gamma)
    advantage = returns - rollout.value if config.has_critic else returns.clone()
    if config.baseline == "timestep":
        advantage -= runtime.timestep_mean(returns, alive)
    if config.normalize_returns:
        mean, std = runtime.masked_moments(returns, alive)
        advantage = standardize(advantage, mean if config.baseline == "none" else 0.0, std)
    return rollout.trajectories(advantage, target=returns, alive=alive)


@run_as("part")
def learn(state: State, config: VPGConfig, taken: int, shuffle: Tensor) -> VPGMetrics:
    """Estimate returns over the steps that were taken, then take gradient steps on batches of whole trajectories."""
    policy, optimizer, runtime, rollout = state.policy, state.optimizer, state.runtime, state.rollout.first(taken)
    dead = config.dead_fraction if config.full_reset else None
    collected = runtime.running_mask(rollout.terminated, dead)  # (T, 1) False once the rollout has stopped
    batch = estimate(state, config, rollout, collected)
    weights = config.vf_coef * config.has_critic, config.ent_coef
    loss = VPGLoss(config.use_importance_weights, config.weight_clamp, *weights)
    rows = []
    for trajectories in batch.minibatches(config.num_batches, batch.order(shuffle)):
        terms = runtime.gradient(loss, policy, trajectories, optimizer)
        rows.append(torch.stack([*terms, runtime.step(optimizer, config.max_grad_norm)]))

    mean, alive = torch.stack(rows).mean(0), batch.alive.transpose(0, 1)
    runtime.update_statistics(policy, rollout.obs, alive)  # statistics move only between phases
    lifespan = (alive & alive_mask(rollout.done)).sum(0).float()
    lifespan_mean, lifespan_std = runtime.moments(lifespan, correction=0)
    lives = torch.stack([torch.ones_like(lifespan).sum(), (rollout.reward * alive).sum(), lifespan.sum()])
    return VPGMetrics(
        terms=VPGTerms(*mean[:-1]), grad_norm=mean[-1], learning_rate=optimizer.learning_rate.clone(),
        lifespan_mean=lifespan_mean, lifespan_std=lifespan_std, lifespan_max=runtime.maximum(lifespan.max()),
        steps=collected.sum() * config.num_envs, solved=~runtime.any((rollout.terminated & alive).any()),
        reward=runtime.masked_mean(rollout.reward, alive), episodes=runtime.sum(lives), health=health(state, alive, mean),
    )  # fmt: skip
