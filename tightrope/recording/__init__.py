"""Recording a function of tensors once, and replaying it as C code or NumPy calls. It makes small networks fast on the CPU.

With few rows, the overhead of each torch call takes more time than its arithmetic. The function therefore runs once, and every
operation is noted, those of the backward pass too. A replay does the same operations into preallocated memory: as NumPy calls,
or, if a C compiler is to be used, as a compiled C function.

A function that decides by the values in tensors, draws random numbers, or writes to tensors from outside raises Unrecordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Memory, Unrecordable, array, runner
from .compiler import NotCompiled, turned_off
from .emitted import CFunction, Machine, sums_in_products
from .memory import Copies, MemoryPlan, needed, owned
from .products import why_not_compiled
from .recorder import Recorder, Sharing, tensors

__all__ = ["Array", "NotCompiled", "RecordedFunction", "Recordings", "Unrecordable", "turned_off", "why_not_compiled"]
MAX_SHAPES = 16  # recordings of one function, by the shapes of its inputs


class RecordedFunction:
    """A recorded function. Every call writes its results to the same memory.

    `exact` allows only calls that give the same bits as torch. `writes` are tensors from outside that the function may write,
    `banned` are tensors that it may not read. With `steady`, `refresh` computes everything that depends only on tensors from
    outside, such as parameters, and calls do not repeat it. With `compiled`, calls are compiled as C where that is possible.
    """

    def __init__(
        self, function: Callable[..., object], inputs: Sequence[Tensor], *, exact: bool = False, steady: bool = False,
        writes: Sequence[Tensor] = (), banned: Sequence[Tensor] = (), compiled: bool = False,
    ) -> None:  # fmt: skip
        self.exact, self.steady, self.writes, self.banned = exact, steady, list(writes), list(banned)
        given = [x.detach().clone(memory_format=torch.contiguous_format) for x in inputs]
        self.machine: Machine | None = None  # the C functions
        try:
            self._make(function, given, compiled)
        except NotCompiled:
            self._make(function, given, False)
        self.refresh()

    def _make(self, function: Callable[..., object], given: list[Tensor], compiled: bool) -> None:
        recorder, results = recorded(
            function, given, exact=self.exact, steady=self.steady, writable=self.writes, banned=self.banned,
            compiled=compiled,
        )  # fmt: skip
        self.unknown = recorder.unknown
        calls = needed(recorder.restores + recorder.calls, [*results, *self.writes])
        before, after = split(calls, recorder) if self.steady else ([], calls)
        if compiled:
            kept = {owned(x).start for x in (*results, *self.writes)}
            read_later = {owned(x).start for each in after for x in each.operands}
            before, after = sums_in_products(before, kept | read_later), sums_in_products(after, kept)
        pinned = [*results, *self.writes, *given, *(x for each in before for x in each.operands)]
        plan = MemoryPlan(Copies(after, pinned).result(), pinned)
        after = plan.result()
        read = {owner(x) for each in (*before, *after) for x in each.operands} | {owner(x) for x in results}
        self.calls, self.prepared = after, before
        if compiled:
            self.machine = Machine([before, after], [None, plan.last_uses()], self.exact)
            self._prepare, self.run = self.machine.runs
        else:
            self._prepare, self.run = runner(before), runner(after)
        self.inputs = [array(x) if owner(x) in read else None for x in given]
        self.results = [array(x) for x in results]

    @property
    def function(self) -> CFunction | None:
        """The C function that is the whole of a replay, None if it is not one C function."""
        return None if self.machine is None else self.machine.single[1]

    @np.errstate(all="ignore")
    def refresh(self) -> None:
        """Recompute everything that depends only on tensors from outside."""
        self._prepare()

    def __call__(self, *values: Array) -> list[Array]:
        """Return the results for these inputs. The next call overwrites them."""
        for place, value in zip(self.inputs, values, strict=True):
            if place is not None:
                np.copyto(place, value)
        self.run()
        return self.results


class Recordings(dict[object, Any]):
    """Recordings of one function by key, usually the shapes of its inputs; None for a key that cannot be recorded. A copy is
    empty, because a recording is bound to the memory that it was made for."""

    settings: object = None  # settings of the function for which these recordings are valid
    refusal: str | None = None  # why the function could not be recorded

    def renew(self, settings: object) -> None:
        """Drop all recordings if they were made for other settings."""
        if settings != self.settings:
            self.clear()
            self.settings, self.refusal = settings, None

    def find(self, key: object, make: Callable[[], Any]) -> Any:
        """Return the recording for this key, and make it if it is missing. Return None once there are MAX_SHAPES recordings:
        with shapes that keep changing, recording takes longer than it saves."""
        try:
            return self[key]
        except KeyError:
            if len(self) >= MAX_SHAPES:
                return None
        self[key] = made = make()
        return made

    def __deepcopy__(self, memo: object) -> Recordings:
        return Recordings()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Recordings, ()


def recorded(function: Callable[..., object], given: list[Tensor], **options: Any) -> tuple[Recorder, list[Tensor]]:
    """Run the function; return the recorder with its operations, and its results."""
    for share in (True, False):
        recorder = Recorder(given, share=share, **options)
        try:
            with recorder:
                results = tensors(function(*given))
        except Sharing:
            continue
        return recorder, [x.detach() for x in results]
    raise Unrecordable("a result is written to")


def split(calls: list[Call], recorder: Recorder) -> tuple[list[Call], list[Call]]:
    """Split calls into those that do not depend on the inputs of a replay, and all others."""
    live, kept = set(recorder.inputs), set()
    before, after = [], []
    for each in calls:
        written = {owner(x) for x in each.outputs}
        if live.isdisjoint(owner(x) for x in each.operands):
            before.append(each)
            kept |= written
        else:
            after.append(each)
            live |= written
    return (before, after) if kept.isdisjoint(live) else ([], calls)


def owner(x: Memory) -> int:
    """Return the address of the memory that an array or tensor is a view of."""
    return owned(x).start
