"""ActorCritic: an observation in, (distribution, value) out. The actor and the critic may share their trunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..types import Box, Discrete, Spec
from .distributions import Categorical, Gaussian
from .networks import MLP, Activation, NatureCNN, Trunk, orthogonal
from .normalizer import ObservationNormalizer, RewardScaler

LOG_STD_RANGE = (-20.0, 2.0)  # of the state-dependent option
IMAGE_SIDE = 36  # the smallest picture the three convolutions can read


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of the networks."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of each multilayer perceptron."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    share_trunk: bool = False
    """One trunk for actor and critic (images always share theirs)."""
    norm_obs: bool = False
    """Normalise observations by their running mean and variance, which are part of the model."""
    log_std: Literal["free", "state"] = "free"
    """Continuous actions: a free parameter per dimension, from 0, or an output of the network in [-20, 2]."""

    def __post_init__(self) -> None:
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UsageError(f"hidden_sizes {list(self.hidden_sizes)} will not do: give one or more positive widths")


class CategoricalHead(nn.Module):
    """Features to a distribution over n actions."""

    def __init__(self, in_features: int, action: Discrete) -> None:
        super().__init__()
        self.logits = orthogonal(nn.Linear(in_features, action.n), 0.01)

    def forward(self, features: Tensor) -> Categorical:
        return Categorical(self.logits(features))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Categorical.noise(shape, generator)

    def to_env(self, action: Tensor) -> Tensor:
        return action


class GaussianHead(nn.Module):
    """Features to a diagonal Gaussian; the environment gets the action clipped to its bounds, the learner the raw one."""

    def __init__(self, in_features: int, action: Box, state_dependent: bool) -> None:
        super().__init__()
        size = math.prod(action.shape)
        self.low, self.high, self.size = action.low, action.high, size
        self.mean = orthogonal(nn.Linear(in_features, size), 0.01)
        if state_dependent:
            self.log_std_layer: nn.Linear | None = orthogonal(nn.Linear(in_features, size), 0.01)
        else:
            self.log_std_layer = None
            self.log_std = nn.Parameter(torch.zeros(size))  # [detail 24]

    def forward(self, features: Tensor) -> Gaussian:
        if self.log_std_layer is None:
            return Gaussian(self.mean(features), self.log_std)
        return Gaussian(self.mean(features), self.log_std_layer(features).clamp(*LOG_STD_RANGE))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Gaussian.noise((*shape, self.size), generator)

    def to_env(self, action: Tensor) -> Tensor:
        return action.clamp(self.low, self.high)  # [detail 27]


class ActorCritic(nn.Module):
    """A policy head and, unless `critic` is None, a value head, each on its trunk (possibly the same one)."""

    def __init__(
        self,
        actor: Trunk,
        critic: Trunk | None,
        head: CategoricalHead | GaussianHead,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__()
        self.actor, self.head, self.critic = actor, head, critic
        self.value_head = None if critic is None else orthogonal(nn.Linear(critic.out_features, 1), 1.0)
        self.normalizer = normalizer
        self.reward_scaler = RewardScaler()

    def forward(self, obs: Tensor) -> tuple[Categorical | Gaussian, Tensor]:
        obs = self._normalize(obs)
        features = self.actor(obs)
        return self.head(features), self._value(features if self.critic is self.actor else obs)

    def distribution(self, obs: Tensor) -> Categorical | Gaussian:
        return self.head(self.actor(self._normalize(obs)))

    def value(self, obs: Tensor) -> Tensor:
        obs = self._normalize(obs)
        return self._value(self.actor(obs) if self.critic is self.actor else obs)

    def _normalize(self, obs: Tensor) -> Tensor:
        return obs if self.normalizer is None else self.normalizer(obs)

    def _value(self, x: Tensor) -> Tensor:
        """From the shared trunk's features, or from the observation where the critic has a trunk of its own."""
        if self.critic is None or self.value_head is None:
            return torch.zeros(x.shape[0], device=x.device)
        features = x if self.critic is self.actor else self.critic(x)
        return self.value_head(features).squeeze(-1)

    def update_statistics(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Merge a rollout's observations (T, N, ...) into the normalizer, once its learning is done."""
        if self.normalizer is not None:
            self.normalizer.merge(obs.flatten(0, 1), None if mask is None else mask.flatten())


def actor_critic(observation: Spec, action: Spec, network: NetworkConfig, critic: bool = True) -> ActorCritic:
    """The network that fits a pair of spaces."""

    def trunk() -> Trunk:
        if is_image(observation):
            return NatureCNN(observation.shape)
        return MLP(math.prod(observation.shape), network.hidden_sizes, network.activation)

    if not isinstance(observation, Box) or not (is_image(observation) or observation.dtype.is_floating_point):
        raise UsageError(
            f"observations of {observation} are not supported: give floating-point numbers, or uint8 images as "
            "(channels, height, width)"
        )
    if isinstance(action, Box) and len(action.shape) != 1:
        raise UsageError(f"actions of shape {action.shape} are not supported: give a Box with one axis")
    actor = trunk()
    shared = network.share_trunk or is_image(observation)
    own = None if not critic else actor if shared else trunk()
    head: CategoricalHead | GaussianHead
    if isinstance(action, Discrete):
        head = CategoricalHead(actor.out_features, action)
    else:
        head = GaussianHead(actor.out_features, action, network.log_std == "state")
    normalizer = ObservationNormalizer(observation.shape) if network.norm_obs and not is_image(observation) else None
    return ActorCritic(actor, own, head, normalizer)


def is_image(spec: Spec) -> bool:
    """uint8 frames as (channels, height, width)."""
    return spec.dtype == torch.uint8 and len(spec.shape) == 3 and min(spec.shape[1:]) >= IMAGE_SIDE
