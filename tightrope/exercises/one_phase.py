"""One phase of training on a small task, with everything that was computed kept beside it, to compare with definitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..algorithms import ALGORITHMS, OnPolicyConfig
from ..algorithms.common import noise_of_phase, start
from ..engine import Noise, Runtime, State, initialising
from ..envs import TensorEnv
from ..models import ActorCritic, NetworkConfig, actor_critic
from ..types import Batch, Box, Discrete, Rollout, Settings, Spec

ENVS, STEPS, SEED = 8, 12, 3
SETTINGS: dict[str, Settings] = {
    "ppo": dict(
        num_envs=ENVS, num_steps=STEPS, num_minibatches=4, update_epochs=3, total_timesteps=4 * ENVS * STEPS,
        learning_rate=0.02, ent_coef=0.1, gamma=0.9, gae_lambda=0.8, max_grad_norm=0.5,
    ),
    "vpg": dict(
        num_envs=ENVS, num_steps=STEPS, total_timesteps=4 * ENVS * STEPS, learning_rate=0.02, anneal_lr=True,
        ent_coef=0.1, gamma=0.9, max_grad_norm=0.5, use_importance_weights=True, weight_clamp=0.1, rollout_uses=3,
        num_batches=2,
    ),
}  # fmt: skip


class DriftEnv(TensorEnv):
    """A point that drifts for at most five steps; some episodes terminate, some reach the time limit."""

    observation: Spec = Box((2,))
    action: Spec = Discrete(3)
    noise_size = 2
    time_limit = 5

    def initial(self, noise: Tensor) -> Tensor:
        return 2 * noise - 1

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        push = 0.2 * action.view(len(state), -1)[:, :1].to(state.dtype)
        return torch.cat([0.9 * state[:, :1] + push, 0.9 * state[:, 1:] + 0.15], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0] - 0.5 * state[:, 1]

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 1] > 0.6


class DriftEnvContinuous(DriftEnv):
    """The same with one number as the action."""

    action = Box((1,), -1.0, 1.0)


@dataclass(eq=False)
class Update:
    """One gradient step: its minibatch and gradient, the parameters before it."""

    batch: Batch
    grad: Tensor
    before: Tensor
    learning_rate: float
    after: Tensor = field(init=False)


@dataclass
class OnePhase:
    """A phase that was executed, and the state before it."""

    config: OnPolicyConfig
    state: State
    noise: Noise
    old_policy: ActorCritic  # that acted
    env_before: dict[str, Tensor]
    obs_before: Tensor
    updates: list[Update]
    metrics: object

    @property
    def rollout(self) -> Rollout:
        return self.state.rollout

    @property
    def actor_size(self) -> int:
        """The number of parameters before those of the critic."""
        named = [(name, p.numel()) for name, p in self.old_policy.named_parameters()]
        return sum(size for name, size in named if "critic" not in name and "value" not in name)

    def policy_with(self, parameters: Tensor) -> ActorCritic:
        """The policy during this phase, with these parameters."""
        policy, offset = copy.deepcopy(self.old_policy), 0
        for p in policy.parameters():
            p.data = parameters[offset : offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        return policy


def run_phase(
    algo: str, continuous: bool = False, functions: Mapping[str, Callable[..., object]] | None = None
) -> OnePhase:
    """Execute the first phase of a run, with `functions` in place of the algorithm's."""
    config = ALGORITHMS[algo].config(**SETTINGS[algo])
    env = (DriftEnvContinuous if continuous else DriftEnv)(ENVS)
    with initialising(SEED):
        policy = actor_critic(
            env.observation, env.action, NetworkConfig(hidden_sizes=(8,), norm_obs=True), config.has_critic
        )
    updates: list[Update] = []

    def watch(batch: Batch, terms: object) -> None:
        o, fixed = state.optimizer, {name: getattr(batch, name).clone() for name in type(batch).__match_args__}
        updates.append(Update(replace(batch, **fixed), o.grad.clone(), o.flat.clone(), float(o.learning_rate)))

    state: State = start(env, policy, config, SEED, Runtime(watcher=watch, say=lambda line: None))
    state.functions = state.functions.with_own(functions or {})
    noise = noise_of_phase(state, config)
    before = copy.deepcopy(policy), env.state_dict(), state.obs.clone()
    metrics = next(iter(ALGORITHMS[algo].loop(state, config)))
    for update, following in zip(
        updates, [*(u.before for u in updates[1:]), state.optimizer.flat.clone()], strict=False
    ):
        update.after = following
    return OnePhase(config, state, noise, *before, updates, metrics)
