"""The closed form on the CPU, where what small networks cost is the number of calls, and not what they compute.

The same derivatives as in `closed_form`, over NumPy views of the same memory.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..functional import PPOLoss, PPOTerms
from ..models import MLP, ActorCritic
from ..models.actor_critic import GaussianHead
from ..models.distributions import LOG_2PI
from ..types import Batch
from .layers_cpu import Array, Grads, Head, Normalize, Tower, ones, rows_of


def clipped(x: Array, low: float, high: float) -> Array:
    """np.clip without its ceremony."""
    x = np.maximum(x, low)
    return np.minimum(x, high, out=x)


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
        obs = self.normalize(rows_of(batch.obs))
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
