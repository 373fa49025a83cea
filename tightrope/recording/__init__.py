"""A function of tensors, recorded once and replayed over the same memory.

Where rows are few an operation costs what its call costs. The function runs once, every operation is noted (the backward ones
too), and a replay makes the same operations as NumPy calls into memory that is there already. Nothing is derived by hand.

A function that looks at numbers to decide what to do next, draws random ones, or writes into tensors that are not its own
cannot be recorded: Unrecordable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Memory, array, runner
from .memory import MemoryPlan, needed, owned
from .recorder import Recorder, Sharing, Unrecordable, tensors

__all__ = ["Array", "RecordedFunction", "Recordings", "Unrecordable"]
MOST = 16  # shapes for which recordings are kept


class RecordedFunction:
    """A function of tensors as calls over arrays. Its results lie in the same memory each time.

    `exact` keeps to what gives the same bits as the function. `writes` are tensors from outside that it may write. If `steady`,
    what depends on tensors from outside alone is computed by `refresh`, and not with every call. Functions that read one of the
    `banned` tensors are refused.
    """

    def __init__(
        self, function: Callable[..., object], inputs: Sequence[Tensor], *, exact: bool = False, steady: bool = False,
        writes: Sequence[Tensor] = (), banned: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        given = [x.detach().clone(memory_format=torch.contiguous_format) for x in inputs]
        recorder, results = recorded(function, given, exact=exact, steady=steady, writable=writes, banned=banned)
        self.unknown = recorder.unknown
        calls = needed(recorder.restores + recorder.calls, [*results, *writes])
        before, after = split(calls, recorder) if steady else ([], calls)
        after = MemoryPlan(after, [*results, *writes, *given, *(x for each in before for x in each.operands)]).result()
        read = {owner(x) for each in (*before, *after) for x in each.operands} | {owner(x) for x in results}
        self.calls, self.prepared = after, before
        self._prepare, self.run = runner(before), runner(after)
        self.inputs = [array(x) if owner(x) in read else None for x in given]
        self.results = [array(x) for x in results]
        self.refresh()

    @np.errstate(all="ignore")
    def refresh(self) -> None:
        """Compute anew what depends on tensors from outside alone."""
        self._prepare()

    def __call__(self, *values: Array) -> list[Array]:
        """The results for these inputs, until the next call."""
        for place, value in zip(self.inputs, values, strict=True):
            if place is not None:
                np.copyto(place, value)
        self.run()
        return self.results


class Recordings(dict[object, Any]):
    """Recordings of one function by the shapes of its inputs, or None where it cannot be recorded. Copies begin empty: a
    recording reads the memory that it was made for."""

    settings: object = None  # of the function, as of the recordings kept
    refusal: str | None = None  # why the function could not be recorded

    def renew(self, settings: object) -> None:
        """Drop all of them if they were made for other settings."""
        if settings != self.settings:
            self.clear()
            self.settings, self.refusal = settings, None

    def find(self, key: object, make: Callable[[], Any]) -> Any:
        """The one for this key, made if it is not there. None where there are many already: shapes that always change cost more
        to record than it saves."""
        try:
            return self[key]
        except KeyError:
            if len(self) >= MOST:
                return None
        self[key] = made = make()
        return made

    def __deepcopy__(self, memo: object) -> Recordings:
        return Recordings()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Recordings, ()


def recorded(function: Callable[..., object], given: list[Tensor], **options: Any) -> tuple[Recorder, list[Tensor]]:
    """The function's operations, and its results."""
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
    """Calls that depend on nothing that a replay is given, and all others."""
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
    """The address of the memory that an array or tensor is a view of."""
    return owned(x).start
