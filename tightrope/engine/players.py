"""Who plays a rollout: the policy as it is written, or something quicker that says the same.

On the CPU that is a recording of the policy; on CUDA, where an execution asks for kernels, it is one kernel a step, for a
policy that it knows to the last layer.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..models import ActorCritic
from .accelerate import capturable, compilable, compiling, kernels_wanted
from .device import reads_are_free
from .kernels import fused_policy
from .recorded_policy import recorded_policy


class Player(Protocol):
    """Plays one rollout."""

    judges_at_once: bool  # whether `act` gives (action, log_prob, value), or (action,) alone and `judge` the rest

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """What the policy does, sampled with that noise."""

    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """How likely each action was, and what each observation is worth."""


class AsWritten:
    """The policy itself."""

    def __init__(self, policy: ActorCritic) -> None:
        self.policy = policy
        self.judges_at_once = policy.critic is policy.actor

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return act(self.policy, obs, noise)

    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        distribution, value = self.policy(obs)
        return distribution.log_prob(action), value


@capturable("part")
@compilable()
def act(policy: ActorCritic, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Where actor and critic share a trunk, its answer has all there is to know. Where they are apart a step needs the actor
    alone, and the rest is one pass at the end of the rollout."""
    if policy.critic is not policy.actor:
        return (policy.distribution(obs).sample(noise),)
    distribution, value = policy(obs)
    action = distribution.sample(noise)
    return action, distribution.log_prob(action), value


def value_of(policy: ActorCritic, obs: Tensor) -> Tensor:
    """policy.value(obs), in one kernel where kernels are wanted."""
    fused = None if (precision := kernels_wanted()) is None else fused_policy(policy, precision)
    return fused.value(obs) if fused is not None else policy.value(obs)


def player_for(policy: ActorCritic, obs: Tensor, noise: Tensor) -> Player:
    """The quickest that plays a rollout from `obs` on as this policy does; `noise` is that of its actions, (T, N, ...)."""
    player: Player | None = None
    if reads_are_free(obs.device):
        if not compiling() and not torch.is_autocast_enabled("cpu"):
            player = recorded_policy(policy, obs, noise[0], len(noise) * len(obs))
    elif (precision := kernels_wanted()) is not None:
        player = fused_policy(policy, precision)
    return player or AsWritten(policy)
