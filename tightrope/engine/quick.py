"""The policy of a rollout on the CPU: at a few rows a step costs what its calls cost, and NumPy's cost a third of torch's.

What a QuickPolicy says is what the policy says, to rounding: the first step of each rollout is held to that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..models import MLP, ActorCritic, Categorical, Gaussian
from ..models.actor_critic import CategoricalHead, GaussianHead
from .closed_form import plain
from .layers_cpu import Array, Normalize, product_of, rows_of


class Perceptron:
    """A trunk and a last layer, as arrays."""

    def __init__(self, trunk: MLP, last: nn.Linear) -> None:
        linear = [part for part in trunk if isinstance(part, nn.Linear)]
        *self.hidden, self.last = [(layer.weight.data.numpy().T, layer.bias.data.numpy()) for layer in (*linear, last)]
        self.tanh = isinstance(trunk[2], nn.Tanh)

    def __call__(self, x: Array) -> Array:
        rows = len(x)
        for weight, bias in self.hidden:
            x = product_of(rows, weight)(x, weight)
            x += bias
            np.tanh(x, out=x) if self.tanh else np.maximum(x, 0, out=x)
        weight, bias = self.last
        out = product_of(rows, weight)(x, weight)
        out += bias
        return out


class QuickPolicy:
    """A policy as it is now: made anew for each rollout."""

    judges_at_once = False

    @np.errstate(all="ignore")
    def __init__(self, policy: ActorCritic) -> None:
        head, trunk, critic = policy.head, policy.actor, policy.critic
        assert isinstance(trunk, MLP) and isinstance(head, (GaussianHead, CategoricalHead))  # noqa: PT018
        self.normalize = Normalize(policy.normalizer)
        self.actor = Perceptron(trunk, head.mean if isinstance(head, GaussianHead) else head.logits)
        self.critic = None if policy.value_head is None else Perceptron(critic, policy.value_head)  # type: ignore[arg-type]
        self.log_std = head.log_std.data if isinstance(head, GaussianHead) else None
        self.std = np.exp(self.log_std.numpy()) if self.log_std is not None else None
        self.to_env = Bounded(head) if isinstance(head, GaussianHead) else as_it_is

    @np.errstate(all="ignore")
    def choose(self, obs: Array, noise: Array) -> Array:
        """policy.distribution(obs).sample(noise), of rows (N, F)"""
        output = self.actor(self.normalize(obs))
        if self.std is not None:
            output += self.std * noise
            return output
        logits = output.T  # (K, N)
        logits -= np.maximum.reduce(logits)
        cumulative = np.add.accumulate(np.exp(logits))
        return np.add.reduce(cumulative[:-1] <= cumulative[-1] * noise)

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor]:
        """The same, of tensors."""
        return (torch.from_numpy(self.choose(rows_of(obs), noise.numpy())),)

    @np.errstate(all="ignore")
    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The action's log-probability and the value, of policy(obs)."""
        x = self.normalize(rows_of(obs))
        output = torch.from_numpy(self.actor(x))
        distribution = Categorical(output) if self.log_std is None else Gaussian(output, self.log_std)
        value = torch.zeros(len(x)) if self.critic is None else torch.from_numpy(self.critic(x)).squeeze(1)
        return distribution.log_prob(action), value


class Bounded:
    """GaussianHead.to_env, of arrays."""

    def __init__(self, head: GaussianHead) -> None:
        self.low, self.high = head.low.numpy(), head.high.numpy()
        self.middle, self.reach = head.middle.numpy(), head.reach.numpy()
        self.unit, self.shape = head.unit, head.shape

    def __call__(self, action: Array) -> Array:
        scaled = action if self.unit else self.reach * action + self.middle
        inside = np.maximum(scaled, self.low)
        np.minimum(inside, self.high, out=inside)
        return inside if len(self.shape) == 1 else inside.reshape(-1, *self.shape)


def as_it_is(action: Array) -> Array:
    """CategoricalHead.to_env, of arrays."""
    return action


def quick(policy: ActorCritic, obs: Tensor, noise: Tensor) -> QuickPolicy | None:
    """The policy for a rollout on the CPU that starts from `obs`; None where it is another network or distribution than
    those known here, or does something else than the policy does."""
    head, critic = policy.head, policy.critic
    known = type(head) is CategoricalHead or (type(head) is GaussianHead and head.log_std_layer is None)
    if type(policy) is not ActorCritic or not known:
        return None
    if not plain(policy.actor) or not (critic is None or plain(critic)):
        return None
    candidate = QuickPolicy(policy)
    distribution, value = policy(obs)
    action = distribution.sample(noise)
    taken = torch.from_numpy(candidate.to_env(action.numpy()))
    expected = action, policy.head.to_env(action), distribution.log_prob(action), value
    pairs = zip((*candidate.act(obs, noise), taken, *candidate.judge(obs, action)), expected, strict=True)
    return candidate if all(torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True) for a, b in pairs) else None
