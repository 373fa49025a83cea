"""The closed form on the CPU, where what small networks cost is the number of calls, and not what they compute.

The same derivatives as in `closed_form`, over NumPy views of the same memory: a call of NumPy's costs a third of one of
torch's, and its tanh a sixth. Layers write into arrays kept from one minibatch to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..functional import PPOLoss, PPOTerms
from ..models import MLP, ActorCritic
from ..models.actor_critic import GaussianHead
from ..models.distributions import LOG_2PI
from ..models.normalizer import CLIP, EPS, ObservationNormalizer
from ..types import Batch

Array = NDArray[Any]
SMALL = 64**3  # multiplications below which OpenBLAS stays in one thread; torch runs larger products in as many as it may


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """The matrix product."""
    if a.shape[0] * a.shape[1] * b.shape[1] <= SMALL:
        return np.dot(a, b, out=out)
    into = None if out is None else torch.from_numpy(out)
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=into).numpy()


class Layer:
    """A linear layer, where its gradient goes, and what it last put out."""

    def __init__(self, linear: nn.Linear, grads: Mapping[Tensor, Tensor]) -> None:
        self.bias, self.transposed = linear.bias.data, linear.weight.data.t()
        self.weight = linear.weight.data.numpy()
        self.weight_grad, self.bias_grad = grads[linear.weight].numpy(), grads[linear.bias].numpy()
        self.room = lru_cache(maxsize=4)(self._room)  # one per size of minibatch

    def _room(self, rows: int) -> tuple[Tensor, Array, Array]:
        wide, narrow = self.weight.shape
        out = torch.empty(rows, wide)
        return out, out.numpy(), np.empty((rows, narrow), np.float32)

    def forward(self, x: Tensor) -> tuple[Tensor, Array]:
        """The output, as a tensor and as an array."""
        out, array, _ = self.room(len(x))
        torch.addmm(self.bias, x, self.transposed, out=out)
        return out, array

    def backward(self, x: Array, grad: Array) -> None:
        """Write the gradients of weight and bias, from that of the output."""
        product(grad.T, x, self.weight_grad)
        np.dot(ones(len(grad)), grad, out=self.bias_grad)

    def down(self, grad: Array) -> Array:
        """The gradient by the input."""
        _, _, below = self.room(len(grad))
        product(grad, self.weight, below)
        return below


@lru_cache(maxsize=16)
def ones(length: int) -> Array:
    """A product with these is a sum, and quicker."""
    return np.ones(length, np.float32)


class Tower:
    """A multilayer perceptron: forward keeps what backward needs."""

    def __init__(self, trunk: MLP, grads: Mapping[Tensor, Tensor]) -> None:
        self.layers = [Layer(part, grads) for part in trunk if isinstance(part, nn.Linear)]
        self.tanh = isinstance(trunk[2], nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        self.outputs = [x.numpy()]
        for layer in self.layers:
            x, out = layer.forward(x)
            np.tanh(out, out=out) if self.tanh else np.maximum(out, 0, out=out)
            self.outputs.append(out)
        return x

    def backward(self, grad: Array) -> None:
        """From the gradient by the last output, which is overwritten, as the outputs are."""
        for i in range(len(self.layers) - 1, -1, -1):
            out = self.outputs[i + 1]
            if self.tanh:
                np.multiply(out, out, out=out)
                np.subtract(1, out, out=out)
                np.multiply(grad, out, out=grad)
            else:
                np.multiply(grad, out > 0, out=grad)
            self.layers[i].backward(self.outputs[i], grad)
            if i:
                grad = self.layers[i].down(grad)


class Normalize:
    """What an ObservationNormalizer does, or nothing where there is none."""

    def __init__(self, normalizer: ObservationNormalizer | None) -> None:
        self.normalizes = normalizer is not None
        if normalizer is not None:
            self.mean, self.variance = normalizer.mean.flatten().numpy(), normalizer.variance.flatten().numpy()
            self.real = None if normalizer.real is None else normalizer.real.flatten().numpy()

    def __call__(self, obs: Array) -> Array:
        if not self.normalizes:
            return obs
        normal = obs - self.mean
        normal /= np.sqrt(self.variance + EPS)
        np.maximum(normal, -CLIP, out=normal)
        np.minimum(normal, CLIP, out=normal)
        return normal if self.real is None else np.where(self.real, normal, obs)


class ClosedFormCPU:
    """The gradient of PPOLoss for one policy; made once, when its optimiser first asks."""

    def __init__(self, policy: ActorCritic, grads: Mapping[Tensor, Tensor]) -> None:
        assert isinstance(policy.actor, MLP) and isinstance(policy.value_head, nn.Linear)  # noqa: PT018
        self.normalize = Normalize(policy.normalizer)
        self.actor, self.value_head = Tower(policy.actor, grads), Layer(policy.value_head, grads)
        self.critic = self.actor if policy.critic is policy.actor else Tower(policy.critic, grads)  # type: ignore[arg-type]
        if isinstance(policy.head, GaussianHead):
            self.head = Layer(policy.head.mean, grads)
            self.log_std: Array | None = policy.head.log_std.data.numpy()
            self.log_std_grad = grads[policy.head.log_std].numpy()
        else:
            self.head, self.log_std = Layer(policy.head.logits, grads), None
            self.choices = np.arange(len(self.head.weight))

    @torch.no_grad()
    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        rows, clip = len(batch), float(loss.clip_coef)
        each = ones(rows)
        action, old_value, target = batch.action.numpy(), batch.value.numpy(), batch.target.numpy()
        advantage = batch.advantage.numpy()
        obs = torch.from_numpy(self.normalize(batch.obs.flatten(1).numpy()))
        features = self.actor.forward(obs)
        value_features = features if self.critic is self.actor else self.critic.forward(obs)
        _, output = self.head.forward(features)
        _, values = self.value_head.forward(value_features)

        # the surrogate, by the log-probability: r A where the minimum is not the clipped branch, else 0
        if self.log_std is None:
            log_probs = output
            log_probs -= np.maximum.reduce(log_probs, 1, keepdims=True)
            probs = np.exp(log_probs)
            total = probs.sum(1, keepdims=True)
            log_probs -= np.log(total)
            probs /= total
            chosen = action[:, None] == self.choices
            log_prob = (log_probs * chosen).dot(ones(len(self.choices)))
        else:
            dimensions, inverse_std = ones(len(self.log_std)), np.exp(-self.log_std)
            z = (action - output) * inverse_std
            square = z * z
            log_prob = square.dot(-0.5 * dimensions)
            log_prob -= (self.log_std + 0.5 * LOG_2PI).dot(dimensions)
        log_ratio = log_prob - batch.log_prob.numpy()
        ratio = np.exp(log_ratio)
        plain = ratio * advantage
        near = np.minimum(np.maximum(ratio, 1 - clip), 1 + clip)
        clipped = near * advantage
        weight = plain * (plain <= clipped)
        weight *= -1 / rows

        # the head, by its output
        if self.log_std is None:
            surprise = probs * log_probs
            entropies = surprise.dot(-ones(len(self.choices)))
            entropy = entropies.dot(each) / rows
            grad = weight[:, None] * (chosen - probs)
            if loss.ent_coef:
                grad += (loss.ent_coef / rows) * (surprise + probs * entropies[:, None])
        else:
            grad = weight[:, None] * z
            grad *= inverse_std
            np.dot(weight, square, out=self.log_std_grad)
            self.log_std_grad -= weight.dot(each) + loss.ent_coef
            entropy = (self.log_std + 0.5 * (1 + LOG_2PI)).dot(dimensions)

        # the critic, by the value
        value = values[:, 0]
        error = value - target
        squared = error * error
        value_grad = error * (loss.vf_coef / rows)
        if loss.clip_vloss:
            moved = value - old_value
            kept = np.minimum(np.maximum(moved, -clip), clip)
            far = np.square(old_value + kept - target)
            value_grad *= (kept == moved) | (squared >= far)
            squared = np.maximum(squared, far)

        # and back through the trunks
        self.head.backward(self.actor.outputs[-1], grad)
        self.value_head.backward(self.critic.outputs[-1], value_grad[:, None])
        down, value_down = self.head.down(grad), self.value_head.down(value_grad[:, None])
        if self.critic is self.actor:
            down += value_down
        else:
            self.critic.backward(value_down)
        self.actor.backward(down)

        sums = [
            -np.minimum(plain, clipped).dot(each),
            0.5 * squared.dot(each),
            rows * entropy,
            (np.expm1(log_ratio) - log_ratio).dot(each),
            np.count_nonzero(near != ratio),
        ]
        return PPOTerms(*torch.tensor(sums).div_(rows).unbind())
