"""Proximal policy optimisation: Schulman et al. 2017, arXiv:1707.06347. The whole algorithm is on this page.

Departures from the paper: a time limit bootstraps from the final observation instead of counting as the task's end,
advantages are standardised per minibatch, and the value loss carries a factor 1/2. docs/details37.md maps the
rest. The equations are in functional/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..engine import Noise, State, health, run_as, under_guard
from ..functional import PPOLoss, PPOTerms, gae, linear, mean_of_taken, running_returns, successor_values
from ..types import Batch
from .common import OnPolicyConfig, divides, fraction, positive, schedule_learning_rate, training_loop
from .common import start as start


@dataclass(kw_only=True)
class PPOState(State):
    KEPT: ClassVar[tuple[str, ...]] = ("discounted_return",)

    clip_coef: Tensor = field(init=False)  # a tensor, so that captured code sees it change
    discounted_return: Tensor = field(init=False)  # (N,) discounted, of the episodes under way

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clip_coef = torch.zeros((), device=self.env.device)  # written by the schedule before each phase
        self.discounted_return = torch.zeros(self.env.num_envs, device=self.env.device)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    state: ClassVar[type[State]] = PPOState
    passes_by: ClassVar[tuple[str, ...]] = ("update_epochs", "num_minibatches")
    num_minibatches: int = 4
    """Minibatches that one pass over the rollout is cut into."""
    update_epochs: int = 4
    """Passes over each rollout."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation."""
    clip_coef: float = 0.2
    """Half-width of the interval the probability ratio is clipped to."""
    anneal_clip: bool = False
    """Decay clip_coef linearly to 0 over the run."""
    target_kl: float | None = None
    """End a phase's learning once the approximate KL divergence exceeds this, or None."""
    norm_adv: bool = True
    """Standardise advantages within each minibatch."""
    norm_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return, which is part of the model."""
    clip_vloss: bool = False
    """Clip the value loss as the policy loss is clipped."""

    def check(self) -> None:
        positive(self, "clip_coef", "target_kl")
        fraction(self, "gae_lambda")
        divides(self, "num_minibatches", "the batch num_envs x num_steps", self.batch_size)


class PPOMetrics(NamedTuple):
    """Of a phase, on the device: means, unless said otherwise."""

    terms: PPOTerms
    grad_norm: Tensor
    learning_rate: Tensor
    explained_variance: Tensor
    reward: Tensor  # mean of what a step was paid in training; episodes report the environment's own score
    episodes: Tensor  # number, sum of returns, sum of lengths of all episodes that finished
    health: Tensor  # (ranks, parts) an entry that is not finite marks what failed


@under_guard
def ppo(state: PPOState, config: PPOConfig) -> Iterator[PPOMetrics]:
    """Train to the end of the plan, one yield per phase. Raises NotFinite, with the state restored to before that phase."""
    return training_loop(state, config, phase, schedule)


def schedule(state: PPOState, config: PPOConfig) -> None:
    """Set what decays to its value for the next phase; after the last one it reads exactly its end value."""
    schedule_learning_rate(state, config)
    end = 0.0 if config.anneal_clip else config.clip_coef
    state.clip_coef.fill_(linear(config.clip_coef, end, state.steps, config.decay_steps))


@run_as("phase")
def phase(state: PPOState, config: PPOConfig, noise: Noise) -> PPOMetrics:
    """PPO: collect, estimate, learn. Deterministic in (state, noise); on a device, no tensor is read on the host."""
    obs, _ = state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
    state.obs.copy_(obs)
    metrics = learn(state, config, noise.shuffle)
    return metrics._replace(episodes=state.runtime.sum(state.env.finished_episodes()))


@run_as("part")
@torch.no_grad()
def estimate(state: PPOState, config: PPOConfig) -> Batch:
    """The rollout as a batch, with advantages and value targets."""
    policy, rollout = state.policy, state.rollout
    final_value = state.runtime.final_values(policy, rollout)
    next_value = successor_values(rollout.value, policy.value(state.obs), rollout.done, final_value)
    reward = policy.reward_scaler(rollout.reward) if config.norm_reward else rollout.reward
    ends, decays = (rollout.terminated, rollout.done), (config.gamma, config.gae_lambda)
    advantage = gae(reward, rollout.value, next_value, *ends, *decays)  # [detail 5]
    return rollout.batch(advantage, target=advantage + rollout.value)


@run_as("part")
def learn(state: PPOState, config: PPOConfig, shuffle: Tensor) -> PPOMetrics:
    """Estimate advantages, then take gradient steps on shuffled minibatches."""
    policy, rollout, optimizer, runtime = state.policy, state.rollout, state.optimizer, state.runtime
    learning_rate = optimizer.learning_rate.clone()
    batch = estimate(state, config)
    loss = PPOLoss(state.clip_coef, config.vf_coef, config.ent_coef, config.clip_vloss)
    stopped, numbers, skipped = torch.zeros_like(learning_rate), list[Tensor](), list[Tensor]()
    order = batch.order(shuffle)  # of each pass
    scales = runtime.advantage_scales(batch, config.num_minibatches, order)  # of all ranks; None where there is one
    for minibatch, scale in zip(batch.minibatches(config.num_minibatches, order), scales, strict=False):  # [detail 6]
        if config.norm_adv:
            minibatch.advantage = runtime.standardized(minibatch.advantage, scale)  # [detail 7]
        terms = runtime.gradient(loss, policy, minibatch, optimizer)
        if config.target_kl is not None and numbers:  # the first step of a phase is always taken
            stopped = torch.maximum(stopped, (terms.approx_kl > config.target_kl).float())
            if runtime.halted(stopped):
                break
        numbers += [*terms, runtime.step(optimizer, config.max_grad_norm, stopped)]
        skipped.append(stopped)

    runtime.update_statistics(policy, rollout.obs, rollout.real)  # between phases, so that a phase's first ratio is 1
    if config.norm_reward:
        returns, carried = running_returns(rollout.reward, rollout.done, state.discounted_return, config.gamma)
        runtime.merge(policy.reward_scaler, returns.flatten(), rollout.real.flatten())
        state.discounted_return.copy_(carried)
    mean = mean_of_taken(torch.stack(numbers).view(len(skipped), -1), torch.stack(skipped))
    return PPOMetrics(
        terms=PPOTerms(*mean[:-1]), grad_norm=mean[-1], learning_rate=learning_rate,
        explained_variance=runtime.explained_variance(batch.value, batch.target),
        reward=runtime.masked_mean(rollout.reward, rollout.real), episodes=torch.zeros(3, device=mean.device),
        health=health(state, rollout.real, mean),
    )  # fmt: skip
