"""The flat optimizer: the gradient of a loss by autograd, and the gradient step, which is to clip by global norm, then Adam.

Parameters, gradients and moments each live in one flat buffer, of which the network's tensors are views; clipping and the
step are then a handful of operations whatever the number of layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adam import adam

from ..types import Batch
from .distributed import communicating

BETAS, EPS = (0.9, 0.999), 1e-5  # [detail 3]
ADAM: Any = dict(beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=0.0, amsgrad=False, maximize=False)
ROOM = 16  # numbers besides the gradient in a message: a loss's terms, and the batch's weight at its end
Terms = TypeVar("Terms", bound=tuple[Tensor, ...])
Loss = Callable[[Any, Any], tuple[Tensor, Terms]]  # of (policy, batch): what to minimise, and terms to log


class Optimizer:
    """Adam over a module's parameters in one flat buffer. Each parameter appears exactly once, shared ones too."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.flat = torch.cat([p.detach().flatten() for p in self.parameters])
        self.message = self.flat.new_zeros(len(self.flat) + ROOM)  # what a rank tells the others of an update
        self.grad = self.message[: len(self.flat)]
        self.first_moment = torch.zeros_like(self.flat)
        self.second_moment = torch.zeros_like(self.flat)
        self.step = torch.zeros((), device=self.flat.device)
        self.learning_rate = torch.zeros((), device=self.flat.device)  # written by the schedule before each phase
        self.arrivals = torch.zeros((), dtype=torch.int32, device=self.flat.device)  # programs of a fused step
        self.grads: dict[Tensor, Tensor] = {}  # views of the flat gradient
        offset = 0
        for p in self.parameters:
            p.data = self.flat[offset : offset + p.numel()].view_as(p)
            self.grads[p] = self.grad[offset : offset + p.numel()].view_as(p)
            offset += p.numel()

    def tensors(self) -> tuple[list[Tensor], ...]:
        """As torch's Adam takes them."""
        return [self.flat], [self.grad], [self.first_moment], [self.second_moment], [], [self.step]

    def state_dict(self) -> dict[str, Tensor]:
        names = ("first_moment", "second_moment", "step", "learning_rate")
        return {name: getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            if state[name].shape != mine.shape:
                raise RuntimeError(f"{name} has shape {tuple(state[name].shape)}, expected {tuple(mine.shape)}")
            getattr(self, name).copy_(state[name])


@torch.no_grad()
def over_ranks(terms: Terms, batch: Batch, optimizer: Optimizer) -> Terms:
    """Gradient and terms as means over the batches of all ranks, each counting as many times as it has transitions that are
    learned from. It is one message: ranks that wait for each other twice an update wait twice as long."""
    o, size = optimizer, len(optimizer.flat)
    o.message[size : size + len(terms)] = torch.stack([*terms])
    o.message[-1:].fill_(1.0)
    o.message.mul_(batch.weight)
    with communicating():
        dist.all_reduce(o.message)
    o.message.div_(o.message[-1].clamp(min=1))
    return type(terms)(*o.message[size : size + len(terms)].clone())


def evaluated(loss: Loss[Terms], policy: nn.Module, batch: Batch) -> tuple[Tensor, Terms]:
    return loss(policy, batch)


def autograd(
    loss: Loss[Terms],
    policy: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    evaluate: Callable[[Loss[Terms], nn.Module, Batch], tuple[Tensor, Terms]] = evaluated,
) -> Terms:
    """Write the gradient of any loss and any network into the flat buffer; returns the loss's terms."""
    total, terms = evaluate(loss, policy, batch)
    grads = torch.autograd.grad(total, optimizer.parameters, materialize_grads=True)
    torch.cat([g.flatten() for g in grads], out=optimizer.grad)
    return terms


@torch.no_grad()
@np.errstate(all="ignore")  # what is not finite is for the learner to report
def clipped_adam_on_host(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None) -> Tensor:
    """Clip the gradient and take one Adam step on the CPU; returns the norm before clipping.

    It is `clipped_adam` where numbers may be read: a gradient within the limit stays as it is, and Adam is the one call of
    torch's, each of which costs ten times as much between NumPy calls.
    """
    grad, count = optimizer.grad.numpy(), optimizer.step.numpy()
    norm = math.sqrt(grad.dot(grad))
    if stopped is None or not stopped:
        if max_grad_norm is not None and norm + 1e-6 > max_grad_norm:
            grad *= max_grad_norm / (norm + 1e-6)  # [detail 11]
        count += 1
        torch._fused_adam_(*optimizer.tensors(), lr=optimizer.learning_rate, **ADAM)
    return torch.from_numpy(np.array(norm, np.float32))


@torch.no_grad()
def clipped_adam(
    optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None, compiling: bool = False
) -> Tensor:
    """Clip the gradient and take one Adam step without a look at any number; returns the norm before clipping.

    Where the device flag `stopped` is 1 the step changes nothing, neither parameters nor moments nor the step count.
    """
    o, scale = optimizer, None
    norm = torch.linalg.vector_norm(o.grad)
    if max_grad_norm is not None:
        scale = (norm + 1e-6).div_(max_grad_norm).clamp_(min=1.0)  # what the gradient is divided by [detail 11]
    arguments = ADAM | dict(lr=o.learning_rate, grad_scale=scale, found_inf=stopped)  # torch's own way to skip a step
    if compiling:
        how = dict(foreach=False, fused=True, capturable=o.flat.is_cuda, has_complex=False)
        cast(Any, adam)(*o.tensors(), **arguments, **how)
    else:  # the same call, without the checks around it: they take four times as long
        o.step.add_(1 if stopped is None else 1 - stopped)
        torch._fused_adam_(*o.tensors(), **arguments)
    return norm
