"""Proximal policy optimisation: Schulman et al. 2017, arXiv:1707.06347. The whole algorithm is on this page.

Departures from the paper: a time limit bootstraps from the final observation instead of counting as the task's end,
advantages are standardised per minibatch, and the value loss carries a factor 1/2. docs/details37.md maps the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..engine import (
    Noise,
    Optimizer,
    State,
    advantage_scales,
    all_gather,
    all_reduce_sum,
    capturable,
    collect,
    draw_noise,
    explained_variance,
    final_values,
    gradient,
    guarded,
    halted,
    health,
    masked_mean,
    merge,
    optimize,
    standardized,
    stream_seed,
    update_statistics,
    world,
)
from ..functional import (
    PPOLoss,
    PPOTerms,
    gae,
    linear,
    running_returns,
    successor_values,
)
from ..models import ActorCritic
from ..types import Batch, Env, Rollout
from .settings import at_least, divides, end_needs_annealing, fraction, positive, some_phases


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    has_critic: ClassVar[bool] = True
    whole_episodes: ClassVar[bool] = True  # that metrics count
    total_timesteps: int = 500_000
    """Environment steps in all, over every environment."""
    num_envs: int = 8
    """Environments that run side by side."""
    num_steps: int = 128
    """Steps of each environment between two learning phases."""
    num_minibatches: int = 4
    """Minibatches that one pass over the rollout is cut into."""
    update_epochs: int = 4
    """Passes over each rollout."""
    learning_rate: float = 2.5e-4
    """Step size of Adam in the first phase."""
    learning_rate_end: float = 0.0
    """What the learning rate decays to, with anneal_lr."""
    anneal_lr: bool = True
    """Decay the learning rate linearly over the run."""
    gamma: float = 0.99
    """Discount."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation."""
    clip_coef: float = 0.2
    """Half-width of the interval the probability ratio is clipped to."""
    anneal_clip: bool = False
    """Decay clip_coef linearly to 0 over the run."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = 0.5
    """Limit on the global gradient norm, or None."""
    target_kl: float | None = None
    """End a phase's learning once the approximate KL divergence exceeds this, or None."""
    norm_adv: bool = True
    """Standardise advantages within each minibatch."""
    norm_reward: bool = False
    """Scale rewards by the running standard deviation of the discounted return, which is part of the model."""
    clip_vloss: bool = False
    """Clip the value loss as the policy loss is clipped."""

    def __post_init__(self) -> None:
        at_least(self, 1, "num_envs", "num_steps", "num_minibatches", "update_epochs")
        at_least(self, 0, "learning_rate_end", "ent_coef", "vf_coef")
        positive(self, "total_timesteps", "learning_rate", "clip_coef", "max_grad_norm", "target_kl")
        fraction(self, "gamma", "gae_lambda")
        divides(self, "num_minibatches", "the batch num_envs x num_steps", self.batch_size)
        some_phases(self)
        end_needs_annealing(self)

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def phases(self) -> int:
        return self.total_timesteps // self.batch_size

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches

    @property
    def updates_per_phase(self) -> int:
        return self.num_minibatches * self.update_epochs


@dataclass(kw_only=True)
class PPOState(State):
    OWN: ClassVar[tuple[str, ...]] = (*State.OWN, "run.discounted_return")

    clip_coef: Tensor  # a tensor, so that captured code sees it change
    discounted_return: Tensor  # (N,) discounted, of the episodes under way

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {"run.discounted_return": self.discounted_return.clone()}

    def load_state_dict(self, state: dict[str, Tensor], fresh: bool = False) -> None:
        super().load_state_dict(state, fresh)
        if self.env.resumable and not fresh:  # otherwise episodes start anew
            self.discounted_return.copy_(state["run.discounted_return"])


class PPOMetrics(NamedTuple):
    """Means over a phase, as device scalars."""

    terms: PPOTerms
    grad_norm: Tensor
    learning_rate: Tensor
    explained_variance: Tensor
    reward: Tensor  # mean of what a step was paid in training; episodes report the environment's own score
    episodes: Tensor  # number, sum of returns, sum of lengths of all episodes that finished
    health: Tensor  # (ranks, parts) finite where everything was


def start(env: Env, policy: ActorCritic, config: PPOConfig, seed: int) -> PPOState:
    """The state before the first phase."""
    optimizer, rollout = Optimizer(policy), Rollout.allocate(config.num_steps, env)
    obs = env.reset(seed=stream_seed(seed, "env", rank=world().rank))
    clip_coef = torch.tensor(config.clip_coef, device=env.device)
    return PPOState(
        env=env, policy=policy, optimizer=optimizer, rollout=rollout, obs=obs, seed=seed, clip_coef=clip_coef,
        discounted_return=torch.zeros(env.num_envs, device=env.device),
    )  # fmt: skip


@guarded
def ppo(state: PPOState, config: PPOConfig) -> Iterator[PPOMetrics]:
    """Train to the end of the plan, one yield per phase. Everything between two yields is in `state`. NotFinite where a phase
    was not: the state is then that from before it."""
    env, policy = state.env, state.policy
    schedule(state, config)
    while not finished(state, config):
        shuffle = (config.update_epochs, env.num_envs * config.num_steps)
        noise = draw_noise(env, policy.head.noise, config.num_steps, shuffle, state.seed, state.phase)
        metrics = state.execution.run(phase, state, config, noise)
        state.phase += 1
        state.steps += config.batch_size
        schedule(state, config)
        yield metrics


def finished(state: State, config: PPOConfig) -> bool:
    """Whether the plan leaves no further phase."""
    return state.phase >= config.phases


def schedule(state: PPOState, config: PPOConfig) -> None:
    """Set what decays to its value for phase k of P; after the last phase it reads exactly its end value."""
    k, p = state.phase, config.phases
    end = config.learning_rate_end if config.anneal_lr else config.learning_rate
    state.optimizer.learning_rate.fill_(linear(config.learning_rate, end, k, p))  # [detail 4]
    state.clip_coef.fill_(linear(config.clip_coef, 0.0 if config.anneal_clip else config.clip_coef, k, p))


@capturable("phase")
def phase(state: PPOState, config: PPOConfig, noise: Noise) -> PPOMetrics:
    """PPO: collect, estimate, learn. Deterministic in (state, noise); on a device, no tensor is read on the host."""
    obs, _ = collect(state.env, state.policy, state.rollout, state.obs, noise)
    state.obs.copy_(obs)
    metrics = learn(state, config, noise.shuffle)
    return metrics._replace(episodes=all_reduce_sum(state.env.finished_episodes()))


@torch.no_grad()
def estimate(state: PPOState, config: PPOConfig) -> Batch:
    """The rollout as a batch, with what each action gained over expectation and what the critic should have said."""
    policy, rollout = state.policy, state.rollout
    next_value = successor_values(rollout.value, policy.value(state.obs), rollout.done, final_values(policy, rollout))
    reward = policy.reward_scaler(rollout.reward) if config.norm_reward else rollout.reward
    advantage = gae(
        reward, rollout.value, next_value, rollout.terminated, rollout.done, config.gamma, config.gae_lambda
    )  # [detail 5]
    return rollout.batch(advantage, target=advantage + rollout.value)


@capturable("part")
def learn(state: PPOState, config: PPOConfig, shuffle: Tensor) -> PPOMetrics:
    """Estimate advantages, then take gradient steps on shuffled minibatches."""
    policy, rollout, optimizer = state.policy, state.rollout, state.optimizer
    learning_rate = optimizer.learning_rate.clone()

    batch = estimate(state, config)
    loss = PPOLoss(state.clip_coef, config.vf_coef, config.ent_coef, config.clip_vloss)
    stopped = torch.zeros_like(learning_rate)
    numbers: list[Tensor] = []  # of each step, in a row
    skipped: list[Tensor] = []
    order = batch.order(shuffle)  # of each pass
    scales = advantage_scales(
        batch, config.num_minibatches, order
    )  # of each minibatch, where ranks have to ask each other
    for minibatch, scale in zip(batch.minibatches(config.num_minibatches, order), scales, strict=False):  # [detail 6]
        if config.norm_adv:
            minibatch.advantage = standardized(minibatch.advantage, scale)  # [detail 7]
        terms = gradient(loss, policy, minibatch, optimizer)
        if config.target_kl is not None and numbers:  # the first step of a phase is always taken
            stopped = torch.maximum(stopped, (terms.approx_kl > config.target_kl).float())
            if halted(stopped):
                break
        grad_norm = optimize(optimizer, config.max_grad_norm, stopped)
        numbers += [*terms, grad_norm]
        skipped.append(stopped)

    update_statistics(policy, rollout.obs, rollout.real)  # only between phases, so that a phase's first ratio is 1
    if config.norm_reward:
        returns, carried = running_returns(rollout.reward, rollout.done, state.discounted_return, config.gamma)
        merge(policy.reward_scaler, returns.flatten(), rollout.real.flatten())
        state.discounted_return.copy_(carried)

    taken = 1 - torch.stack(skipped)
    mean = torch.where(taken[:, None] > 0, torch.stack(numbers).view(len(taken), -1), 0.0).sum(0) / taken.sum()
    return PPOMetrics(
        terms=PPOTerms(*mean[:-1]),
        grad_norm=mean[-1],
        learning_rate=learning_rate,
        explained_variance=explained_variance(batch.value, batch.target),
        reward=masked_mean(rollout.reward, rollout.real),
        episodes=torch.zeros(3, device=learning_rate.device),
        health=all_gather(health(state, rollout.real, mean)),
    )
