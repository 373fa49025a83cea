"""Vanilla policy gradient: REINFORCE with reward-to-go and a baseline (Williams 1992). The whole algorithm is on this page.

Each environment lives one life per rollout: what happens in a column after its first episode has ended is not learned from.
An episode that the window or the clock cuts short is kept, with its reward-to-go up to the cut (and V beyond it, with a
critic): on tasks about survival those episodes are the successes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..engine import (
    Noise,
    Optimizer,
    State,
    all_gather,
    all_reduce_max,
    all_reduce_sum,
    any_rank,
    capturable,
    collect,
    draw_noise,
    final_values,
    gradient,
    guarded,
    health,
    masked_mean,
    masked_moments,
    moments,
    optimize,
    running_mask,
    stream_seed,
    timestep_mean,
    update_statistics,
    world,
)
from ..errors import UsageError
from ..functional import (
    VPGLoss,
    VPGTerms,
    alive_mask,
    discounted_returns,
    last_row,
    linear,
    standardize,
    successor_values,
)
from ..models import ActorCritic
from ..types import Env, Rollout, Trajectories
from .settings import at_least, divides, end_needs_annealing, fraction, positive, some_phases


@dataclass(frozen=True, kw_only=True)
class VPGConfig:
    """Settings of VPG."""

    whole_episodes: ClassVar[bool] = False  # that metrics count: the end of a rollout cuts them
    total_timesteps: int = 640_000
    """Environment steps in all, over every environment."""
    num_envs: int = 32
    """Environments that run side by side."""
    num_steps: int = 500
    """The most steps of each environment in one rollout."""
    learning_rate: float = 1e-2
    """Step size of Adam in the first phase."""
    learning_rate_end: float = 0.0
    """What the learning rate decays to, with anneal_lr."""
    anneal_lr: bool = False
    """Decay the learning rate linearly."""
    anneal_fraction: float = 1.0
    """Fraction of the run over which it decays."""
    gamma: float = 0.99
    """Discount."""
    baseline: Literal["timestep", "critic", "none"] = "timestep"
    """What is subtracted from returns: the mean over environments at the same step, a learned critic, or nothing."""
    normalize_returns: bool = False
    """Standardise returns over the whole rollout."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the critic's loss, with baseline critic."""
    max_grad_norm: float | None = None
    """Limit on the global gradient norm, or None."""
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

    def __post_init__(self) -> None:
        at_least(self, 1, "num_envs", "num_steps", "rollout_uses", "num_batches")
        at_least(self, 0, "learning_rate_end", "ent_coef", "vf_coef")
        positive(self, "total_timesteps", "learning_rate", "max_grad_norm", "anneal_fraction", "dead_fraction")
        fraction(self, "gamma", "anneal_fraction", "dead_fraction", "weight_clamp")
        divides(self, "num_batches", "num_envs", self.num_envs)
        some_phases(self)
        end_needs_annealing(self)
        if self.baseline == "timestep" and not self.full_reset:
            raise UsageError(
                "baseline timestep needs full_reset, so that all clocks agree: set it, or choose critic or none"
            )
        if self.anneal_lr and self.anneal_fraction < 1 and self.learning_rate_end == 0:
            raise UsageError(
                f"anneal_fraction {self.anneal_fraction} would train the rest at rate 0: set learning_rate_end above 0"
            )
        if self.updates_per_phase > 1 and not self.use_importance_weights:
            raise UsageError(
                f"rollout_uses {self.rollout_uses} x num_batches {self.num_batches} learns from a policy that has moved on: "
                "set use_importance_weights, or both to 1"
            )

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def phases(self) -> int:
        """At least this many: rollouts that stop early leave steps for more."""
        return self.total_timesteps // self.batch_size

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_batches

    @property
    def updates_per_phase(self) -> int:
        return self.num_batches * self.rollout_uses

    @property
    def has_critic(self) -> bool:
        return self.baseline == "critic"


class VPGMetrics(NamedTuple):
    """Means over a phase, as device scalars."""

    terms: VPGTerms
    grad_norm: Tensor
    learning_rate: Tensor
    lifespan_mean: Tensor
    lifespan_std: Tensor
    lifespan_max: Tensor
    steps: Tensor
    solved: Tensor  # 1 if no environment terminated
    reward: Tensor  # mean of what a step was paid in training
    episodes: (
        Tensor  # number, sum of returns, sum of lengths: of the lives in the rollout, cut ones included, or, without
    )
    # full_reset, of the episodes that finished
    health: Tensor  # (ranks, parts) finite where everything was


def start(env: Env, policy: ActorCritic, config: VPGConfig, seed: int) -> State:
    """The state before the first phase."""
    if config.stop_when_solved and not getattr(env, "solved_by_surviving", False):
        raise UsageError("stop_when_solved needs an env that is solved by not failing, such as CartPole-v1: drop it")
    optimizer, rollout = Optimizer(policy), Rollout.allocate(config.num_steps, env)
    obs = env.reset(seed=stream_seed(seed, "env", rank=world().rank))
    return State(env=env, policy=policy, optimizer=optimizer, rollout=rollout, obs=obs, seed=seed)


@guarded
def vpg(state: State, config: VPGConfig) -> Iterator[VPGMetrics]:
    """Train to the end of the plan, one yield per phase. Everything between two yields is in `state`. NotFinite where a phase
    was not: the state is then that from before it."""
    schedule(state, config)
    while not finished(state, config):
        shuffle = (config.rollout_uses, state.env.num_envs)
        noise = draw_noise(state.env, state.policy.head.noise, config.num_steps, shuffle, state.seed, state.phase)
        metrics = state.execution.run(phase, state, config, noise)
        state.phase += 1
        state.steps += int(metrics.steps)
        schedule(state, config)
        state.solved = config.stop_when_solved and bool(metrics.solved)
        yield metrics


def finished(state: State, config: VPGConfig) -> bool:
    """Whether nothing is left to learn, or not steps enough for another whole rollout."""
    solved = config.stop_when_solved and state.solved
    return solved or state.steps + config.batch_size > config.total_timesteps


def schedule(state: State, config: VPGConfig) -> None:
    """Set the learning rate by the share of steps taken; after the last rollout it reads exactly its end value."""
    end = config.learning_rate_end if config.anneal_lr else config.learning_rate
    taken = config.total_timesteps if finished(state, config) else state.steps
    decay_steps = max(1, round(config.anneal_fraction * config.total_timesteps))
    state.optimizer.learning_rate.fill_(linear(config.learning_rate, end, taken, decay_steps))


@capturable("phase")
def phase(state: State, config: VPGConfig, noise: Noise) -> VPGMetrics:
    """VPG: collect, estimate, learn. Deterministic in (state, noise)."""
    obs = state.env.reset(noise=noise.start) if config.full_reset else state.obs
    dead_fraction = config.dead_fraction if config.full_reset else None
    obs, taken = collect(state.env, state.policy, state.rollout, obs, noise, dead_fraction)
    state.obs.copy_(obs)
    metrics = learn(state, config, taken, noise.shuffle)
    return metrics if config.full_reset else metrics._replace(episodes=all_reduce_sum(state.env.finished_episodes()))


@torch.no_grad()
def estimate(state: State, config: VPGConfig, rollout: Rollout, collected: Tensor) -> Trajectories:
    """The rollout as trajectories, with their returns and what these are above the baseline."""
    used = collected & rollout.real
    alive = alive_mask(rollout.done) & used if config.full_reset else used.expand_as(rollout.done)
    cut = rollout.done | last_row(collected)
    last_value, final_value = state.policy.value(state.obs), final_values(state.policy, rollout)
    next_value = successor_values(rollout.value, last_value, rollout.done, final_value)
    returns = discounted_returns(rollout.reward, rollout.terminated, cut, next_value, config.gamma)
    if config.baseline == "timestep":
        baseline = timestep_mean(returns, alive).expand_as(returns)
    elif config.baseline == "critic":
        baseline = rollout.value
    else:
        baseline = torch.zeros_like(returns)
    advantage = returns - baseline
    if config.normalize_returns:
        mean, std = masked_moments(returns, alive)
        advantage = standardize(returns, mean, std) if config.baseline == "none" else standardize(advantage, 0.0, std)
    return rollout.trajectories(advantage, target=returns, alive=alive)


@capturable("part")
def learn(state: State, config: VPGConfig, taken: int, shuffle: Tensor) -> VPGMetrics:
    """Estimate returns over the steps that were taken, then take gradient steps on batches of whole trajectories."""
    policy, optimizer, rollout = state.policy, state.optimizer, state.rollout.first(taken)
    learning_rate = optimizer.learning_rate.clone()
    dead_fraction = config.dead_fraction if config.full_reset else None
    collected = running_mask(rollout.terminated, dead_fraction)  # (T, 1) False once the rollout has stopped

    batch = estimate(state, config, rollout, collected)
    alive = batch.alive.transpose(0, 1)
    vf_coef = config.vf_coef if config.has_critic else 0.0
    loss = VPGLoss(config.use_importance_weights, config.weight_clamp, vf_coef, config.ent_coef)
    rows = []
    for trajectories in batch.minibatches(config.num_batches, batch.order(shuffle)):
        terms = gradient(loss, policy, trajectories, optimizer)
        grad_norm = optimize(optimizer, config.max_grad_norm)
        rows.append(torch.stack([*terms, grad_norm]))

    update_statistics(policy, rollout.obs, alive)  # statistics move only between phases
    lifespan = (alive & alive_mask(rollout.done)).sum(0).float()
    lifespan_mean, lifespan_std = moments(lifespan, correction=0)
    died = any_rank((rollout.terminated & alive).any())
    mean = torch.stack(rows).mean(0)
    return VPGMetrics(
        terms=VPGTerms(*mean[:-1]),
        grad_norm=mean[-1],
        learning_rate=learning_rate,
        lifespan_mean=lifespan_mean,
        lifespan_std=lifespan_std,
        lifespan_max=all_reduce_max(lifespan.max()),
        steps=collected.sum() * config.num_envs,
        solved=~died,
        reward=masked_mean(rollout.reward, alive),
        episodes=all_reduce_sum(
            torch.stack([torch.ones_like(lifespan).sum(), (rollout.reward * alive).sum(), lifespan.sum()])
        ),
        health=all_gather(health(state, alive, mean)),
    )
