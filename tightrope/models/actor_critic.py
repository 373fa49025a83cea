"""ActorCritic: observations to (action distribution, value). Actor and critic may share their trunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..recording import Recordings
from ..types import Bound, Box, Discrete, MultiDiscrete
from .action_mask import ActionMask
from .distributions import RULED_OUT, Categorical, Gaussian, MultiCategorical, masked_logits
from .hybrid import Hybrid, HybridHead
from .memory import MEMORIES, MemoryRows, RecurrentTrunk
from .networks import Activation, Trunk, orthogonal
from .normalizer import ObservationNormalizer, RewardScaler
from .observation_groups import GroupTrunk

WIDEST = 1e6  # a wider interval of actions counts as unbounded
AnyTrunk = Trunk | GroupTrunk | RecurrentTrunk
LOG_STD_RANGE = (-20.0, 2.0)  # limits of log_std "state"
Distribution = Categorical | Gaussian | Hybrid


@dataclass(frozen=True)
class NetworkConfig:
    """Settings of the networks."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of each multilayer perceptron."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    share_trunk: bool = False
    """Share one trunk between actor and critic (always true for images)."""
    norm_obs: bool = False
    """Normalise observations by their running mean and variance, which are saved with the model."""
    network: str | None = None
    """Your own network as module:Class, constructed without arguments: observations in, features (B, F) out."""
    log_std: Literal["free", "state"] = "free"
    """Continuous actions: a free parameter per dimension, or an output of the network in [-20, 2]."""
    log_std_init: float = 0.0
    """Initial log standard deviation of actions, which are scaled so that their bounds are -1 and 1."""
    actor_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the actor sees; None for all but one called privileged."""
    critic_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the critic sees; None for all."""
    memory: str | None = None
    """Memory between trunk and heads: gru, lstm, mingru, your own as module:Class, or None. Minibatches are then sequences."""
    memory_size: int = 64
    """Size of the memory's state, for actor and critic each; an lstm has two of them."""
    memory_layers: int = 1
    """Number of memories on top of each other."""

    def __post_init__(self) -> None:
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UsageError(f"hidden_sizes {list(self.hidden_sizes)} is invalid: give one or more positive widths")
        low, high = LOG_STD_RANGE
        if not low <= self.log_std_init <= high:
            advice = f"give a number from {low:g} to {high:g}"
            raise UsageError(f"log_std_init {self.log_std_init} is out of range: {advice}")
        for name in ("actor_obs", "critic_obs"):
            if getattr(self, name) == ():
                raise UsageError(f"{name} is empty: name at least one entry of the observation, or give None")
        if self.memory is not None and self.memory not in MEMORIES and ":" not in self.memory:
            kinds = ", ".join(MEMORIES)
            raise UsageError(f"memory {self.memory!r} is unknown: give {kinds}, module:Class of your own, or none")
        for name in ("memory_size", "memory_layers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)} is too small: give at least 1")


class CategoricalHead(nn.Module):
    """Features to a distribution over n actions."""

    def __init__(self, in_features: int, action: Discrete) -> None:
        super().__init__()
        self.logits = orthogonal(nn.Linear(in_features, action.n), 0.01)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        return self.distribution(self.logits(features).float(), mask)  # float also under autocast

    def distribution(self, logits: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(logits if mask is None else masked_logits(logits, mask))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Categorical.noise(shape, generator)

    def to_env(self, action: Tensor) -> Tensor:
        return action


class MultiCategoricalHead(nn.Module):
    """Features to a distribution over several independent choices."""

    ruled_out: Tensor

    def __init__(self, in_features: int, action: MultiDiscrete) -> None:
        super().__init__()
        self.choices, self.most, self.sizes = len(action.n), max(action.n), action.n
        self.logits = orthogonal(nn.Linear(in_features, self.choices * self.most), 0.01)
        beyond = torch.arange(self.most)[None] >= torch.tensor(action.n)[:, None]  # (K, most)
        self.register_buffer("ruled_out", beyond, persistent=False)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        return self.distribution(self.logits(features).float(), mask)

    def distribution(self, logits: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        logits = torch.unflatten(logits, -1, (self.choices, self.most))
        if mask is None:
            return MultiCategorical(logits.masked_fill(self.ruled_out, RULED_OUT))
        rows = mask.split_with_sizes(list(self.sizes), -1)
        wide = torch.stack([nn.functional.pad(row, (0, self.most - row.shape[-1])) for row in rows], -2)
        return MultiCategorical(masked_logits(logits, wide))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return MultiCategorical.noise((*shape, self.choices), generator)

    def to_env(self, action: Tensor) -> Tensor:
        return action


class GaussianHead(nn.Module):
    """Features to a diagonal Gaussian over actions, scaled so that their bounds are -1 and 1.

    The environment gets the action rescaled and clipped to its bounds; learning uses the raw action.
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    half_range: Tensor

    def __init__(self, in_features: int, action: Box, state_dependent: bool, log_std_init: float = 0.0) -> None:
        super().__init__()
        self.shape, self.size = action.shape, math.prod(action.shape)
        low, high = each(action.low, self.size), each(action.high, self.size)
        bounded = (high - low) < WIDEST
        middle, half_range = torch.where(bounded, (low + high) / 2, 0.0), torch.where(bounded, (high - low) / 2, 1.0)
        for name, values in {"low": low, "high": high, "middle": middle, "half_range": half_range}.items():
            self.register_buffer(name, values, persistent=False)
        self.unit = bool((low == -1).all() and (high == 1).all())  # bounds are already -1 and 1: no rescaling
        self.mean = orthogonal(nn.Linear(in_features, self.size), 0.01)
        if state_dependent:
            self.log_std_layer: nn.Linear | None = orthogonal(nn.Linear(in_features, self.size), 0.01)
            nn.init.constant_(self.log_std_layer.bias, log_std_init)
        else:
            self.log_std_layer = None
            self.log_std = nn.Parameter(torch.full((self.size,), log_std_init))  # [detail 24]

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Gaussian:
        if self.log_std_layer is None:
            return Gaussian(self.mean(features).float(), self.log_std)
        return Gaussian(self.mean(features).float(), self.log_std_layer(features).float().clamp(*LOG_STD_RANGE))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return Gaussian.noise((*shape, self.size), generator)

    def to_env(self, action: Tensor) -> Tensor:
        if self.unit:
            inside = action.clamp(-1.0, 1.0)
        else:
            inside = torch.addcmul(self.middle, self.half_range, action).clamp_(self.low, self.high)  # [detail 27]
        return inside if len(self.shape) == 1 else inside.view(*action.shape[:-1], *self.shape)


Head = CategoricalHead | MultiCategoricalHead | GaussianHead | HybridHead


def each(bound: Bound, size: int) -> Tensor:
    """Return one bound per entry."""
    return torch.tensor(bound).expand(size).clone()


class ActorCritic(nn.Module):
    """A policy head on the trunk `actor` and, unless `critic` is None, a value head on the trunk `critic`.

    `actor` and `critic` are trunks without heads, and may be the same module.
    """

    memory_rows: MemoryRows | None = None  # how observations carry the state of a policy with memory, see recurrent.py

    def __init__(
        self, actor: AnyTrunk, critic: AnyTrunk | None, head: Head,
        normalizer: ObservationNormalizer | None = None, action_mask: ActionMask | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.actor, self.head, self.critic = actor, head, critic
        self.value_head = None if critic is None else orthogonal(nn.Linear(critic.out_features, 1), 1.0)
        self.normalizer, self.action_mask = normalizer, action_mask
        self.reward_scaler = RewardScaler()
        self.recordings = Recordings()  # of acting on the CPU, see engine/rollout_policy.py

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        obs, mask = self._prepare(obs)
        features = self.actor(obs)
        return self.head(features, mask), self._value(features if self.critic is self.actor else obs)

    def distribution(self, obs: Tensor) -> Distribution:
        obs, mask = self._prepare(obs)
        return self.head(self.actor(obs), mask)

    def value(self, obs: Tensor) -> Tensor:
        obs, _ = self._prepare(obs)
        return self._value(self.actor(obs) if self.critic is self.actor else obs)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(actions to learn from, actions for the environment): the likeliest, or sampled with the noise."""
        distribution = self.distribution(obs)
        action = distribution.mode() if noise is None else distribution.sample(noise)
        return action, self.head.to_env(action)

    def act_and_evaluate(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """What `act` returns, the log-probabilities of the actions, and the values."""
        distribution, value = self(obs)
        action = distribution.sample(noise)
        return action, self.head.to_env(action), distribution.log_prob(action), value

    def observed(self, obs: Tensor) -> Tensor:
        """The observations (B, ...) without what a memory adds to them."""
        return obs

    def valid_rows(self, rows: Tensor) -> Tensor:
        """Rows of random numbers as observations of this policy: with valid action masks."""
        return rows if self.action_mask is None else self.action_mask.with_valid_masks(rows)

    def _prepare(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The normalised observation as networks see it, and the action mask where there is one."""
        obs = obs if self.normalizer is None else self.normalizer(obs)
        return (obs, None) if self.action_mask is None else self.action_mask(obs)

    def _value(self, x: Tensor) -> Tensor:
        """Return the value. `x` are the features of a shared trunk, or else the normalised observations."""
        if self.critic is None or self.value_head is None:
            return torch.zeros(x.shape[0], device=x.device)
        features = x if self.critic is self.actor else self.critic(x)
        return self.value_head(features).float().squeeze(-1)
