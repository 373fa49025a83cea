"""How many threads torch may use on the CPU: a fixed rule, since the default (every core) makes small networks slower.

The rule looks at the network, the minibatch and the cores that this process may use, never at a clock or at the load of the
machine: the number of threads changes the last digits of convolutions, and a run is to give the same numbers again. What
keeps several threads usable on a busy machine is how they wait for each other, see `waits_asleep`.
"""

import os
from pathlib import Path

import torch
from torch import nn

from .distributed import world

LARGE = 4_000_000_000  # parameters x rows of a minibatch: below it a second thread costs more than it brings

FEW = 32  # rows
CGROUP = Path("/sys/fs/cgroup")


def choose_threads(network: nn.Module, minibatch_rows: int, jobs: int = 1) -> int:
    """The cores of this process for convolutions and very large batches, otherwise one: most of the time goes into small
    operations. Runs that work side by side on this machine, as ranks or as `jobs`, share the cores."""
    convolves = any(isinstance(layer, nn.Conv2d) for layer in network.modules())
    work = sum(p.numel() for p in network.parameters()) * minibatch_rows
    return shared_cores(jobs) if convolves or work >= LARGE else 1


def shared_cores(jobs: int) -> int:
    """The cores for each of so many runs on this machine, at least one."""
    return max(1, cores() // (world().local_size * jobs))


def threads_for_acting(rows: int) -> int:
    """One for a few rows: a step of the policy is over before a second thread is awake, and engines on the host want the
    cores."""
    return 1 if rows <= FEW else torch.get_num_threads()


def cores() -> int:
    """Cores this process may use: those it is bound to, and no more than a container's limit on their time."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return bound if limit is None else max(1, min(bound, int(limit)))


def cpu_limit(root: Path = CGROUP) -> float | None:
    """Cores' worth of time that a cgroup allows, by either of the two ways in which systems say it."""
    for folder in own_groups(root):
        said = file_text(folder / "cpu.max").split()
        if len(said) == 2 and said[0].isdigit():
            return int(said[0]) / int(said[1])
    quota, period = file_text(root / "cpu/cpu.cfs_quota_us"), file_text(root / "cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def own_groups(root: Path) -> list[Path]:
    """The group of this process, and the root, which is its own in most containers."""
    own = [line[3:] for line in file_text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::/")]
    return [root / path.lstrip("/") for path in own] + [root]


def file_text(path: Path) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def waits_asleep() -> bool:
    """Whether a thread that waits for another leaves its core to others. By default OpenMP's threads spin instead, and where
    other processes want the cores too, two threads are then several times slower than one. `import tightrope` sets the
    variable; OpenMP reads it once, when torch is imported."""
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


class threads:
    """A context in which torch uses `count` threads."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)
