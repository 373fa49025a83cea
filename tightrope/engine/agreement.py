"""Decisions that no rank may take alone: to stop, to save."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .ranks import world


class Agreement:
    """What one rank wishes at the end of a phase, all do at the end of the same phase.

    Alone, a wish is granted at once. Among many it is granted one phase later: the ranks then hear of each other's wishes
    while they work, and nobody waits. The greatest of different wishes counts; what is granted is not wished for again.
    """

    def __init__(self, wishes: int) -> None:
        self.under_way: tuple[torch.Tensor, dist.Work] | None = None
        self.nothing = [0.0] * wishes

    def on(self, *wishes: float) -> list[float]:
        """Say what this rank wishes; returns what all of them do now."""
        if not world().talks:
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
        work.wait()
        return said.tolist()
