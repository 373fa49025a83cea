"""Gradients written out by hand, for devices: the closed form or fused kernels, where they agree with autograd."""

from __future__ import annotations

from typing import Any

import torch

from ..models import ActorCritic
from ..types import Batch
from .closed_form import ClosedForm, has_closed_form
from .distributed import all_reduce_max
from .kernels import FusedGradient, has_fused
from .optimize import Optimizer, autograd
from .precision import Precision
from .recorded import made_up_batch, trying_out

Form = ClosedForm | FusedGradient
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "tf32": 2e-2}


class AnalyticGradients:
    """Finds the analytic gradient of a loss and a policy, and keeps the last one found.

    It has to agree with autograd on made-up numbers. Where it does not, the equations in `functional` are not those that it was
    written from, because someone changed them, and theirs are the ones that count.
    """

    def __init__(self, precision: Precision, fused: bool) -> None:
        self.precision, self.fused = precision, fused
        self.key: Any = None  # the loss, policy and optimizer that the form was looked for
        self.form: Form | None = None

    def find(self, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
        """The analytic gradient for this loss and policy, or None."""
        key = (type(loss), policy, type(policy), optimizer)
        if self.key != key:
            self.key, self.form = key, self.make(loss, policy, batch, optimizer)
        return self.form

    def make(self, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
        form: Form
        if not has_closed_form(loss, policy):
            return None
        if self.fused and has_fused(loss, policy):
            form = FusedGradient(policy, optimizer, "tf32" if self.precision == "tf32" else "fp32")
        else:
            form = ClosedForm(policy, optimizer.grads)
        agreed = agrees(form, loss, policy, batch, optimizer, TOLERANCES[self.precision])
        differs = torch.tensor(not agreed, device=optimizer.flat.device)
        return None if all_reduce_max(differs.float()) else form  # on all ranks the same: they round differently


def agrees(
    form: Form, loss: Any, policy: ActorCritic, batch: Batch, optimizer: Optimizer, tolerance: float = 1e-3
) -> bool:
    """Whether gradients and terms are those of autograd, for made-up parameters and a made-up batch like the one given."""
    with trying_out(policy):
        made_up = made_up_batch(batch, policy, 1)
        terms = autograd(loss, policy, made_up, optimizer)
        expected = [*terms, *(grad.clone() for grad in optimizer.grads.values())]
        given = [*form(loss, made_up), *optimizer.grads.values()]
        return all(bool((a - b).norm() <= tolerance * b.norm() + 1e-6) for a, b in zip(given, expected, strict=True))
