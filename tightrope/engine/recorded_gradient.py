"""Learning on the CPU: the gradient of any loss, by a recording of what autograd does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..models import ActorCritic
from ..recording import Recording, Recordings
from ..types import Batch
from .recorded import agree, differs, has_hooks, is_frozen, made_up_batch, settings_of, shapes_of, trying_out

Gradient = Callable[[Any, Any, Any], Any]  # of (loss, policy, batch): writes the gradient and returns the loss's terms


class RecordedGradient:
    """The gradient of one loss for batches of one shape."""

    def __init__(self, gradient: Gradient, loss: Any, policy: ActorCritic, batch: Batch, grad: Tensor) -> None:
        kind = type(batch)

        def function(*columns: Tensor) -> Any:
            terms = gradient(loss, policy, kind(*columns))
            self.kind, (self.terms, self.form) = type(terms), pytree.tree_flatten(terms)
            return terms

        self.names = [f.name for f in fields(batch)]
        self.recording = Recording(function, self.columns(made_up_batch(batch, policy, 1)), writes=[grad])
        other = made_up_batch(batch, policy, 2)
        expected = [*tensors_in(gradient(loss, policy, other)), grad.clone()]
        grad.fill_(torch.nan)  # every entry must be written
        self.agrees = agree([*tensors_in(self(other)), grad], expected)

    def columns(self, batch: Batch) -> list[Tensor]:
        return [getattr(batch, name) for name in self.names]

    @np.errstate(all="ignore")  # what is not finite is reported once a phase
    def __call__(self, batch: Batch) -> Any:
        values = self.recording(*[x.numpy() for x in self.columns(batch)])
        if all(x.ndim == 0 and x.dtype == np.float32 for x in values):
            fresh = torch.from_numpy(np.array(values)).unbind()
        else:
            fresh = tuple(torch.from_numpy(x.copy()) for x in values)
        if len(fresh) == len(self.terms) and hasattr(self.kind, "_fields"):
            return self.kind(*fresh)
        new = iter(fresh)
        return pytree.tree_unflatten([next(new) if isinstance(x, Tensor) else x for x in self.terms], self.form)


def tensors_in(thing: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(thing) if isinstance(x, Tensor)]


class RecordedGradients:
    """The recordings of an optimiser's losses."""

    def __init__(self) -> None:
        self.kept = Recordings()  # by the shape of a batch
        self.loss: Any = None  # whose settings were looked at last

    def find(self, gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> RecordedGradient | None:
        """The recording for this loss, policy and batch; None where they run as they are written."""
        if not isinstance(policy, ActorCritic) or not isinstance(batch, Batch):
            return None
        if loss is not self.loss or not is_frozen(loss):
            self.kept.renew((settings_of(loss), settings_of(policy)))
            self.loss = loss
        key = type(batch), shapes_of([getattr(batch, f.name) for f in fields(batch)])
        return self.kept.find(key, lambda: self.make(gradient, loss, policy, batch, grad))

    def make(self, gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> RecordedGradient | None:
        if has_hooks(policy):
            return None
        try:
            with trying_out(policy) as changed, np.errstate(all="ignore"):
                found = RecordedGradient(gradient, loss, policy, batch, grad)
        except Exception:  # whatever it does that cannot be recorded; a true mistake will show again
            return None
        if not found.agrees:
            differs(loss)
        return found if found.agrees and not changed else None
