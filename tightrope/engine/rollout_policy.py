"""What acts in a rollout: the policy as it is written, or something quicker that gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ..models import ActorCritic
from ..recording import Array

Act = Callable[[ActorCritic, Tensor, Tensor], tuple[Tensor, ...]]
Choose = Callable[[Array, Array], list[Array]]  # (obs, noise) to actions: for learning, and for the environment


class RolloutPolicy(Protocol):
    """A policy for the length of one rollout."""

    evaluates_in_act: bool  # whether `act` gives (action, log_prob, value), and not (action,) alone

    @property
    def choose(self) -> Choose | None:
        """How to act over arrays, where that can be done."""

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """What the policy does, sampled with that noise."""

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """How likely each action was, and what each observation is worth."""


class EagerPolicy:
    """The policy itself. `act` is the function below, or a compiled or captured one."""

    choose: Choose | None = None

    def __init__(self, policy: ActorCritic, act: Act) -> None:
        self.policy, self._act = policy, act
        self.evaluates_in_act = policy.critic is policy.actor

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return self._act(self.policy, obs, noise)

    def evaluate_actions(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        distribution, value = self.policy(obs)
        return distribution.log_prob(action), value


def act(policy: ActorCritic, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """Where actor and critic share a trunk, its answer has all there is to know. Where they are apart a step needs the actor
    alone, and the rest is one pass at the end of the rollout."""
    if policy.critic is not policy.actor:
        return (policy.distribution(obs).sample(noise),)
    distribution, value = policy(obs)
    action = distribution.sample(noise)
    return action, distribution.log_prob(action), value
