"""Learning on the CPU: the gradient of any loss, by a recording of what autograd does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..models import ActorCritic
from ..recording import Array, Recording, Recordings
from ..types import Batch, Trajectories
from .recorded import BLOCK, agree, differs, has_hooks, is_frozen, made_up_batch, settings_of, shapes_of, trying_out

ROWS = 64  # of terms, allocated at once
Gradient = Callable[[Any, Any, Any], Any]  # of (loss, policy, batch): writes the gradient and returns the loss's terms


class Terms:
    """A loss's terms, handed out as tensors of their own.

    Scalars come from blocks of many rows, for a call of torch's amid those of NumPy costs ten times what it costs otherwise.
    """

    def __init__(self, terms: Any) -> None:
        self.leaves, self.form = pytree.tree_flatten(terms)
        self.kind = type(terms) if hasattr(terms, "_fields") else None  # quick to make
        found = [x for x in self.leaves if isinstance(x, Tensor)]
        self.scalar = all(x.dim() == 0 and x.dtype == torch.float32 for x in found)
        self.plain = self.scalar and self.kind is not None and len(found) == len(self.leaves)
        self.width, self.rows = len(found), self.block()

    def results(self) -> list[Tensor]:
        """What a recording is to give: one tensor of all scalars, or each tensor."""
        found = [x for x in self.leaves if isinstance(x, Tensor)]
        return [torch.stack(found)] if self.scalar and found else found

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
            return self.kind(*new)  # type: ignore[misc]
        rest = iter(new)
        return pytree.tree_unflatten([next(rest) if isinstance(x, Tensor) else x for x in self.leaves], self.form)


class RecordedGradient:
    """The gradient of one loss for batches of one shape."""

    def __init__(self, gradient: Gradient, loss: Any, policy: ActorCritic, batch: Batch, grad: Tensor) -> None:
        kind = type(batch)

        def function(*columns: Tensor) -> list[Tensor]:
            self.terms = Terms(gradient(loss, policy, kind(*columns)))
            return self.terms.results()

        self.recording = Recording(function, columns_of(made_up_batch(batch, policy, 1)), writes=[grad])
        read = [(i, x) for i, x in enumerate(self.recording.inputs) if x is not None]
        self.read, self.places = [i for i, _ in read], [torch.from_numpy(x) for _, x in read]
        other = made_up_batch(batch, policy, 2)
        expected = [*tensors_in(gradient(loss, policy, other)), grad.clone()]
        grad.fill_(torch.nan)  # every entry must be written
        self.agrees = agree([*tensors_in(self(columns_of(other))), grad], expected)

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
            expected = [*tensors_in(gradient(loss, policy, other)), grad.clone()]
            self.agrees = agree([*tensors_in(self(columns_of(other))), grad], expected)

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
            self.block.replay([padded(x[start : start + rows], self.rows) for x in columns])
            share = np.float32(rows / count if count else 1)
            total += grad * share
            terms += self.block.recording.results[0] * share
        grad[:] = total
        return self.block.terms.fresh([terms])


def padded(x: Tensor, rows: int) -> Tensor:
    """With rows of zeros at its end."""
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def resized(batch: Any, rows: int) -> Any:
    """A batch of so many rows, all alike."""
    return type(batch)(*(x[:1].expand(rows, *x.shape[1:]) for x in columns_of(batch)))


def columns_of(batch: Batch) -> list[Tensor]:
    return [getattr(batch, name) for name in type(batch).__match_args__]


def tensors_in(thing: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(thing) if isinstance(x, Tensor)]


class RecordedGradients:
    """The recordings of a run's losses."""

    def __init__(self) -> None:
        self.kept = Recordings()  # by the shape of a batch
        self.loss: Any = None  # whose settings were looked at last
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
            self.kept.renew((settings_of(loss), settings_of(policy)))
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
            if has_hooks(policy):
                return None
            try:
                with trying_out(policy) as changed, np.errstate(all="ignore"):
                    found = kind(gradient, loss, policy, batch, grad)
            except Exception:  # whatever it does that cannot be recorded; a true mistake will show again
                return None
            if not found.agrees and kind is RecordedGradient:
                differs(loss)
            return found if found.agrees and not changed else None

        return self.kept.find((kind, type(batch), shapes_of(columns_of(batch))), make)
