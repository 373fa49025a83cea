"""The closed form on the CPU, where what small networks cost is the number of calls, and not what they compute.

The same derivatives as in `closed_form`, over NumPy views of the same memory: a call of NumPy's costs a third of one of
torch's, and its tanh a sixth. Trunks are rows, (B, F). Heads have few outputs and are columns, (K, B), since arrays want
their last axis long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
Grads = Mapping[Tensor, Tensor]
SMALL = 64**3  # multiplications up to which OpenBLAS stays in one thread; torch runs more of them in as many as it may


Product = Callable[..., Array]


def mm(a: Array, b: Array, out: Array | None = None) -> Array:
    """torch's matrix product."""
    into = None if out is None else torch.from_numpy(out)
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=into).numpy()


def product_of(rows: int, weight: Array) -> Product:
    """How to multiply that many rows by a layer's weight."""
    return np.dot if rows * weight.size <= SMALL else mm


@lru_cache(maxsize=16)
def ones(length: int) -> Array:
    """A product with these is a sum, and quicker."""
    return np.ones(length, np.float32)


def clipped(x: Array, low: float, high: float) -> Array:
    """np.clip without its ceremony."""
    x = np.maximum(x, low)
    return np.minimum(x, high, out=x)


class Linear:
    """A linear layer as arrays, and where its gradient goes."""

    def __init__(self, linear: nn.Linear, grads: Grads) -> None:
        self.weight, self.bias = linear.weight.data.numpy(), linear.bias.data.numpy()
        self.weight_grad, self.bias_grad = grads[linear.weight].numpy(), grads[linear.bias].numpy()


class Head(Linear):
    """The last layer, its outputs as columns."""

    def forward(self, x: Array) -> Array:
        self.x, self.product = x, product_of(len(x), self.weight)
        out = self.product(self.weight, x.T)
        out += self.bias[:, None]
        return out

    def backward(self, grad: Array) -> Array:
        """Write the gradients of weight and bias, from that of the output; returns that of the input."""
        self.product(grad, self.x, out=self.weight_grad)
        np.dot(grad, ones(len(self.x)), out=self.bias_grad)
        return self.product(grad.T, self.weight)


class Hidden(Linear):
    """A layer with its activation. It writes into arrays kept from one minibatch to the next."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, grads: Grads) -> None:
        super().__init__(linear, grads)
        self.tanh = isinstance(activation, nn.Tanh)
        self.room = lru_cache(maxsize=4)(self._room)

    def _room(self, rows: int) -> tuple[Array, Array, Product]:
        wide, narrow = self.weight.shape
        out, below = np.empty((rows, wide), np.float32), np.empty((rows, narrow), np.float32)
        return out, below, product_of(rows, self.weight)

    def forward(self, x: Array) -> Array:
        self.x = x
        self.out, self.below, self.product = out, _, product = self.room(len(x))
        product(x, self.weight.T, out=out)
        out += self.bias
        return np.tanh(out, out=out) if self.tanh else np.maximum(out, 0, out=out)

    def backward(self, grad: Array) -> None:
        """Write the gradients of weight and bias, from that of the output, which is overwritten as the output is."""
        out = self.out
        if self.tanh:
            np.multiply(out, out, out=out)
            np.subtract(1, out, out=out)
        else:
            np.greater(out, 0, out=out)
        grad *= out
        self.product(grad.T, self.x, out=self.weight_grad)
        np.dot(ones(len(grad)), grad, out=self.bias_grad)

    def down(self, grad: Array) -> Array:
        """The gradient by the input."""
        return self.product(grad, self.weight, out=self.below)


class Tower:
    """A multilayer perceptron: forward keeps what backward needs."""

    def __init__(self, trunk: MLP, grads: Grads) -> None:
        parts = list(trunk)[1:]
        self.layers = [Hidden(a, b, grads) for a, b in zip(parts[::2], parts[1::2], strict=True)]  # type: ignore[arg-type]

    def forward(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, grad: Array) -> None:
        first, *above = self.layers
        for layer in reversed(above):
            layer.backward(grad)
            grad = layer.down(grad)
        first.backward(grad)


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

    def __init__(self, policy: ActorCritic, grads: Grads) -> None:
        assert isinstance(policy.actor, MLP) and isinstance(policy.value_head, nn.Linear)  # noqa: PT018
        self.normalize = Normalize(policy.normalizer)
        self.actor, self.value_head = Tower(policy.actor, grads), Head(policy.value_head, grads)
        self.critic = self.actor if policy.critic is policy.actor else Tower(policy.critic, grads)  # type: ignore[arg-type]
        if isinstance(policy.head, GaussianHead):
            self.head = Head(policy.head.mean, grads)
            self.log_std: Array | None = policy.head.log_std.data.numpy()
            self.log_std_grad = grads[policy.head.log_std].numpy()
        else:
            self.head, self.log_std = Head(policy.head.logits, grads), None
            self.choices = np.arange(len(self.head.weight))[:, None]

    @np.errstate(all="ignore")  # what is not finite is reported once a phase
    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        rows, clip = len(batch), float(loss.clip_coef)
        each, outputs = ones(rows), ones(len(self.head.weight))
        advantage, target = batch.advantage.numpy(), batch.target.numpy()
        obs = self.normalize(batch.obs.flatten(1).numpy())
        features = self.actor.forward(obs)
        value_features = features if self.critic is self.actor else self.critic.forward(obs)
        output, value = self.head.forward(features), self.value_head.forward(value_features)[0]

        # the surrogate, by the log-probability: r A where the minimum is not the clipped branch, else 0
        if self.log_std is None:
            log_probs = output
            log_probs -= np.maximum.reduce(log_probs)
            probs = np.exp(log_probs)
            total = outputs.dot(probs)
            log_probs -= np.log(total)
            probs /= total
            chosen = batch.action.numpy() == self.choices
            log_prob = outputs.dot(log_probs * chosen)
        else:
            inverse_std = np.exp(-self.log_std)[:, None]
            z = batch.action.numpy().T - output
            z *= inverse_std
            square = z * z
            log_prob = (-0.5 * outputs).dot(square)
            log_prob -= outputs.dot(self.log_std + 0.5 * LOG_2PI)
        log_ratio = log_prob - batch.log_prob.numpy()
        ratio = np.exp(log_ratio)
        near = clipped(ratio, 1 - clip, 1 + clip)
        plain, bounded = ratio * advantage, near * advantage
        weight = plain * (plain <= bounded)
        weight *= -1 / rows

        # the head, by its output
        if self.log_std is None:
            surprise = probs * log_probs
            entropies = -outputs.dot(surprise)
            entropy = entropies.dot(each) / rows
            grad = weight * (chosen - probs)
            if loss.ent_coef:
                surprise += probs * entropies
                surprise *= loss.ent_coef / rows
                grad += surprise
        else:
            grad = weight * z
            grad *= inverse_std
            np.dot(square, weight, out=self.log_std_grad)
            self.log_std_grad -= weight.dot(each) + loss.ent_coef
            entropy = outputs.dot(self.log_std + 0.5 * (1 + LOG_2PI))

        # the critic, by the value
        error = value - target
        squared = error * error
        value_grad = error * (loss.vf_coef / rows)
        if loss.clip_vloss:
            old_value = batch.value.numpy()
            moved = value - old_value
            kept = clipped(moved, -clip, clip)
            far = np.square(old_value + kept - target)
            value_grad *= (kept == moved) | (squared >= far)
            squared = np.maximum(squared, far)

        # and back through the trunks
        down, value_down = self.head.backward(grad), self.value_head.backward(value_grad[None])
        if self.critic is self.actor:
            down += value_down
        else:
            self.critic.backward(value_down)
        self.actor.backward(down)

        sums = (
            -np.minimum(plain, bounded).dot(each),
            0.5 * squared.dot(each),
            rows * entropy,
            (np.expm1(log_ratio) - log_ratio).dot(each),
            np.count_nonzero(near != ratio),
        )
        return PPOTerms(*torch.from_numpy(np.array(sums, np.float32) / np.float32(rows)).unbind())
