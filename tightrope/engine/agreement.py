"""Decisions that no rank may take alone: to stop, to save, to begin."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..errors import UsageError
from .distributed import all_reduce_max, broadcast_from_rank0, communicating, gather_to_rank0, world


class Agreement:
    """What one rank requests at the end of a phase, all do at the end of the same phase: to stop, to save.

    A single process does it at once. Several do it one phase later: the requests then travel while they work, and none waits.
    The maximum of different requests counts; one that was granted in a phase is not requested again in it.
    """

    def __init__(self, requests: int) -> None:
        self.pending: tuple[torch.Tensor, dist.Work] | None = None
        self.none = [0.0] * requests

    def decide(self, *requests: float) -> list[float]:
        """Say what this rank requests; returns what all of them do now."""
        if not world().is_distributed:
            return [*requests]
        granted = self.close()
        sent = torch.tensor([0.0 if g else r for r, g in zip(requests, granted, strict=True)], dtype=torch.float64)
        with communicating():
            self.pending = sent, dist.all_reduce(sent, dist.ReduceOp.MAX, async_op=True)
        return granted

    def close(self) -> list[float]:
        """The requests that are still on their way, once they have arrived."""
        if self.pending is None:
            return self.none
        sent, work = self.pending
        self.pending = None
        with communicating():
            work.wait()
        return sent.tolist()


def broadcast_after_work(work: Callable[[Callable[[], float]], bytes], value: Callable[[], float]) -> bytes:
    """What `work` returns on rank 0, where it may take long. It is given a function that returns the maximum of `value` over
    all ranks; the others answer that while they wait."""
    if not world().is_distributed:
        return work(value)

    def exchange(works: bool) -> tuple[float, float]:
        works_still, most = all_reduce_max(torch.tensor([works, value()], dtype=torch.float64)).tolist()
        return works_still, most

    def make() -> bytes:
        try:
            return work(lambda: exchange(True)[1])
        finally:
            exchange(False)

    while not world().is_rank0 and exchange(False)[0]:
        pass
    return broadcast_from_rank0(make)


def check_same_settings(settings: dict[str, Any]) -> None:
    """Refuse to begin where ranks have different settings: they would wait for each other, or drift apart."""
    if not world().is_distributed:
        return
    each = [json.loads(words) for words in gather_to_rank0(json.dumps(settings, sort_keys=True, default=str).encode())]

    def make() -> bytes:
        for rank, theirs in enumerate(each):
            for name, value in each[0].items():
                if theirs.get(name) != value:
                    raise UsageError(
                        f"{name} is {value!r} on rank 0 and {theirs.get(name)!r} on rank {rank}: give all ranks the same"
                    )
        return b""

    broadcast_from_rank0(make)
