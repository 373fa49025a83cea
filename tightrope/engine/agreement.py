"""What ranks agree on: the settings that they begin with, and what rank 0 finds while the others wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UsageError
from .distributed import all_reduce_max, broadcast_from_rank0, gather_to_rank0, world


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
