"""The gradient of the PPO loss written out by hand, for multilayer perceptrons.

With small networks autograd spends most of its time on bookkeeping, not on arithmetic. This file differentiates the same loss
by hand and writes the gradient into the optimizer's flat buffer; tests compare it with autograd. `Runtime.backward` uses it on
GPUs and in compile mode (on the CPU in eager mode it replays a recording of autograd instead), and only if loss, network and
distribution are exactly the ones handled here. Otherwise autograd computes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from ..functional import PPOLoss, PPOTerms
from ..models import MLP, ActorCritic
from ..models.actor_critic import CategoricalHead, GaussianHead
from ..models.distributions import LOG_2PI
from ..types import Batch

TERMS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")  # computed here and in kernels/learn.py
BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.ReLU: lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0),
}


@dataclass(frozen=True)
class Layer:
    """A linear layer and the views of the flat gradient that its gradient is written to."""

    weight: Tensor  # (out, in)
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight.t())

    def backward(self, x: Tensor, grad: Tensor, ones: Tensor) -> None:
        torch.mm(grad.t(), x, out=self.weight_grad)
        torch.mv(grad.t(), ones, out=self.bias_grad)  # a sum over rows, faster than torch.sum on a GPU


class AnalyticMLP:
    """A multilayer perceptron. `forward` returns the outputs of all layers, which `backward` needs."""

    def __init__(self, trunk: MLP, layers: list[Layer]) -> None:
        self.layers = layers
        self.activation = trunk[2] if len(trunk) > 2 else nn.Tanh()
        self.activation_backward = BACKWARD[type(self.activation)]

    def forward(self, x: Tensor) -> list[Tensor]:
        outputs = [x]
        for layer in self.layers:
            outputs.append(self.activation(layer.forward(outputs[-1])))
        return outputs

    def backward(self, outputs: list[Tensor], grad: Tensor, ones: Tensor) -> None:
        for i in range(len(self.layers) - 1, -1, -1):
            grad = self.activation_backward(grad, outputs[i + 1])
            self.layers[i].backward(outputs[i], grad, ones)
            if i:
                grad = torch.mm(grad, self.layers[i].weight)


class ClosedForm:
    """The gradient of PPOLoss for one policy."""

    compiles = True  # whether torch.compile makes it faster
    grad: Tensor | None = None
    squares: Tensor | None = None  # FusedGradient has the parts of the gradient's squared norm here

    def __init__(self, policy: ActorCritic, grads: Mapping[Tensor, Tensor]) -> None:
        def layer(linear: nn.Linear) -> Layer:
            return Layer(linear.weight.data, linear.bias.data, grads[linear.weight], grads[linear.bias])

        def mlp(trunk: MLP) -> AnalyticMLP:
            return AnalyticMLP(trunk, [layer(part) for part in trunk if isinstance(part, nn.Linear)])

        assert isinstance(policy.actor, MLP) and isinstance(policy.value_head, nn.Linear)  # noqa: PT018
        self.normalizer = policy.normalizer
        self.ones: dict[int, Tensor] = {}  # by length; kept, because CUDA graphs refer to them
        self.actor, self.value_head = mlp(policy.actor), layer(policy.value_head)
        self.critic = self.actor if policy.critic is policy.actor else mlp(policy.critic)  # type: ignore[arg-type]
        if isinstance(policy.head, GaussianHead):
            self.head = layer(policy.head.mean)
            self.log_std: Tensor | None = policy.head.log_std.data
            self.log_std_grad = grads[policy.head.log_std]
        else:
            assert isinstance(policy.head, CategoricalHead)
            self.head, self.log_std = layer(policy.head.logits), None

    @torch.no_grad()
    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        rows = len(batch)
        if rows not in self.ones:
            self.ones[rows] = torch.ones_like(batch.advantage)
        ones = self.ones[rows]
        obs = batch.obs if self.normalizer is None else self.normalizer(batch.obs)
        features = self.actor.forward(obs.flatten(1))
        critic_features = features if self.critic is self.actor else self.critic.forward(features[0])
        output = self.head.forward(features[-1])
        value = self.value_head.forward(critic_features[-1]).squeeze(1)

        # d surrogate / d log-probability: r A where the minimum is the unclipped branch, else 0
        if self.log_std is None:
            log_probs = output.log_softmax(-1)
            log_prob = log_probs.gather(1, batch.action.unsqueeze(1)).squeeze(1)
        else:
            inverse_std = (-self.log_std).exp()
            z = (batch.action - output) * inverse_std
            log_prob = (z.square() + LOG_2PI).mul_(-0.5).sub_(self.log_std).sum(1)
        log_ratio = log_prob - batch.log_prob
        ratio = log_ratio.exp()
        plain = ratio * batch.advantage
        clipped = ratio.clamp(1 - loss.clip_coef, 1 + loss.clip_coef) * batch.advantage  # type: ignore[arg-type]
        weight = (plain * (plain <= clipped)).mul_(-1 / rows).unsqueeze(1)  # (B, 1)

        # d loss / d head output
        if self.log_std is None:
            probs = log_probs.exp()
            entropies = (probs * log_probs).sum(1).neg_()
            grad = (-weight * probs).scatter_add_(1, batch.action.unsqueeze(1), weight)
            add_entropy_gradient(grad, probs, log_probs, entropies, loss.ent_coef)
            entropy = entropies.mean()
        else:
            grad = weight * z * inverse_std
            torch.sum(weight * (z.square() - 1), 0, out=self.log_std_grad)
            self.log_std_grad.sub_(loss.ent_coef)
            entropy = (self.log_std + 0.5 * (1 + LOG_2PI)).sum()

        # d loss / d value
        error = value - batch.target
        squared = error.square()
        value_grad = error * (loss.vf_coef / rows)
        if loss.clip_vloss:
            moved = value - batch.value
            near = batch.value + moved.clamp(-loss.clip_coef, loss.clip_coef)  # type: ignore[arg-type]
            far = (near - batch.target).square()
            # within the interval the two errors are equal up to rounding
            value_grad *= (squared >= far) | (moved.abs() <= loss.clip_coef)
            squared = torch.maximum(squared, far)
        value_grad = value_grad.unsqueeze(1)

        # backward through heads and trunks
        self.head.backward(features[-1], grad, ones)
        self.value_head.backward(critic_features[-1], value_grad, ones)
        down, value_down = torch.mm(grad, self.head.weight), value_grad * self.value_head.weight
        if self.critic is self.actor:
            self.actor.backward(features, down + value_down, ones)
        else:
            self.actor.backward(features, down, ones)
            self.critic.backward(critic_features, value_down, ones)
        outside = ((ratio - 1).abs() > loss.clip_coef).float()
        rows_of_terms = [-torch.minimum(plain, clipped), 0.5 * squared, log_ratio.expm1() - log_ratio, outside]
        policy_loss, value_loss, approx_kl, clip_fraction = torch.stack(rows_of_terms).mean(1).unbind()
        return PPOTerms(policy_loss, value_loss, entropy, approx_kl, clip_fraction)


def add_entropy_gradient(
    grad: Tensor, probs: Tensor, log_probs: Tensor, entropies: Tensor, weight: float | Tensor
) -> None:
    """Add the gradient of -weight times the mean entropy with respect to the logits. (B, options)"""
    rows = len(grad)
    if isinstance(weight, Tensor):  # a value that the host does not read
        grad.addcmul_(probs * (weight / rows), log_probs + entropies.unsqueeze(1))
    elif weight:
        grad.addcmul_(probs, log_probs + entropies.unsqueeze(1), value=weight / rows)


def has_closed_form(loss: object, policy: nn.Module) -> bool:
    """Whether loss, network and distribution are exactly the ones that ClosedForm handles."""
    return type(loss) is PPOLoss and has_known_network(policy)


def has_known_network(policy: nn.Module) -> TypeGuard[ActorCritic]:
    """Whether ClosedForm handles the policy: MLP trunks with a categorical head, or a Gaussian head with a free log_std."""
    if type(policy) is not ActorCritic or policy.action_mask is not None or not is_plain(policy.actor):
        return False
    gaussian = type(policy.head) is GaussianHead and policy.head.log_std_layer is None
    return is_plain(policy.critic) and (gaussian or type(policy.head) is CategoricalHead)


def is_plain(trunk: object) -> bool:
    """Whether a trunk is an MLP over a flattened observation, with one activation that is in BACKWARD."""
    if type(trunk) is not MLP or type(trunk[0]) is not nn.Flatten:
        return False
    activations = {type(part) for part in list(trunk)[2::2]}
    return len(activations) == 1 and activations <= set(BACKWARD)
