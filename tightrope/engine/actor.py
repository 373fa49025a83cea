"""The policy while it acts: on the CPU, a multilayer perceptron's step is a dozen calls of NumPy's.

At a few rows a step costs what its calls cost, and torch's cost several times NumPy's. What the step computes is
`policy.distribution(obs).sample(noise)`, and the first step of each rollout is held to that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from ..models import ActorCritic
from ..models.actor_critic import CategoricalHead, GaussianHead
from .closed_form import plain
from .closed_form_cpu import Array, Normalize, product

Act = Callable[[Tensor, Tensor], Tensor]  # (N, ...) observations and noise to actions


class Actor:
    """The actor of one policy as it is now: made anew for each rollout."""

    def __init__(self, policy: ActorCritic) -> None:
        def layer(linear: nn.Linear) -> tuple[Array, Array]:
            return linear.weight.data.numpy().T, linear.bias.data.numpy()

        trunk = policy.actor
        self.normalize = Normalize(policy.normalizer)
        self.hidden = [layer(part) for part in trunk if isinstance(part, nn.Linear)]  # type: ignore[union-attr]
        self.activation = np.tanh if isinstance(trunk[2], nn.Tanh) else relu  # type: ignore[index]
        if isinstance(policy.head, GaussianHead):
            self.head, self.std = layer(policy.head.mean), np.exp(policy.head.log_std.data.numpy())
        else:
            self.head, self.std = layer(policy.head.logits), None

    def __call__(self, obs: Tensor, noise: Tensor) -> Tensor:
        x = self.normalize(obs.numpy().reshape(len(obs), -1))
        for weight, bias in self.hidden:
            x = product(x, weight)
            x += bias
            self.activation(x, out=x)
        weight, bias = self.head
        output = product(x, weight)
        output += bias
        if self.std is not None:
            output += self.std * noise.numpy()
            return torch.from_numpy(output)
        logits = output.T  # (K, N)
        logits -= np.maximum.reduce(logits)
        cumulative = np.add.accumulate(np.exp(logits))
        return torch.from_numpy(np.add.reduce(cumulative <= cumulative[-1] * noise.numpy()))


def relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=out)


def quick_actor(policy: ActorCritic, obs: Tensor, noise: Tensor) -> Act | None:
    """The quick way to act in a rollout on the CPU, or None where there is none: another network or distribution, or one
    whose action here is not the policy's own."""
    head = policy.head
    known = type(head) is CategoricalHead or (type(head) is GaussianHead and head.log_std_layer is None)
    if torch.is_autocast_enabled("cpu"):
        return None
    if type(policy) is not ActorCritic or not known or not plain(policy.actor):
        return None
    actor = Actor(policy)
    expected = policy.distribution(obs).sample(noise)
    return actor if torch.allclose(actor(obs, noise), expected, rtol=1e-4, atol=1e-4) else None
