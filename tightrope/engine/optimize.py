"""The optimizer: the gradient of a loss by autograd, its average over ranks, clipping by global norm, and Adam.

Parameters, gradients and moments are each one flat buffer, and the network's tensors are views of it. Clipping and the Adam
step then take a few operations whatever the number of layers.
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

from ..errors import UsageError
from ..types import Batch
from .distributed import communicating

BETAS, EPS = (0.9, 0.999), 1e-5  # [detail 3]
ADAM: Any = dict(beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=0.0, amsgrad=False, maximize=False)
MAX_TERMS = 15  # of a loss: ranks exchange the terms in one message with the gradient
Terms = TypeVar("Terms", bound=tuple[Tensor, ...])
Loss = Callable[[Any, Any], tuple[Tensor, Terms]]  # (policy, batch) to the scalar to minimise and the terms to log


class Optimizer:
    """Adam over a module's parameters, in one flat buffer. A shared parameter appears once."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.flat = torch.cat([p.detach().flatten() for p in self.parameters])
        self.message = self.flat.new_zeros(len(self.flat) + MAX_TERMS + 1)  # gradient, terms, number of transitions
        self.grad = self.message[: len(self.flat)]
        self.first_moment = torch.zeros_like(self.flat)
        self.second_moment = torch.zeros_like(self.flat)
        self.step_count = torch.zeros((), device=self.flat.device)
        self.learning_rate = torch.zeros((), device=self.flat.device)  # the schedule sets it before each phase
        self.arrivals = torch.zeros((), dtype=torch.int32, device=self.flat.device)  # of the fused kernel's programs
        self.grads: dict[Tensor, Tensor] = {}  # by parameter, views of the flat gradient
        offset = 0
        for p in self.parameters:
            p.data = self.flat[offset : offset + p.numel()].view_as(p)
            self.grads[p] = self.grad[offset : offset + p.numel()].view_as(p)
            offset += p.numel()

    def tensors(self) -> tuple[list[Tensor], ...]:
        """Return the arguments of torch's functional Adam."""
        return [self.flat], [self.grad], [self.first_moment], [self.second_moment], [], [self.step_count]

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._saved().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self._saved().items():
            if state[name].shape != mine.shape:
                raise RuntimeError(f"{name} has shape {tuple(state[name].shape)}, expected {tuple(mine.shape)}")
            mine.copy_(state[name])

    def _saved(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint under their names there; parameters are saved with the policy."""
        return {
            "first_moment": self.first_moment, "second_moment": self.second_moment, "step": self.step_count,
            "learning_rate": self.learning_rate,
        }  # fmt: skip


@torch.no_grad()
def over_ranks(terms: Terms, batch: Batch, optimizer: Optimizer) -> Terms:
    """Average the gradient and the terms over all ranks, weighted by the number of transitions in each batch.

    Both travel in one message: a second message per update would double the waiting.
    """
    if len(terms) > MAX_TERMS:
        raise UsageError(f"the loss returns {len(terms)} terms, and ranks exchange at most {MAX_TERMS}: return fewer")
    o, size = optimizer, len(optimizer.flat)
    o.message[size : size + len(terms)] = torch.stack([*terms])
    o.message[-1:].fill_(1.0)
    o.message.mul_(batch.num_valid)
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
    """Write the gradient of any loss and any network into the flat buffer, and return the loss's terms."""
    total, terms = evaluate(loss, policy, batch)
    grads = torch.autograd.grad(total, optimizer.parameters, materialize_grads=True)
    torch.cat([g.flatten() for g in grads], out=optimizer.grad)
    return terms


@torch.no_grad()
@np.errstate(all="ignore")  # the guard reports non-finite numbers once per phase
def clipped_adam_on_host(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None) -> Tensor:
    """Clip the gradient, take one Adam step on the CPU, and return the norm before clipping.

    It computes the same as `clipped_adam`, but may read numbers: clipping is skipped if the norm is within the limit. Adam is
    the only torch call, because between NumPy calls each torch call is ten times slower.
    """
    grad, count = optimizer.grad.numpy(), optimizer.step_count.numpy()
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
    """Clip the gradient, take one Adam step and return the norm before clipping, without reading any number on the host.

    If the flag `stopped` is 1, nothing changes: neither parameters nor moments nor the step count.
    """
    o, scale = optimizer, None
    norm = torch.linalg.vector_norm(o.grad)
    if max_grad_norm is not None:
        scale = (norm + 1e-6).div_(max_grad_norm).clamp_(min=1.0)  # the gradient is divided by this [detail 11]
    arguments = ADAM | dict(
        lr=o.learning_rate, grad_scale=scale, found_inf=stopped
    )  # found_inf 1 makes torch skip the step
    if compiling:
        how = dict(foreach=False, fused=True, capturable=o.flat.is_cuda, has_complex=False)
        cast(Any, adam)(*o.tensors(), **arguments, **how)
    else:  # without the checks of `adam`, which take four times as long
        o.step_count.add_(1 if stopped is None else 1 - stopped)
        torch._fused_adam_(*o.tensors(), **arguments)
    return norm
