"""How many threads torch may use on the CPU: a fixed rule, since the default (every core) makes small networks slower."""

import os

import torch
from torch import nn

from .ranks import world

LARGE = 4_000_000_000  # parameters x rows of a minibatch: below it a second thread costs more than it brings

FEW = 32  # rows


def choose_threads(network: nn.Module, minibatch_rows: int) -> int:
    """All cores for convolutions and very large batches, otherwise one: most of the time goes into small operations."""
    convolves = any(isinstance(layer, nn.Conv2d) for layer in network.modules())
    work = sum(p.numel() for p in network.parameters()) * minibatch_rows
    return max(1, cores() // world().local_size) if convolves or work >= LARGE else 1


def threads_for_acting(rows: int) -> int:
    """One for a few rows: a step of the policy is over before a second thread is awake, and engines on the host want the
    cores."""
    return 1 if rows <= FEW else torch.get_num_threads()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class threads:
    """A context in which torch uses `count` threads."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
