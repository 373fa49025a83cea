"""Decisions that no rank may take alone: to stop, to save."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..errors import UsageError
from .distributed import all_reduce_max, broadcast_from_rank0, communicating, gather_to_rank0, world


class Agreement:
    """What one rank wishes at the end of a phase, all do at the end of the same phase.

    Alone, a wish is granted at once. Among many it is granted one phase later: the ranks then hear of each other's wishes
    while they work, and nobody waits. The all_reduce_max of different wishes counts; what is granted is not wished for again.
    """

    def __init__(self, wishes: int) -> None:
        self.under_way: tuple[torch.Tensor, dist.Work] | None = None
        self.nothing = [0.0] * wishes

    def on(self, *wishes: float) -> list[float]:
        """Say what this rank wishes; returns what all of them do now."""
        if not world().is_distributed:
            return [*wishes]
        granted = self.close()
        said = torch.tensor([0.0 if g else w for w, g in zip(wishes, granted, strict=True)], dtype=torch.float64)
        self.under_way = said, dist.all_reduce(said, dist.ReduceOp.MAX, async_op=True)
        return granted

    def close(self) -> list[float]:
        """The wishes that are still on their way, once they have arrived."""
        if self.under_way is None:
            return self.nothing
        said, work = self.under_way
        self.under_way = None
        with communicating():
            work.wait()
        return said.tolist()


def broadcast_after_work(word: Callable[[Callable[[], float]], bytes], wish: Callable[[], float]) -> bytes:
    """What the first rank says after long work. Meanwhile it calls the function that it is given, which returns the maximum
    of what all ranks wish; the others wait, and answer it."""
    if not world().is_distributed:
        return word(wish)

    def working(still: bool) -> bool:
        flag = torch.tensor(int(still))
        with communicating():
            dist.broadcast(flag, 0)
        return bool(flag)

    def asked() -> float:
        working(True)
        return float(all_reduce_max(torch.tensor(float(wish()))))

    said, mistake = b"", None
    if world().is_rank0:
        try:
            said = word(asked)
        except UsageError as error:
            mistake = error
        working(False)
    else:
        while working(False):
            all_reduce_max(torch.tensor(float(wish())))

    def result() -> bytes:
        if mistake is not None:
            raise mistake
        return said

    return broadcast_from_rank0(result)


def check_same_settings(settings: dict[str, Any]) -> None:
    """Refuse to begin where ranks have been asked for different things: they would wait for each other, or drift apart."""
    if not world().is_distributed:
        return
    asked = [json.loads(words) for words in gather_to_rank0(json.dumps(settings, sort_keys=True, default=str).encode())]

    def word() -> bytes:
        for rank, theirs in enumerate(asked):
            for name, value in asked[0].items():
                if theirs.get(name) != value:
                    raise UsageError(
                        f"{name} is {value!r} on rank 0 and {theirs.get(name)!r} on rank {rank}: ask all ranks for the same"
                    )
        return b""

    broadcast_from_rank0(word)
