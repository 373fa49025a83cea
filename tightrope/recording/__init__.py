"""Recording a function of tensors once, and replaying it as NumPy calls. It makes small networks fast on the CPU.

With few rows, the overhead of each torch call takes more time than its arithmetic. The function therefore runs once, and every
operation is noted, those of the backward pass too. A replay does the same operations as NumPy calls into preallocated memory.

A function that decides by the values in tensors, draws random numbers, or writes to tensors from outside raises Unrecordable.
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
MAX_SHAPES = 16  # recordings of one function, by the shapes of its inputs


class RecordedFunction:
    """A recorded function. Every call writes its results to the same memory.

    `exact` allows only calls that give the same bits as torch. `writes` are tensors from outside that the function may write,
    `banned` are tensors that it may not read. With `steady`, `refresh` computes everything that depends only on tensors from
    outside, such as parameters, and calls do not repeat it.
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
