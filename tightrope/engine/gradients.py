"""Faster replacements for autograd: recordings on the CPU, for any loss, and kernels for PPOLoss on CUDA.

A recording runs autograd once and replays its operations as NumPy calls (see recording/). Kernels are in kernels/. Each
replacement is first compared with autograd on random numbers; if it disagrees, autograd computes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models import ActorCritic
from ..models.recurrent import RecurrentActorCritic
from ..recording import NotCompiled, RecordedFunction, Recordings
from ..recording.recorder import tensors
from ..sequences import Sequences, SkippingSequences
from ..types import Batch, Trajectories, columns_of
from .distributed import all_reduce_max, world
from .kernels import FusedGradient, WideGradient, gradient_class, plain_trunks
from .kernels.layout import TERMS
from .optimize import Optimizer, autograd
from .precision import Precision, arithmetic
from .recorded import (
    BLOCK,
    LossInputs,
    TermsBuffer,
    agree,
    attempted,
    cache_key,
    random_batch,
    shapes_of,
    trial_parameters,
)
from .segments import STEPS, SegmentGradient, in_segments_faster, of_length
from .update_in_c import Calls, GradientInC

Gradient = Callable[[Any, Any, Any], Any]  # (loss, policy, batch): writes the gradient and returns the loss's terms
Form = FusedGradient | WideGradient
TOLERANCE = 1e-3  # of a gradient by kernels, relative to the norm


class RecordedGradient:
    """A recording of the gradient of one loss, for batches of one shape."""

    def __init__(
        self, gradient: Gradient, loss: Any, policy: ActorCritic, batch: Batch, grad: Tensor, compiled: bool = False
    ) -> None:
        kind = type(batch)

        def function(*columns: Tensor) -> list[Tensor]:
            self.terms = TermsBuffer(gradient(loss, policy, kind(*columns)))
            return self.terms.results()

        self.recording = RecordedFunction(
            function, columns_of(random_batch(batch, policy, 1)), writes=[grad], compiled=compiled
        )
        read = [(i, x) for i, x in enumerate(self.recording.inputs) if x is not None]
        self.read, self.places = [i for i, _ in read], [torch.from_numpy(x) for _, x in read]
        self.in_c: GradientInC | None = None
        if self.terms.scalar and self.terms.width:
            with suppress(NotCompiled):
                self.in_c = GradientInC(self.recording, [x for _, x in read])
        other = random_batch(batch, policy, 2)
        expected = [*tensors(gradient(loss, policy, other)), grad.clone()]
        grad.fill_(torch.nan)  # the replay must write every entry
        self.agrees = agree([*tensors(self(columns_of(other))), grad], expected)

    def __call__(self, columns: Sequence[Tensor], calls: Calls | None = None) -> object:
        """Write the gradient for a batch of these columns; returns the loss's terms."""
        if self.in_c is None:
            self.replay(columns)
            return self.terms.fresh(self.recording.results)
        with nullcontext() if calls is None else calls.paused():
            _, new = next(self.terms.rows)
        self.in_c([columns[i] for i in self.read], new[0], calls)
        return self.terms.of(new)

    @np.errstate(all="ignore")  # the guard reports non-finite numbers once per phase
    def replay(self, columns: Sequence[Tensor]) -> None:
        torch._foreach_copy_(self.places, [columns[i] for i in self.read])
        self.recording.run()


class BlockGradient:
    """The gradient of a loss that is a mean over the rows with `alive`, computed in blocks of rows.

    Other rows are dropped, and each block is weighted by its number of rows. One recording serves batches of every size.
    """

    def __init__(
        self,
        gradient: Gradient,
        loss: Any,
        policy: ActorCritic,
        batch: Trajectories,
        grad: Tensor,
        compiled: bool = False,
    ) -> None:
        """Record a block with as many rows as `batch`, whose values do not matter."""
        self.rows, self.grad, self.alive = len(batch), grad, type(batch).__match_args__.index("alive")
        self.block = RecordedGradient(gradient, loss, policy, batch, grad, compiled)
        self.agrees = self.block.agrees and self.block.terms.scalar
        if self.agrees:
            many = resized(batch, 3 * self.rows)
            other = random_batch(many, policy, 3)
            expected = [*tensors(gradient(loss, policy, other)), grad.clone()]
            self.agrees = agree([*tensors(self(columns_of(other))), grad], expected)

    @np.errstate(all="ignore")
    def __call__(self, columns: Sequence[Tensor], calls: Calls | None = None) -> object:
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
    """Return x padded with zeros to `rows` rows."""
    return x if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def resized(batch: Any, rows: int) -> Any:
    """Return a batch with `rows` copies of the first row."""
    return type(batch)(*(x[:1].expand(rows, *x.shape[1:]) for x in columns_of(batch)))


class RecordedGradients:
    """Keeps the recordings of a run's losses. If a loss cannot be recorded, `say` prints the reason, once."""

    def __init__(self, say: Callable[[str], None], compiled: bool = False) -> None:
        self.say, self.said, self.compiled = say, set[str](), compiled
        self.kept = Recordings()  # by the shapes of a batch's columns
        self.inputs = LossInputs()
        self.grad: Tensor | None = None  # the buffer that all recordings write to
        self.unchanged: ActorCritic | None = None  # a policy that was looked at in this phase, when it collected

    def compute(
        self, gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor, calls: Calls | None = None
    ) -> Any:
        """Write the gradient and return the loss's terms, by a recording for this loss, policy and batch if there is one."""
        with nullcontext() if calls is None else calls.paused():
            found = self.found(gradient, loss, policy, batch, grad)
        if found is None:
            return gradient(loss, policy, batch)
        return found(columns_of(batch), calls)

    def found(self, gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> Any:
        """Return the recording for this loss, policy and batch, or None."""
        if not isinstance(policy, ActorCritic) or not isinstance(batch, Batch):
            return None
        if isinstance(batch, SkippingSequences):
            self.tell(loss, policy, "some steps of its sequences only reset an environment")
            return None
        if grad is not self.grad:
            self.kept.clear()
            self.inputs, self.grad = LossInputs(), grad
        if self.inputs.take(loss):
            key = policy.recordings.settings if self.unchanged is policy else cache_key(policy)
            self.kept.renew((cache_key(self.inputs.recordable), key))
            self.unchanged = None
        loss, found = self.inputs.recordable, None
        if (
            isinstance(batch, Sequences)
            and isinstance(policy, RecurrentActorCritic)
            and in_segments_faster(batch, policy, self.compiled)
        ):
            found = self.find(SegmentGradient, gradient, loss, policy, of_length(STEPS, batch, policy), grad)
        elif isinstance(batch, Trajectories) and not isinstance(batch, Sequences) and len(batch):
            like = resized(batch, min(BLOCK, 1 << (len(batch) - 1).bit_length()))
            found = self.find(BlockGradient, gradient, loss, policy, like, grad)
        if found is None:
            known = self.kept.get((RecordedGradient, type(batch), shapes_of(columns_of(batch))))
            found = known or self.find(RecordedGradient, gradient, loss, policy, batch, grad)
        return found

    def find(self, kind: type[Any], gradient: Gradient, loss: Any, policy: Any, batch: Batch, grad: Tensor) -> Any:
        """Return the recording for batches of this shape, or None."""

        def make() -> Any:
            found, refusal = attempted(
                policy, lambda compiled: kind(gradient, loss, policy, batch, grad, compiled), self.compiled
            )
            if refusal is not None and kind is RecordedGradient:
                self.tell(loss, policy, refusal)
            return found

        key = kind, type(batch), shapes_of(columns_of(batch))
        found = self.kept.find(key, make)
        if found is None and kind is RecordedGradient and key not in self.kept:
            self.tell(loss, policy, "its batches have too many shapes")
        return found

    def tell(self, loss: object, policy: ActorCritic, refusal: str) -> None:
        """Print why a loss is not recorded, unless the plan has already given the same reason for the policy."""
        line = f"recording: {getattr(loss, '__name__', type(loss).__name__)} runs in plain PyTorch: {refusal}"
        if world().is_rank0 and refusal != policy.recordings.refusal and line not in self.said:
            self.said.add(line)
            self.say(line)


# on devices ------------------------------------------------------------------------------------------------------------


class KernelGradients:
    """Chooses the kernels for the gradient of a loss and a policy, and keeps the last choice.

    The gradient must agree with autograd on random numbers. A disagreement means that an equation in `functional` has changed
    since the gradient was derived; autograd is then used, and `say` prints the reason, once.
    """

    def __init__(self, precision: Precision, fused: bool, say: Callable[[str], None]) -> None:
        self.precision, self.fused, self.say, self.said = precision, fused, say, set[str]()
        self.key: object = None  # loss settings, policy and optimizer for which `form` was chosen
        self.form: Form | None = None

    def find(self, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
        """Return the gradient by kernels for this loss and policy, or None."""
        key = (type(loss), plain_settings(loss), policy, type(policy), optimizer)
        if self.key != key:
            self.key, self.form = key, self.make(loss, policy, batch, optimizer)
        return self.form

    def squares_of(self, optimizer: Optimizer) -> Tensor | None:
        """Return the parts of the gradient's squared norm, if fused kernels wrote the gradient, else None."""
        return self.form.squares if self.form is not None and self.form.grad is optimizer.grad else None

    def measure(self, optimizer: Optimizer) -> None:
        """Recompute the squared norm after the gradient has been averaged over ranks."""
        if (squares := self.squares_of(optimizer)) is not None:
            squares.zero_()
            squares[0] = optimizer.grad.dot(optimizer.grad)

    def make(self, loss: Any, policy: Any, batch: Batch, optimizer: Optimizer) -> Form | None:
        kind = gradient_class(loss, policy) if self.fused else None
        if kind is None:
            return None
        # in float32, because tf32 rounds sums of cancelling terms by several percent
        try:
            reason = disagreement(kind(policy, optimizer, "fp32"), loss, policy, batch, optimizer)
        except Exception as error:  # such as one of Triton's compiler on a device that it does not support
            reason = f"they fail with {type(error).__name__}"
        form = kind(policy, optimizer, "tf32" if self.precision == "tf32" else "fp32")
        differs = torch.tensor(reason is not None, device=optimizer.flat.device)
        if not all_reduce_max(differs.float()):  # ranks may round differently, and must all choose the same
            return form
        what = f"{type(loss).__name__} uses autograd instead of kernels, which is slower"
        line = f"accelerate: {what}: {reason or 'on another rank the two disagree'}"
        if world().is_rank0 and line not in self.said:
            self.said.add(line)
            self.say(line)
        return None


def plain_settings(loss: object) -> tuple[object, ...]:
    """Return the loss's numbers, switches and functions. A changed number needs a new comparison: a term with weight 0 was not
    tested."""
    values = (getattr(loss, field.name) for field in fields(loss)) if is_dataclass(loss) else ()
    return tuple(x for x in values if x is None or callable(x) or isinstance(x, (bool, int, float)))


def disagreement(form: Form, loss: Any, policy: ActorCritic, batch: Batch, optimizer: Optimizer) -> str | None:
    """Compare a form with autograd, for random parameters and a random batch of the same shape. Return how they differ.

    Both compute in float32: tf32 rounds small sums of large terms by several percent, which would hide or feign a difference.
    """
    if isinstance(getattr(loss, "ent_coef", None), Tensor):  # a schedule may start at 0, which would test nothing
        loss = replace(loss, ent_coef=torch.full_like(loss.ent_coef, 0.1))
    with trial_parameters(policy), arithmetic("fp32", optimizer.flat.device), plain_trunks(policy):
        batch = random_batch(batch, policy, 1)
        terms = autograd(loss, policy, batch, optimizer)
        names = getattr(terms, "_fields", TERMS)
        if names != TERMS:
            return f"the loss returns the terms {', '.join(names)}, and the kernels {', '.join(TERMS)}"
        expected = [*terms, *(grad.clone() for grad in optimizer.grads.values())]
        given = [*form(loss, batch), *optimizer.grads.values()]
        pairs = zip(given, expected, strict=True)
        if all(bool((a - b).norm() <= TOLERANCE * b.norm() + 1e-6) for a, b in pairs):
            return None
        return "the two disagree, as after a change to the loss that engine/kernels/loss.py does not have"
