"""The memory of a recording: unused results are dropped, results that are copied are written straight to their target, and
memory that is no longer needed is reused while it is in the cache.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Memory, Span, array, span, storage_of, tensor
from .reductions import product_and_sum

MAX_WORK = 1000  # of looking whether two operands share memory


class Access(NamedTuple):
    """An operand of a call."""

    operand: Memory
    span: Span
    block: int  # the address of the memory that it is a view of
    written: bool


class Buffer(NamedTuple):
    """The new memory of a block."""

    bytes: Array
    start: int  # the former address of the block


def owned(x: Memory) -> Span:
    """Return the whole memory that an array or tensor is a view of."""
    if isinstance(x, Tensor):
        held = x.untyped_storage()
        return Span(held.data_ptr(), held.data_ptr() + held.nbytes())
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    return owned(root.base) if isinstance(root.base, Tensor) else span(root)


def accesses(each: Call) -> list[Access]:
    outputs = [id(x) for x in each.outputs]
    return [Access(x, span(x), owned(x).start, id(x) in outputs) for x in each.operands]


def needed(calls: Sequence[Call], wanted: Sequence[Memory]) -> list[Call]:
    """Return the calls on which the wanted arrays depend."""
    blocks = {owned(x).start for x in wanted}
    kept = []
    for each in reversed(calls):
        touched = accesses(each)
        if any(a.written and a.block in blocks for a in touched):
            kept.append(each)
            blocks |= {a.block for a in touched}
    return kept[::-1]


class Unmovable(Exception):
    """A copy is needed."""


class Copies:
    """Leaves out copies of results that can be written to the target of the copy at once, such as those of each step of a
    sequence, which are stacked at its end. `pinned` is memory to which something outside refers."""

    def __init__(self, calls: Sequence[Call], pinned: Sequence[Memory]) -> None:
        self.calls, self.left_out = list(calls), set[int]()
        self.fixed = {owned(x).start for x in pinned}
        self.uses: dict[int, list[int]] = {}  # the calls that use a block of memory, in order
        for i, each in enumerate(calls):
            for block in {owned(x).start for x in each.operands}:
                self.uses.setdefault(block, []).append(i)

    def result(self) -> list[Call]:
        for i in reversed(range(len(self.calls))):  # what is copied twice is written to the last target
            if self.calls[i].function is np.copyto and len(self.calls[i].args) < 4:  # no mask
                with suppress(Unmovable):
                    self.leave_out(i)
        return [each for i, each in enumerate(self.calls) if i not in self.left_out]

    def leave_out(self, i: int) -> None:
        """Leave out call i, if it copies a whole block for the last time. Raise Unmovable if it is needed."""
        target, source = self.calls[i].args[:2]
        block, goal = owned(source).start, owned(target).start
        *before, last = self.uses[block]
        alike = target.shape == source.shape or (target.flags.c_contiguous and target.size == source.size)
        fits = alike and target.dtype == source.dtype and source.flags.c_contiguous and source.size
        if not (fits and before and last == i and span(source) == owned(source)) or block in (goal, *self.fixed):
            raise Unmovable
        if not any(owned(x).start == block for x in self.calls[before[0]].outputs):  # it was there before
            raise Unmovable
        for k in self.uses[goal]:
            if before[0] <= k < i and any(sharing(x, target) for x in self.calls[k].operands):
                raise Unmovable
        moved = [moved_views(self.calls[k], source, target) for k in before]
        for k, each in zip(before, moved, strict=True):
            self.calls[k] = each
            if k not in self.uses[goal]:
                insort(self.uses[goal], k)
        self.uses[goal].remove(i)
        del self.uses[block]
        self.left_out.add(i)


def sharing(x: Memory, y: Array) -> bool:
    """Whether two operands share memory, or may do so."""
    given = array(x) if isinstance(x, Tensor) else x
    try:
        return np.may_share_memory(given, y) and np.shares_memory(given, y, max_work=MAX_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def moved_views(each: Call, source: Array, target: Array) -> Call:
    """Return a call with the views of `source`, a whole block, as the same entries of `target`. Raise Unmovable if it would not
    do the same."""
    block, whole = owned(source).start, torch.empty(0, dtype=torch.uint8).set_(storage_of(target)).numpy()
    places = dict[int, Memory]()
    for x in each.operands:
        if owned(x).start == block:
            given = array(x) if isinstance(x, Tensor) else x
            offset, strides = span(x).start - block, given.strides
            if (
                not target.flags.c_contiguous
            ):  # elementwise functions take any layout, products take matrices of any rows
                elementwise = isinstance(each.function, np.ufunc) or each.function is np.copyto
                product = each.function in (np.dot, product_and_sum) and all(x is not out for out in each.outputs)
                offset, strides = in_layout_of(target, given, offset)
                if not elementwise and not (product and given.ndim == 2 and given.itemsize in strides):
                    raise Unmovable
            view: Array = np.ndarray(
                given.shape, given.dtype, whole, span(target).start + offset - span(whole).start, strides
            )
            places[id(x)] = tensor(view) if isinstance(x, Tensor) else view
    moved = each.moved(lambda x: places.get(id(x), x))
    if any(partly_shared(x, out) for out in moved.outputs for x in moved.operands):
        raise Unmovable
    return moved


def in_layout_of(target: Array, view: Array, offset: int) -> tuple[int, tuple[int, ...]]:
    """Return offset and strides of the entries of `target` that a view has of a contiguous array of the same shape, of which it
    starts at `offset`. Raise Unmovable if they have no strides."""
    item, shape = target.itemsize, target.shape
    steps = [s // item if n > 1 else 0 for n, s in zip(view.shape, view.strides, strict=True)]
    if not view.size or view.dtype != target.dtype or min(steps, default=0) < 0:
        raise Unmovable
    start, *along = (np.array(np.unravel_index(k, shape)) for k in (offset // item, *steps))
    end = start + sum((n - 1) * step for n, step in zip(view.shape, along, strict=True))
    if (end >= shape).any():  # an axis of the view crosses axes of the array
        raise Unmovable
    return int(start @ target.strides), tuple(int(step @ target.strides) for step in along)


def partly_shared(x: Memory, out: Memory) -> bool:
    """Whether two operands may share memory, without being the same entries."""
    a, b = (array(v) if isinstance(v, Tensor) else v for v in (x, out))
    same = a.shape == b.shape and a.strides == b.strides and span(a) == span(b)
    return not same and np.may_share_memory(a, b)


class MemoryPlan:
    """Records when each block of memory is used. A block may be moved if it is written before it is read, and if nothing
    outside the recording (`pinned`) refers to it."""

    def __init__(self, calls: Sequence[Call], pinned: Sequence[Memory]) -> None:
        self.calls = list(calls)
        self.accesses = [accesses(each) for each in calls]
        self.sizes: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.uses: dict[int, list[tuple[int, Span]]] = {}
        self.fixed = {owned(x).start for x in pinned}
        for i, touched in enumerate(self.accesses):
            written = {a.block for a in touched if a.written}
            for a in touched:
                if a.block not in self.first:
                    self.first[a.block] = i
                    whole = owned(a.operand)
                    self.sizes[a.block] = whole.end - whole.start
                    if a.block not in written:
                        self.fixed.add(a.block)
                self.last[a.block] = i
                self.uses.setdefault(a.block, []).append((i, a.span))
        self.buffers: dict[int, Buffer] = {}

    def result(self) -> list[Call]:
        """Return the calls with memory reused, one for each call that was given."""
        self.compact()
        return [self.moved(each, touched) for each, touched in zip(self.calls, self.accesses, strict=True)]

    def last_uses(self) -> list[int]:
        """Return for each call the place of the last call that uses what it writes, or the number of calls if something outside
        may use it."""
        count = len(self.calls)
        return [
            max(count if a.block in self.fixed else self.last[a.block] for a in touched if a.written)
            for touched in self.accesses
        ]

    def moved(self, each: Call, touched: list[Access]) -> Call:
        places = {
            id(a.operand): relocated(a.operand, a.span, self.buffers[a.block])
            for a in touched
            if a.block in self.buffers
        }
        return each.moved(lambda x: places.get(id(x), x)) if places else each

    def compact(self) -> None:
        """Place each result in the memory of a block of the same size that is no longer read."""
        free: dict[int, list[Array]] = {}
        for i, touched in enumerate(self.accesses):
            blocks = [b for b in dict.fromkeys(a.block for a in touched) if b not in self.fixed]
            new = [b for b in blocks if self.first[b] == i]
            ending = [b for b in blocks if self.last[b] == i and self.first[b] < i]
            early = [b for b in ending if self.overwritable(i, b)]
            for b in early:
                free.setdefault(self.sizes[b], []).append(self.buffers[b].bytes)
            for b in new:
                reused, size = free.get(self.sizes[b]), max(self.sizes[b], 1)
                self.buffers[b] = Buffer(reused.pop() if reused else torch.empty(size, dtype=torch.uint8).numpy(), b)
            for b in [b for b in ending if b not in early] + [b for b in new if self.last[b] == i]:
                free.setdefault(self.sizes[b], []).append(self.buffers[b].bytes)

    def overwritable(self, i: int, block: int) -> bool:
        """Whether call i may overwrite this operand: true for elementwise functions on the same layout."""
        written = [a for a in self.accesses[i] if a.written]
        if (
            not isinstance(self.calls[i].function, np.ufunc)
            or len(written) != 1
            or written[0].span.start != written[0].block
        ):
            return False
        out: Any = written[0].operand
        return all(
            isinstance(x, np.ndarray) and (x.shape, x.strides, x.dtype) == (out.shape, out.strides, out.dtype)
            and where.start == block
            for x, where, at, _ in self.accesses[i] if at == block
        )  # fmt: skip


def relocated(x: Memory, where: Span, buffer: Buffer) -> Memory:
    """Return the view of the buffer that corresponds to x, a view of the block that is moved there."""
    given = array(x) if isinstance(x, Tensor) else x
    view: Array = np.ndarray(given.shape, given.dtype, buffer.bytes, where.start - buffer.start, given.strides)
    return torch.from_numpy(view) if isinstance(x, Tensor) else view
