"""Proximal policy optimisation (PPO): Schulman et al. 2017, arXiv:1707.06347.

A phase is one iteration: collect a rollout, then learn from it. The loop over phases is in algorithms/common.py; calls of
`state.runtime` enter engine/runtime.py, those of `state.functions` functional/. docs/architecture.md has a table of all files.

Departures from the paper: a time limit bootstraps from the final observation instead of counting as the task's end,
advantages are standardised per minibatch, and the value loss has a factor 1/2. docs/details37.md lists all details.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..engine import Noise, State, health, run_as, under_guard
from ..functional import PPOLoss, PPOTerms, running_returns, successor_values
from ..types import Batch
from .common import MaySchedule, OnPolicyConfig, divides, fraction, positive, schedule_settings, training_loop
from .common import start as start  # re-exported


@dataclass(kw_only=True)
class PPOState(State):
    EPISODE_FIELDS: ClassVar[tuple[str, ...]] = ("discounted_return",)

    clip_coef: Tensor = field(init=False)  # filled in place by `schedule`, so that CUDA graphs read its current value
    discounted_return: Tensor = field(init=False)  # (N,) of each running episode so far, for norm_reward

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clip_coef = torch.zeros((), device=self.env.device)
        self.discounted_return = torch.zeros(self.env.num_envs, device=self.env.device)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    state: ClassVar[type[State]] = PPOState
    epoch_settings: ClassVar[tuple[str, ...]] = ("update_epochs", "num_minibatches")
    replaceable: ClassVar[str] = "gae clipped_surrogate value_loss entropy_bonus minibatches collect phase"
    num_minibatches: int = 4
    """Number of minibatches in each pass over the rollout."""
    update_epochs: int = 4
    """Passes over each rollout."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation."""
    clip_coef: MaySchedule = 0.2
    """Half-width of the interval the probability ratio is clipped to, or a schedule such as 'linear(0.2, 0.05)'."""
    anneal_clip: bool = False
    """Decay clip_coef linearly to 0 over the run, if it is a number."""
    target_kl: float | None = None
    """Skip the remaining updates of a phase once the approximate KL divergence exceeds this, or None."""
    norm_adv: bool = True
    """Standardise advantages within each minibatch."""
    norm_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return, which is saved with the model."""
    clip_vloss: bool = False
    """Clip the value loss like the policy loss."""

    def check(self) -> None:
        positive(self, "clip_coef", "target_kl")
        fraction(self, "gae_lambda")
        divides(self, "num_minibatches", "the batch num_envs x num_steps", self.batch_size)


class PPOMetrics(NamedTuple):
    """Metrics of one phase, as tensors on the device. Losses and norms are means over the phase's updates."""

    terms: PPOTerms
    grad_norm: Tensor
    learning_rate: Tensor
    explained_variance: Tensor
    reward: Tensor  # mean training reward per step, before norm_reward
    episodes: Tensor  # number, sum of returns and sum of lengths of the episodes that finished in this phase
    health: Tensor  # (ranks, 1 + parts): finite only where all numbers of that part are finite, see engine/metrics.py


@under_guard
def ppo(state: PPOState, config: PPOConfig) -> Iterator[PPOMetrics]:
    """Train to the end of the run and yield the metrics of each phase. NotFinite restores the state before the bad phase."""
    return training_loop(state, config, phase, schedule)


def schedule(state: PPOState, config: PPOConfig) -> None:
    """Set learning rate, ent_coef and clip_coef for the next phase. After the last phase they have their end values."""
    schedule_settings(state, config)
    state.clip_coef.fill_(config.value_after("clip_coef", state.steps))


@run_as("phase")
def phase(state: PPOState, config: PPOConfig, noise: Noise) -> PPOMetrics:
    """Collect a rollout, then learn from it. Deterministic in (state, noise); on a GPU, the host reads no tensor."""
    state.collect(state.obs, noise)
    episodes = state.runtime.all_reduce_sum(state.env.finished_episodes())
    return learn(state, config, noise.shuffle, episodes)


@run_as("part")
@torch.no_grad()
def estimate(state: PPOState, config: PPOConfig) -> Batch:
    """Return the rollout as a batch, with advantages and value targets."""
    policy, rollout = state.policy, state.rollout
    final_value = state.runtime.final_values(policy, rollout)
    next_value = successor_values(rollout.value, state.runtime.value(policy, state.obs), rollout.done, final_value)
    reward = policy.reward_scaler(rollout.reward) if config.norm_reward else rollout.reward
    ends, decays = (rollout.terminated, rollout.done), (config.gamma, config.gae_lambda)
    advantage = state.functions.gae(reward, rollout.value, next_value, *ends, *decays)  # [detail 5]
    return rollout.batch(advantage, target=advantage + rollout.value)


@run_as("part")
def learn(state: PPOState, config: PPOConfig, shuffle: Tensor, episodes: Tensor) -> PPOMetrics:
    """Estimate advantages, take gradient steps on shuffled minibatches, then update the running statistics."""
    policy, rollout, optimizer, runtime = state.policy, state.rollout, state.optimizer, state.runtime
    batch = estimate(state, config)
    use, weights = state.functions, (state.clip_coef, config.vf_coef, config.entropy_weight(state))
    loss = PPOLoss(*weights, config.clip_vloss, use.clipped_surrogate, use.value_loss, use.entropy_bonus)
    order = runtime.order(batch, shuffle)  # (epochs, B)
    scales = runtime.advantage_scales(batch, config.num_minibatches, order)  # over all ranks; yields None on one rank
    minibatches = use.minibatches(batch, config.num_minibatches, order)  # [detail 6]
    updates = runtime.updates(minibatches, scales)
    for minibatch, scale in updates:
        if config.norm_adv:
            minibatch.advantage = runtime.standardized(minibatch.advantage, scale)  # [detail 7]
        terms = runtime.backward(loss, policy, minibatch, optimizer)
        stopped = updates.stop_above(config.target_kl, terms.approx_kl)  # never in the first update of a phase
        updates.add(*terms, runtime.step(optimizer, config.max_grad_norm, stopped))

    *means, grad_norm = updates.means()
    runtime.update_statistics(policy, rollout.obs, rollout.valid)  # after learning, so that a phase's first ratio is 1
    if config.norm_reward:
        returns, carried = running_returns(rollout.reward, rollout.done, state.discounted_return, config.gamma)
        runtime.merge(policy.reward_scaler, returns.flatten(), rollout.valid.flatten())
        state.discounted_return.copy_(carried)
    terms, learned = PPOTerms(*means), batch.flat()
    return PPOMetrics(
        terms, grad_norm, optimizer.learning_rate.clone(), runtime.explained_variance(learned.value, learned.target),
        reward=runtime.masked_mean(rollout.reward, rollout.valid), episodes=episodes,
        health=health(state, rollout.valid, terms, grad_norm),
    )  # fmt: skip
