"""The updates of a phase, one for each minibatch.

With compiled recordings, an update consists of a few C functions whose arguments lie at fixed addresses. They are noted while
the first update of a phase runs as it is written, and one C function then makes all later ones. Notes serve one phase, so
that nothing can outdate them. An update that does anything else to tensors runs as it is written each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import activity
from ..functional import mean_of_taken
from ..types import Batch, Minibatches, Settings, columns_of
from .distributed import world
from .update_in_c import Address, Whole, exceeds_in_c, function

Numbers = tuple[Tensor, ...]
ROWS_AT_ONCE = 1 << 14  # rows of minibatches between marks of activity and looks at signals


class MakesUpdates(Protocol):
    """The part of a runtime that makes updates."""

    compiles_recordings: bool
    repeats: Repeats

    @property
    def watcher(self) -> object: ...

    def halted(self, stopped: Tensor) -> bool: ...


class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The C functions that are called inside; not complete if anything else is done to tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, ctypes.Structure]] = []
        self.kept: list[object] = []
        self.complete, self.ignores = True, False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from importing its compiler, which takes a second."""
        return False

    def __torch_dispatch__(
        self,
        operation: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Settings | None = None,
    ) -> object:
        self.complete = self.complete and self.ignores
        return operation(*args, **(kwargs or {}))

    def add(self, name: str, arguments: ctypes.Structure, *kept: object) -> None:
        self.found.append((name, arguments))
        self.kept.append(kept)

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        with torch._C._DisableTorchDispatch():
            return torch.empty(shape)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.ignores = True
        try:
            yield
        finally:
            self.ignores = False


class Repeats:
    """What a runtime knows of its updates."""

    def __init__(self) -> None:
        self.calls: Notes | None = None  # what notes the C functions that are called now
        self.as_written = False  # whether an update did something that cannot be repeated
        self.repetition: Repetition | None = None  # of the last phase

    def begin(self) -> Notes:
        """From now on, the runtime notes the C functions that it calls."""
        self.calls = Notes()
        self.calls.__enter__()  # type: ignore[no-untyped-call]
        return self.calls

    def end(self) -> None:
        """Note nothing any more."""
        if self.calls is not None:
            self.calls.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.calls = None


class Updates:
    """A loop over minibatches, and over the items of `others` beside them. Each pass makes an update and adds its numbers:

        for minibatch in updates:
            terms = runtime.backward(loss, policy, minibatch, optimizer)
            updates.add(*terms, runtime.step(optimizer, max_grad_norm))

    With compiled recordings the body may run for the first minibatch only, and then stands for all, as a captured CUDA graph
    does. So it may depend on the minibatch alone, not on what Python counts.
    """

    def __init__(self, runtime: MakesUpdates, minibatches: Iterable[Batch], *others: Iterable[object]) -> None:
        self.runtime, self.minibatches, self.others = runtime, minibatches, others
        self.stopped: Tensor | None = None  # a flag: 1 ends the phase and drops the numbers of the update
        self.rows: list[Numbers] = []
        self.flags: list[Tensor] = []
        self.table: Tensor | None = None  # all numbers (K, M), if a C function made the updates

    def __iter__(self) -> Iterator[Any]:
        minibatches, others = self.minibatches, [iter(x) for x in self.others]
        repetition, repeats = self.repetition(), self.runtime.repeats
        if repetition is not None:
            first, rest = repetition.minibatch(0), [next(x) for x in others]
            notes = repeats.begin()
            try:
                yield (first, *rest) if rest else first
                complete = repeats.calls is notes and notes.complete
            finally:
                repeats.end()
            if self.ended():
                return
            plain = all(x.dtype is torch.float32 and x.dim() == 0 for x in self.rows[0])
            if complete and plain and all(x is None for x in rest):
                self.table = repetition.run(notes, self.rows[0], self.stopped)
                return
            repeats.as_written = True
            minibatches = islice(minibatches, 1, None)
        for items in zip(minibatches, *others, strict=False):
            yield items if others else items[0]
            if self.ended():
                return

    def repetition(self) -> Repetition | None:
        """Return the minibatches for a C function, or None."""
        runtime, repeats = self.runtime, self.runtime.repeats
        if not runtime.compiles_recordings or world().is_distributed or runtime.watcher or repeats.as_written:
            return None
        repeats.repetition = repetition_of(self.minibatches, repeats.repetition)
        return repeats.repetition

    def stop_above(self, limit: float | None, number: Tensor) -> Tensor | None:
        """Return a flag for `step`: 1 once a number was above the limit in any update but the first. Later updates change
        nothing and are not counted. Return None without a limit."""
        if limit is None:
            return None
        if self.runtime.compiles_recordings:
            self.stopped = exceeds_in_c(self.stopped, number, limit, self.runtime.repeats.calls)
        elif self.stopped is None:
            self.stopped = torch.zeros_like(number)
        else:
            self.stopped = torch.maximum(self.stopped, (number > limit).float())
        return self.stopped

    def add(self, *numbers: Tensor) -> None:
        """Add the numbers of an update, for `means`."""
        self.rows.append(numbers)
        self.flags += [] if self.stopped is None else [self.stopped]

    def ended(self) -> bool:
        """Whether the last update was stopped, and is not to be counted."""
        if self.stopped is None or not self.runtime.halted(self.stopped):
            return False
        self.rows.pop()
        self.flags.pop()
        return True

    def means(self) -> tuple[Tensor, ...]:
        """Return the mean of each number over the updates that were not stopped."""
        if self.table is not None:
            return mean_of_taken(self.table).unbind()
        table = torch.stack([number for row in self.rows for number in row]).view(len(self.rows), -1)
        return mean_of_taken(table, torch.stack(self.flags) if self.flags else None).unbind()


# in C -----------------------------------------------------------------------------------------------------------------


class NotedCall(ctypes.Structure):
    """A function of update.c that takes the address of its arguments."""

    _fields_ = [("run", Address), ("arguments", Address)]


class Column(ctypes.Structure):
    """A column of a batch, its rows in a minibatch, and the bytes of a row."""

    _fields_ = [("batch", Address), ("minibatch", Address), ("size", Whole)]


class LoopArguments(ctypes.Structure):
    """The struct `repetition` of update.c."""

    _fields_ = [
        ("columns", Address), ("num_columns", Whole), ("length", Whole), ("rows", Whole), ("calls", Address),
        ("num_calls", Whole), ("numbers", Address), ("width", Whole), ("stopped", Address),
    ]  # fmt: skip


class Repetition:
    """Minibatches of one size, which are copied to the same memory one after the other."""

    def __init__(self, minibatches: Minibatches, columns: list[Tensor]) -> None:
        self.kind, self.rows = type(minibatches.batch), minibatches.sizes[0]
        self.taken = [torch.empty(self.rows, *x.shape[1:], dtype=x.dtype) for x in columns]
        each = [Column(None, x.data_ptr(), x.nbytes // self.rows) for x in self.taken]
        self.columns = (Column * len(each))(*each)
        self.arguments = LoopArguments(ctypes.addressof(self.columns), len(each), 0, self.rows)
        flat = columns_of(self.kind(*self.taken).flat())
        self.as_views = all(x.data_ptr() == y.data_ptr() for x, y in zip(flat, self.taken, strict=True))

    def fits(self, minibatches: Minibatches, columns: list[Tensor]) -> bool:
        """Whether other minibatches have the same rows."""
        pairs = zip(columns, self.taken, strict=True)
        same = self.kind is type(minibatches.batch) and self.rows == minibatches.sizes[0]
        return same and all(x.shape[1:] == y.shape[1:] and x.dtype is y.dtype for x, y in pairs)

    def take(self, minibatches: Minibatches, columns: list[Tensor]) -> None:
        """Use these minibatches from now on."""
        self.given, self.order, self.count = columns, minibatches.order, minibatches.order.numel() // self.rows
        for place, x in zip(self.columns, columns, strict=True):
            place.batch = x.data_ptr()
        a = self.arguments
        a.length, a.num_calls, a.width, a.stopped = len(columns[0]), 0, 0, None

    def fill(self, start: int, count: int, table: int | None = None) -> int:
        """Take `count` minibatches from number `start` on and make the updates that were noted. Returns how many were made."""
        address = self.order.data_ptr() + start * self.rows * self.order.itemsize
        made: int = function("repeat")(ctypes.addressof(self.arguments), address, count, table)
        return made

    def minibatch(self, number: int) -> Batch:
        """Return a minibatch. The next one overwrites it."""
        self.fill(number, 1)
        return self.kind(*self.taken).flat()

    def run(self, notes: Notes, numbers: Numbers, stopped: Tensor | None) -> Tensor:
        """Make all updates but the first as it was noted. Returns the numbers of all, (K, M)."""
        width, table = len(numbers), torch.empty(self.count, len(numbers))
        calls = (NotedCall * len(notes.found))(
            *(NotedCall(ctypes.cast(function(name), Address), ctypes.addressof(x)) for name, x in notes.found)
        )
        places = (Address * width)(*(x.data_ptr() for x in numbers))
        a = self.arguments
        a.calls, a.num_calls, a.numbers, a.width = ctypes.addressof(calls), len(calls), ctypes.addressof(places), width
        a.stopped = None if stopped is None else stopped.data_ptr()
        function("write_row")(ctypes.addressof(a), table.data_ptr())
        start, at_once = 1, max(1, ROWS_AT_ONCE // self.rows)
        while start < self.count:
            count = min(at_once, self.count - start)
            taken = self.fill(start, count, table.data_ptr() + start * width * table.itemsize)
            activity.mark()
            start += taken
            if taken < count:
                break
        return table if start == self.count else table[:start]


def repetition_of(minibatches: Iterable[Batch], last: Repetition | None) -> Repetition | None:
    """Return minibatches that C functions can take, or None. `last` is what was returned for the phase before."""
    if not isinstance(minibatches, Minibatches):
        return None
    columns, sizes, order = columns_of(minibatches.batch), minibatches.sizes, minibatches.order
    equal = len({*sizes}) == 1 and sum(sizes) == order.shape[1] and len(sizes) * len(order) > 1
    readable = all(x.is_contiguous() and not x.requires_grad for x in columns)
    if not (equal and readable and order.dtype is torch.int64 and order.is_contiguous()):
        return None
    found = Repetition(minibatches, columns) if last is None or not last.fits(minibatches, columns) else last
    found.take(minibatches, columns)
    return found if found.as_views else None
