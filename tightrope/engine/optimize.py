"""The gradient of a loss, and the only gradient step: clip by global norm, then Adam.

Parameters, gradients and moments each live in one flat buffer, of which the network's tensors are views; clipping and the
step are then a handful of operations whatever the number of layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adam import adam

from .. import activity
from ..types import Batch
from .accelerate import compilable, compiling, is_exact, kernels_wanted
from .closed_form import ClosedForm, has_closed_form
from .device import reads_are_free
from .distributed import all_reduce_max, communicating, world
from .kernels import FusedGradient, clip_and_adam, has_fused
from .recorded_gradient import RecordedGradients

BETAS, EPS = (0.9, 0.999), 1e-5  # [detail 3]
ROOM = 16  # numbers besides the gradient in a message: a loss's terms, and the batch's weight at its end
Form = ClosedForm | FusedGradient
Terms = TypeVar("Terms", bound=tuple[Tensor, ...])
Watcher = Callable[[Batch, Any], None]  # told each minibatch and its terms, while its gradient is in the optimiser
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


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
        self.closed_form: Form | None = None  # where there is one that agrees with autograd
        self.asked: Any = None  # for which loss and policy it was looked for
        self.recorded = RecordedGradients()  # on the CPU
        offset = 0
        for p in self.parameters:
            p.data = self.flat[offset : offset + p.numel()].view_as(p)
            self.grads[p] = self.grad[offset : offset + p.numel()].view_as(p)
            offset += p.numel()

    def state_dict(self) -> dict[str, Tensor]:
        names = ("first_moment", "second_moment", "step", "learning_rate")
        return {name: getattr(self, name).clone() for name in names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            if state[name].shape != mine.shape:
                raise RuntimeError(f"{name} has shape {tuple(state[name].shape)}, expected {tuple(mine.shape)}")
            getattr(self, name).copy_(state[name])


def gradient(
    loss: Callable[[Any, Any], tuple[Tensor, Terms]],
    policy: Any,
    batch: Batch,
    optimizer: Optimizer,
) -> Terms:
    """Write the loss's gradient into the flat buffer and return its terms. Both are means over what all ranks learn from."""
    activity.mark()
    terms = derived(loss, policy, batch, optimizer)
    watcher = _watcher.get()
    if watcher is not None:
        watcher(batch, terms)
    return over_ranks(terms, batch, optimizer) if world().is_distributed else terms


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
    if isinstance(o.closed_form, FusedGradient):  # whose norm was that of this rank's
        o.closed_form.squares.zero_()
        o.closed_form.squares[0] = o.grad.dot(o.grad)
    return type(terms)(*o.message[size : size + len(terms)].clone())


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """While this lasts, someone looks at every gradient before its step is taken."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def derived(loss: Callable[[Any, Any], tuple[Tensor, Terms]], policy: Any, batch: Batch, optimizer: Optimizer) -> Terms:
    """The gradient by whatever way is the quickest: on the CPU by a recording of autograd's, on a device in closed form where
    there is one.

    The closed form has to agree with autograd the first time. Where it does not, the equations in `functional` are not those
    it was written from, because someone changed them, and theirs are the ones that count.
    """
    if torch.is_autocast_enabled(optimizer.flat.device.type):
        optimizer.asked = optimizer.closed_form = None
        return autograd(loss, policy, batch, optimizer)
    if reads_are_free(optimizer.flat.device) and not compiling():

        def plain(loss: Any, policy: Any, batch: Any) -> Any:
            return autograd(loss, policy, batch, optimizer)

        return cast(Terms, optimizer.recorded.compute(plain, loss, policy, batch, optimizer.grad))
    asked = (type(loss), policy, type(policy), compiling(), kernels_wanted())
    if optimizer.asked != asked:
        optimizer.asked, optimizer.closed_form = asked, closed_form(loss, policy, batch, optimizer)
    if optimizer.closed_form is None:
        return autograd(loss, policy, batch, optimizer)
    return written_out(optimizer.closed_form, loss, batch)


def closed_form(loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
    """The quickest for this loss and policy, if there is one that agrees with autograd on the batch."""
    form: Form
    precision = kernels_wanted()
    if not has_closed_form(loss, policy):
        return None
    if precision is not None and has_fused(loss, policy):
        form = FusedGradient(policy, optimizer, precision)
    else:
        form = ClosedForm(policy, optimizer.grads)
    differs = torch.tensor(not agrees(form, loss, policy, batch, optimizer), device=optimizer.flat.device)
    return None if all_reduce_max(differs.float()) else form  # on all ranks the same: they round differently


@compilable(when=lambda form, *_: isinstance(form, ClosedForm))
def written_out(form: Form, loss: Any, batch: Batch) -> Any:
    return form(loss, batch)


def agrees(form: Form, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> bool:
    """Whether both gradients and all terms are the same where ratios and values lie on both sides of their clips."""
    tolerance = 1e-3 if is_exact() else 2e-2
    shift = torch.linspace(-1, 1, len(batch), device=batch.log_prob.device)
    shifted = replace(batch, log_prob=batch.log_prob + shift, value=batch.value + shift)
    terms = autograd(loss, policy, shifted, optimizer)
    expected = [*terms, *(grad.clone() for grad in optimizer.grads.values())]
    given = [*form(loss, shifted), *optimizer.grads.values()]
    return all(bool((a - b).norm() <= tolerance * b.norm() + 1e-6) for a, b in zip(given, expected, strict=True))


def autograd(
    loss: Callable[[Any, Any], tuple[Tensor, Terms]], policy: nn.Module, batch: Batch, optimizer: Optimizer
) -> Terms:
    """The same for any loss and any network."""
    total, terms = evaluated(loss, policy, batch)
    grads = torch.autograd.grad(total, optimizer.parameters, materialize_grads=True)
    torch.cat([g.flatten() for g in grads], out=optimizer.grad)
    return terms


@compilable()
def evaluated(loss: Any, policy: nn.Module, batch: Batch) -> Any:
    return loss(policy, batch)


def optimize(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None = None) -> Tensor:
    """Clip the gradient, take one Adam step, return the norm before clipping.

    Where the device flag `stopped` is 1 the step changes nothing, neither parameters nor moments nor the step count.
    """
    if isinstance(optimizer.closed_form, FusedGradient):
        return clip_and_adam(optimizer, max_grad_norm, stopped, optimizer.closed_form.squares)
    if reads_are_free(optimizer.flat.device) and not compiling():
        return clipped_adam_on_host(optimizer, max_grad_norm, stopped)
    return clipped_adam(optimizer, max_grad_norm, stopped)


@torch.no_grad()
@np.errstate(all="ignore")  # what is not finite is for the learner to report
def clipped_adam_on_host(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None) -> Tensor:
    """`clipped_adam` on the CPU, with a single call of torch: between NumPy calls each one costs ten times as much."""
    o, grad, count = optimizer, optimizer.grad.numpy(), optimizer.step.numpy()
    norm = math.sqrt(grad.dot(grad))
    if stopped is None or not stopped:
        if max_grad_norm is not None and norm + 1e-6 > max_grad_norm:
            grad *= max_grad_norm / (norm + 1e-6)  # [detail 11]
        count += 1
        torch._fused_adam_(
            [o.flat], [o.grad], [o.first_moment], [o.second_moment], [], [o.step], lr=o.learning_rate,
            beta1=BETAS[0], beta2=BETAS[1], eps=EPS, weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
    return torch.from_numpy(np.array(norm, np.float32))


@compilable()
@torch.no_grad()
def clipped_adam(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None) -> Tensor:
    o, scale = optimizer, None
    norm = torch.linalg.vector_norm(o.grad)
    if max_grad_norm is not None:
        scale = (norm + 1e-6).div_(max_grad_norm).clamp_(min=1.0)  # what the gradient is divided by [detail 11]
    arguments: Any = dict(
        grad_scale=scale, found_inf=stopped,  # torch's own way of skipping a step on the device
        amsgrad=False, maximize=False, weight_decay=0.0, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, lr=o.learning_rate,
    )  # fmt: skip
    state: Any = [o.flat], [o.grad], [o.first_moment], [o.second_moment], [], [o.step]
    if compiling():
        cast(Any, adam)(*state, **arguments, foreach=False, fused=True, capturable=o.flat.is_cuda, has_complex=False)
    else:  # what it comes down to, without four times as long in Python
        o.step.add_(1 if stopped is None else 1 - stopped)
        torch._fused_adam_(*state, **arguments)
    return norm


def halted(stopped: Tensor) -> bool:
    """Whether to break out of the learning loop: on the CPU as soon as the flag is set; on a device never, since what
    follows a stop changes nothing there and looking would cost a synchronisation."""
    return reads_are_free(stopped.device) and bool(stopped)
