"""Gradients that are quicker than autograd and agree with it on made-up numbers.

On the CPU they are recordings of what autograd does, for any loss; on devices they are written by hand, in closed form or as
fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..models import ActorCritic
from ..recording import Array, RecordedFunction, Recordings
from ..recording.recorder import tensors
from ..types import Batch, Trajectories
from .closed_form import ClosedForm, has_closed_form
from .distributed import all_reduce_max, world
from .kernels import FusedGradient, has_fused
from .optimize import Optimizer, autograd
from .precision import Precision
from .recorded import BLOCK, agree, attempted, cache_key, is_frozen, made_up_batch, shapes_of, trying_out

ROWS = 64  # of terms, allocated at once
Gradient = Callable[[Any, Any, Any], Any]  # of (loss, policy, batch): writes the gradient and returns the loss's terms
Form = ClosedForm | FusedGradient
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "tf32": 2e-2}


class Terms:
    """A loss's terms, handed out as tensors of their own.

    Scalars come from blocks of many rows: between NumPy calls, a call of torch costs ten times what it costs otherwise.
    """

    def __init__(self, terms: object) -> None:
        self.leaves, self.form = pytree.tree_flatten(terms)
        self.kind, self.found = type(terms), tensors(self.leaves)
        self.scalar = all(x.dim() == 0 and x.dtype == torch.float32 for x in self.found)
        names = getattr(self.kind, "_fields", ())  # of a named tuple, which is quick to make
        self.plain = self.scalar and len(self.found) == len(self.leaves) == len(names)
        self.width, self.rows = len(self.found), self.block()

    def results(self) -> list[Tensor]:
        """What a recording is to give: one tensor of all scalars, or each tensor."""
        return [torch.stack(self.found)] if self.scalar and self.found else self.found

    def block(self) -> Iterator[tuple[Array, tuple[Tensor, ...]]]:
        """New rows, each an array to be written and its entries as tensors."""
        while True:
            block = torch.empty(ROWS, self.width)
            entries = block.flatten().unbind()
            for i, row in enumerate(block.numpy()):
                yield row, entries[i * self.width : (i + 1) * self.width]

    def fresh(self, values: Sequence[Array]) -> Any:
        """The terms with these numbers, copied."""
        new: Sequence[Tensor]
        if self.scalar and self.width:
            row, new = next(self.rows)
            row[:] = values[0]
        else:
            new = [torch.from_numpy(x.copy()) for x in values]
        if self.plain:
            return self.kind(*new)
        rest = iter(new)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in self.leaves], self.form)


class RecordedGradient:
    """The gradient of one loss for batches of one shape."""

    def __init__(self, gradient: Gradient, loss: Any, policy: ActorCritic, batch: Batch, grad: Tensor) -> None:
        kind = type(batch)

        def function(*columns: Tensor) -> list[Tensor]:
            self.terms = Terms(gradient(loss, policy, kind(*columns)))
            return self.terms.results()

        self.recording = RecordedFunction(function, columns_of(made_up_batch(batch, policy, 1)), writes=[grad])
        read = [(i, x) for i, x in enumerate(self.recording.inputs) if x is not None]
        self.read, self.places = [i for i, _ in read], [torch.from_numpy(x) for _, x in read]
        other = made_up_batch(batch, policy, 2)
        expected = [*tensors(gradient(loss, policy, other)), grad.clone()]
        grad.fill_(torch.nan)  # every entry must be written
        self.agrees = agree([*tensors(self(columns_of(other))), grad], expected)

    @np.errstate(all="ignore")  # what is not finite is reported once a phase
    def __call__(self, columns: Sequence[Tensor]) -> Any:
        """Write the gradient for a batch of these columns; returns the loss's terms."""
        self.replay(columns)
        return self.terms.fresh(self.recording.results)

    def replay(self, columns: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.places, [columns[i] for i in self.read])
        self.recording.run()


class BlockGradient:
    """The gradient of a loss that is a mean over the rows that are alive, computed block by block.

    A block counts as many times as it has such rows; all others are left out. It serves batches of every size.
    """

    def __init__(self, gradient: Gradient, loss: Any, policy: ActorCritic, batch: Trajectories, grad: Tensor) -> None:
        """`batch` has as many rows as a block; its numbers do not matter."""
        self.rows, self.grad, self.alive = len(batch), grad, type(batch).__match_args__.index("alive")
        self.block = RecordedGradient(gradient, loss, policy, batch, grad)
        self.agrees = self.block.agrees and self.block.terms.scalar
        if self.agrees:
            many = resized(batch, 3 * self.rows)
            other = made_up_batch(many, policy, 3)
            expected = [*tensors(gradient(loss, policy, other)), grad.clone()]
            self.agrees = agree([*tensors(self(columns_of(other))), grad], expected)

    @np.errstate(all="ignore")
    def __call__(self, columns: Sequence[Tensor]) -> Any:
        """Write the gradient for a batch of these columns; returns the loss's terms."""
        alive = columns[self.alive].nonzero().squeeze(1)
        if len(alive) < len(columns[0]):
            columns = [x[alive] for x in columns]
        grad, count = self.grad.numpy(), len(alive)
        total, terms = np.zeros_like(grad), np.zeros(self.block.terms.width, np.float32)
        for start in range(0, max(count, 1), self.rows):
            rows = min(self.rows, count - start)
            self.block.replay([with_zero_rows(x[start : start + rows], self.rows) for x in columns])
            share = np.float32(rows / count if count else 1)
            total += grad * share
            terms += self.block.recording.results[0] * share
        grad[:] = total
        return self.block.terms.fresh([terms])


def with_zero_rows(x: Tensor, rows: int) -> Tensor:
    """With rows of zeros at its end."""
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def resized(batch: Any, rows: int) -> Any:
    """A batch of so many rows, all alike."""
    return type(batch)(*(x[:1].expand(rows, *x.shape[1:]) for x in columns_of(batch)))


def columns_of(batch: Batch) -> list[Tensor]:
    return [getattr(batch, name) for name in type(batch).__match_args__]


class RecordedGradients:
    """The recordings of a run's losses. `say` is told, once, that one runs as written, and which operation is the reason."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.said = say, set[str]()
        self.kept = Recordings()  # by the shape of a batch
        self.loss: object = None  # whose settings were looked at last
        self.grad: Tensor | None = None  # that they write into

    def compute(self, gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> Any:
        """Write the gradient and return the loss's terms: by the recording for this loss, policy and batch, or as they are
        written."""
        if not isinstance(policy, ActorCritic) or not isinstance(batch, Batch):
            return gradient(loss, policy, batch)
        if grad is not self.grad:
            self.kept.clear()
            self.loss, self.grad = None, grad
        if loss is not self.loss or not is_frozen(loss):
            self.kept.renew((cache_key(loss), cache_key(policy)))
            self.loss = loss
        columns = columns_of(batch)
        found = None
        if isinstance(batch, Trajectories) and len(batch):
            like = resized(batch, min(BLOCK, 1 << (len(batch) - 1).bit_length()))
            found = self.find(BlockGradient, gradient, loss, policy, like, grad)
        if found is None:
            found = self.find(RecordedGradient, gradient, loss, policy, batch, grad)
        return gradient(loss, policy, batch) if found is None else found(columns)

    def find(self, kind: type[Any], gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> Any:
        """The recording for batches of this shape, or None."""

        def make() -> Any:
            found, refusal = attempted(policy, lambda: kind(gradient, loss, policy, batch, grad))
            if refusal is not None and kind is RecordedGradient:
                self.tell(loss, policy, refusal)
            return found

        key = kind, type(batch), shapes_of(columns_of(batch))
        found = self.kept.find(key, make)
        if found is None and kind is RecordedGradient and key not in self.kept:
            self.tell(loss, policy, "its batches have too many shapes")
        return found

    def tell(self, loss: object, policy: ActorCritic, refusal: str) -> None:
        """Say why a loss is not recorded, unless the plan has said it of the policy."""
        line = f"recording: {getattr(loss, '__name__', type(loss).__name__)} runs as written: {refusal}"
        if world().is_rank0 and refusal != policy.recordings.refusal and line not in self.said:
            self.said.add(line)
            self.say(line)


# on devices ------------------------------------------------------------------------------------------------------------


class AnalyticGradients:
    """Finds the analytic gradient of a loss and a policy, and keeps the last one found.

    It has to agree with autograd on made-up numbers. Where it does not, the equations in `functional` are not those that it was
    written from, because someone changed them, and theirs are the ones that count.
    """

    def __init__(self, precision: Precision, fused: bool) -> None:
        self.precision, self.fused = precision, fused
        self.key: object = None  # the loss with its settings, the policy and the optimizer that the form was looked for
        self.form: Form | None = None

    def find(self, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
        """The analytic gradient for this loss and policy, or None."""
        key = (type(loss), plain_settings(loss), policy, type(policy), optimizer)
        if self.key != key:
            self.key, self.form = key, self.make(loss, policy, batch, optimizer)
        return self.form

    def squares_of(self, optimizer: Optimizer) -> Tensor | None:
        """What fused kernels, if they wrote the optimizer's gradient, know of its squared norm: parts that add up to it."""
        return self.form.squares if self.form is not None and self.form.grad is optimizer.grad else None

    def measure(self, optimizer: Optimizer) -> None:
        """Take the norm anew, when the gradient has become that of all ranks."""
        if (squares := self.squares_of(optimizer)) is not None:
            squares.zero_()
            squares[0] = optimizer.grad.dot(optimizer.grad)

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


def plain_settings(loss: object) -> tuple[object, ...]:
    """Its numbers and switches. A weight that was 0 when a form was checked says nothing of the term that it weighs."""
    values = (getattr(loss, field.name) for field in fields(loss)) if is_dataclass(loss) else ()
    return tuple(x for x in values if x is None or isinstance(x, (bool, int, float)))


def agrees(
    form: Form, loss: Any, policy: ActorCritic, batch: Batch, optimizer: Optimizer, tolerance: float = 1e-3
) -> bool:
    """Whether gradients and terms are those of autograd, for made-up parameters and a made-up batch like the one given."""
    with trying_out(policy):
        made_up = made_up_batch(batch, policy, 1)
        terms = autograd(loss, policy, made_up, optimizer)
        expected = [*terms, *(grad.clone() for grad in optimizer.grads.values())]
        try:
            given = [*form(loss, made_up), *optimizer.grads.values()]
        except TypeError:  # the loss has other terms than those that were written out
            return False
        pairs = zip(given, expected, strict=False)
        return len(given) == len(expected) and all(
            bool((a - b).norm() <= tolerance * b.norm() + 1e-6) for a, b in pairs
        )
