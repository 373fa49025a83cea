"""The gradient of PPOLoss for multilayer perceptrons of any depth, whose layers are too wide for one kernel.

A layer is one kernel forward and one backward (layers.py), the loss is one more (loss.py), and gradients of weights are
products by cuBLAS. No function reads a tensor on the host, so CUDA graphs can capture it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...functional import PPOLoss, PPOTerms
from ...models import ActorCritic
from ...models.actor_critic import CategoricalHead, GaussianHead, MultiCategoricalHead
from ...types import Batch
from ..optimize import Optimizer
from ..precision import KernelPrecision
from .fused import FusedGradient
from .layout import (
    TERMS,
    activation_of,
    fits,
    has_device,
    has_tensor_cores,
    head_shape,
    known_loss,
    known_network,
    linears,
    padded,
    policy_output,
)  # fmt: skip
from .trunk import layers_backward, layers_forward, products_in

BLOCK = 128  # rows of a program of the loss


class WideGradient:
    """The gradient of PPOLoss for one policy. `squares` holds the squared norm of the last gradient, for `clip_and_adam`."""

    def __init__(self, policy: ActorCritic, optimizer: Optimizer, precision: KernelPrecision = "fp32") -> None:
        self.flat, self.grad, self.normalizer = optimizer.flat, optimizer.grad, policy.normalizer
        self.squares = torch.zeros(1, device=self.flat.device)
        output, value, how = policy_output(policy), policy.value_head, products_in(precision, self.flat.device)
        assert isinstance(value, nn.Linear)
        named = activation_of(policy.actor)
        assert named is not None
        if policy.critic is policy.actor:
            self.trunks = [Trunk(policy.actor, [output, value], named, how, optimizer)]
        else:
            trunks = (policy.actor, output), (policy.critic, value)
            self.trunks = [Trunk(trunk, [head], named, how, optimizer) for trunk, head in trunks]
        self.head, self.action_mask = policy.head, policy.action_mask
        self.log_std = policy.head.log_std if isinstance(policy.head, GaussianHead) else None
        self.log_std_grad = None if self.log_std is None else optimizer.grads[self.log_std]
        choices, options = head_shape(policy)
        self.constants = dict(
            LOG_STD=output.bias.storage_offset() if self.log_std is None else self.log_std.storage_offset(),
            OUT=options, PAD_OUT=padded(options), CHOICES=choices, GAUSSIAN=self.log_std is not None,
        )  # fmt: skip

    @torch.no_grad()
    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        from .loss import loss_kernel

        rows, clip, bonus = len(batch), loss.clip_coef, loss.ent_coef
        stored, bonus_stored = (isinstance(x, Tensor) and x.device == self.flat.device for x in (clip, bonus))
        obs = batch.obs if self.normalizer is None else self.normalizer(batch.obs)
        obs, mask = (obs, None) if self.action_mask is None else self.action_mask(obs)
        output, value = [y for trunk in self.trunks for y in trunk.forward(obs)]
        if isinstance(self.head, CategoricalHead | MultiCategoricalHead):
            output = self.head.distribution(output, mask).logits.flatten(1)  # those ruled out have probability 0
        output_grad, value_grad = torch.empty_like(output), torch.empty_like(value)
        stride = len(TERMS) + output.shape[1]
        parts = torch.empty(-(-rows // BLOCK), stride, device=self.flat.device)
        columns = (batch.action, batch.log_prob, batch.value, batch.advantage, batch.target)
        loss_kernel[len(parts),](
            output, value, output_grad, value_grad, *(column.contiguous() for column in columns),
            clip if stored else float(clip), float(loss.vf_coef), bonus if bonus_stored else float(bonus), self.flat, parts,
            rows, STRIDE=stride, CLIP_IS_STORED=stored, BONUS_IS_STORED=bonus_stored, CLIP_VALUE=loss.clip_vloss,
            BLOCK=BLOCK, **self.constants, num_warps=4,
        )  # fmt: skip
        sums = parts.sum(0)
        if self.log_std_grad is not None:
            self.log_std_grad.copy_(sums[len(TERMS) :])
        grads = [output_grad, value_grad]
        for trunk in self.trunks:
            trunk.backward([grads.pop(0) for _ in trunk.heads])
        torch.dot(self.grad, self.grad, out=self.squares[0])
        return PPOTerms(*sums[: len(TERMS)].unbind())


class Trunk:
    """A trunk with the linear heads on it. `forward` keeps what `backward` needs, which writes the optimizer's gradient."""

    def __init__(
        self,
        trunk: nn.Module | None,
        heads: Sequence[nn.Linear],
        activation: str,
        precision: str,
        optimizer: Optimizer,
    ) -> None:
        assert isinstance(trunk, nn.Sequential)
        grads, layers = optimizer.grads, linears(trunk)
        self.encoder = trunk[0]
        self.weights, self.biases = [x.weight.data for x in layers], [x.bias.data for x in layers]
        self.heads, self.how = [(x.weight.data, x.bias.data) for x in heads], (activation, precision)
        self.weight_grads, self.bias_grads = [grads[x.weight] for x in layers], [grads[x.bias] for x in layers]
        self.head_grads = [(grads[x.weight], grads[x.bias]) for x in heads]

    def forward(self, obs: Tensor) -> list[Tensor]:
        """Return the outputs of the heads, each (rows, outputs)."""
        self.found = layers_forward(self.encoder(obs).contiguous(), self.weights, self.biases, *self.how, slopes=True)
        return [torch.addmm(bias, self.found.outputs[-1], weight.t()) for weight, bias in self.heads]

    def backward(self, grads: Sequence[Tensor]) -> None:
        """Write the gradients of all parameters, given those of the heads' outputs."""
        for grad, (weight_grad, bias_grad) in zip(grads, self.head_grads, strict=True):
            torch.mm(grad.t(), self.found.outputs[-1], out=weight_grad)
            torch.sum(grad, 0, out=bias_grad)
        weight = torch.cat([weight for weight, _ in self.heads])
        grad = torch.cat(list(grads), 1) if len(grads) > 1 else grads[0]
        layers_backward(self.found, grad, weight, self.weights, *self.how, self.weight_grads, self.bias_grads)


def gradient_class(loss: object, policy: ActorCritic) -> type[FusedGradient | WideGradient] | None:
    """Return the kernels that compute the gradient of this loss for this policy on its device, or None."""
    device = next(policy.parameters()).device
    if not known_loss(loss) or not known_network(policy) or not has_tensor_cores(device):
        return None
    return FusedGradient if fits(policy) and has_device(device) else WideGradient
