"""An update for each minibatch of a phase.

With compiled recordings, an update consists of a few C functions whose arguments lie at fixed addresses. They are noted while
the first update of a phase runs as it is written, and one C function then makes all later updates. Notes serve one phase, so
that nothing can outdate them. An update that does anything else to tensors runs as it is written each time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import activity
from ..types import Batch, Minibatches, columns_of
from .update_in_c import Address, Whole, function

Numbers = tuple[Tensor, ...]
# (stopped, minibatch, ...) to (stopped, numbers to log). `stopped` is None, or a flag: 1 ends the phase and drops the numbers
Update = Callable[..., tuple[Tensor | None, Numbers]]
ROWS_AT_ONCE = 1 << 14  # rows of minibatches between marks of activity and looks at signals


class Executor(Protocol):
    """The part of a runtime that makes updates."""

    watcher: Any
    repeats: Repeats

    @property
    def uses_c(self) -> bool: ...

    def halted(self, stopped: Tensor) -> bool: ...


class Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The C functions that are called inside; not complete if anything else is done to tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, ctypes.Structure]] = []
        self.kept: list[object] = []
        self.complete, self.ignores = True, False

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        self.as_written = set[object]()  # updates that cannot be repeated
        self.repetition: Repetition | None = None  # of the last phase

    @contextmanager
    def noted(self) -> Iterator[Notes]:
        """Inside, the runtime notes the C functions that it calls."""
        with Notes() as self.calls:
            try:
                yield self.calls
            finally:
                self.calls = None


class Updates:
    """The updates of a phase so far, and the numbers that they returned."""

    def __init__(self, runtime: Executor, update: Update) -> None:
        self.runtime, self.update = runtime, update
        self.stopped: Tensor | None = None
        self.rows: list[Numbers] = []
        self.flags: list[Tensor] = []

    def make(self, minibatch: Batch, *others: object) -> Numbers:
        """Make an update and return its numbers."""
        self.stopped, numbers = self.update(self.stopped, minibatch, *others)
        return numbers

    def add(self, numbers: Numbers) -> bool:
        """Add the numbers of the last update. Returns False, and drops them, if it ends the phase."""
        if self.stopped is not None:
            if self.runtime.halted(self.stopped):
                return False
            self.flags.append(self.stopped)
        self.rows.append(numbers)
        return True

    def result(self) -> tuple[Tensor, Tensor | None]:
        table = torch.stack([number for row in self.rows for number in row]).view(len(self.rows), -1)
        return table, torch.stack(self.flags) if self.flags else None


def repeated(
    runtime: Executor, update: Update, minibatches: Iterable[Batch], *others: Iterable[object]
) -> tuple[Tensor, Tensor | None]:
    """Call `update(stopped, minibatch, ...)` with each minibatch and item of `others`, where `stopped` is what the call before
    returned, at first None. Return the numbers of all updates (K, M), and flags (K,) of those that were skipped, or None."""
    made, key, repeats = Updates(runtime, update), getattr(update, "__code__", update), runtime.repeats
    if runtime.uses_c and runtime.watcher is None and key not in repeats.as_written:
        repeats.repetition = repetition = repetition_of(minibatches, repeats.repetition)
        if repetition is not None:
            iterators = [iter(x) for x in others]
            rest, first = [next(x) for x in iterators], repetition.minibatch(0)
            with repeats.noted() as notes:
                numbers = made.make(first, *rest)
            if not made.add(numbers):
                return made.result()
            plain = all(x.dtype is torch.float32 and x.dim() == 0 for x in numbers) and all(x is None for x in rest)
            if notes.complete and plain:
                return repetition.run(notes, numbers, made.stopped), None
            repeats.as_written.add(key)
            minibatches, others = islice(minibatches, 1, None), tuple(iterators)
    for args in zip(minibatches, *others, strict=False):
        if not made.add(made.make(*args)):
            break
    return made.result()


# in C -----------------------------------------------------------------------------------------------------------------


class Call(ctypes.Structure):
    """A function of update.c that takes the address of its arguments."""

    _fields_ = [("run", Address), ("arguments", Address)]


class Column(ctypes.Structure):
    """A column of a batch, its rows in a minibatch, and the bytes of a row."""

    _fields_ = [("batch", Address), ("minibatch", Address), ("size", Whole)]


class Arguments(ctypes.Structure):
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
        self.arguments = Arguments(ctypes.addressof(self.columns), len(each), 0, self.rows)
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
        calls = (Call * len(notes.found))(
            *(Call(ctypes.cast(function(name), Address), ctypes.addressof(x)) for name, x in notes.found)
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
