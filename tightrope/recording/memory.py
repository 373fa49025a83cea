"""The memory of a recording: unused results are dropped, results that are only copied are written straight to their target, and
memory that is no longer needed is reused while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Memory, Span, array, span


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
        """Return the calls with copies left out and memory reused."""
        copies = {i for i, each in enumerate(self.calls) if each.function is np.copyto and self.goes_elsewhere(i)}
        self.compact()
        found = zip(self.calls, self.accesses, strict=True)
        return [self.moved(each, touched) for i, (each, touched) in enumerate(found) if i not in copies]

    def moved(self, each: Call, touched: list[Access]) -> Call:
        places = {
            id(a.operand): relocated(a.operand, a.span, self.buffers[a.block])
            for a in touched
            if a.block in self.buffers
        }
        return each.moved(lambda x: places.get(id(x), x)) if places else each

    def goes_elsewhere(self, i: int) -> bool:
        """Whether call i, a copy, can be left out because its source can be computed in the target's memory."""
        target, source = self.calls[i].args[:2]
        if len(self.calls[i].args) == 4 or target.dtype != source.dtype or target.nbytes != source.nbytes:
            return False
        if not (target.flags.c_contiguous and source.flags.c_contiguous and target.size):
            return False
        whole, there, block = span(source), span(target), owned(source).start
        if block in self.fixed or block in self.buffers or self.last[block] != i or whole.start != block:
            return False
        goal = owned(target).start
        if whole.end - whole.start != self.sizes[block] or goal not in self.fixed:
            return False
        between = [s for j, s in self.uses[goal] if self.first[block] <= j < i]
        if any(s.start < there.end and there.start < s.end for s in between):
            return False
        self.buffers[block] = Buffer(target.reshape(-1).view(np.uint8), block)
        return True

    def compact(self) -> None:
        """Place each result in the memory of a block of the same size that is no longer read."""
        free: dict[int, list[Array]] = {}
        elsewhere = self.fixed | self.buffers.keys()
        for i, touched in enumerate(self.accesses):
            blocks = [b for b in dict.fromkeys(a.block for a in touched) if b not in elsewhere]
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
        outputs = [a.operand for a in self.accesses[i] if a.written]
        if not isinstance(self.calls[i].function, np.ufunc) or len(outputs) != 1:
            return False
        out: Any = outputs[0]
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
