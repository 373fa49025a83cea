"""The number of threads that torch uses on the CPU. Torch's default, every core, makes small networks slower.

The number depends on the network, the minibatch and the available cores, never on timing or load: it changes the last digits
of convolutions, and a run must be reproducible. `waits_asleep` keeps several threads fast on a busy machine.
"""

import ctypes
import os
from pathlib import Path

import torch
from torch import nn

from .distributed import world

LARGE = 4_000_000_000  # parameters x rows of a minibatch, from which several threads are faster
FEW = 32  # rows, up to which the policy acts in one thread
CGROUP = Path("/sys/fs/cgroup")
HARD = 2  # omp_pause_hard


def choose_threads(network: nn.Module, minibatch_rows: int, jobs: int = 1) -> int:
    """Return the number of threads: this run's share of the cores for convolutions and very large batches, otherwise 1.
    Parallel runs on this machine, as ranks or as `jobs`, share the cores."""
    convolves = any(isinstance(layer, nn.Conv2d) for layer in network.modules())
    work = sum(p.numel() for p in network.parameters()) * minibatch_rows
    return shared_cores(jobs) if convolves or work >= LARGE else 1


def shared_cores(jobs: int) -> int:
    """Return the number of cores for each of `jobs` parallel runs on this machine, at least 1."""
    return max(1, cores() // (world().local_size * jobs))


def threads_for_acting(rows: int) -> int:
    """Return the number of threads for acting: 1 for few rows, where waking a second thread takes longer than the step."""
    return 1 if rows <= FEW else torch.get_num_threads()


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its container's CPU limit."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return bound if limit is None else max(1, min(bound, int(limit)))


def cpu_limit(root: Path = CGROUP) -> float | None:
    """Return the CPU limit of the cgroup in cores, from version 2 or 1 of cgroups, or None."""
    for folder in own_groups(root):
        said = file_text(folder / "cpu.max").split()
        if len(said) == 2 and said[0].isdigit():
            return int(said[0]) / int(said[1])
    quota, period = file_text(root / "cpu/cpu.cfs_quota_us"), file_text(root / "cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def own_groups(root: Path) -> list[Path]:
    """Return the cgroup directories of this process: its own, then the root, which is the right one in most containers."""
    own = [line[3:] for line in file_text(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::/")]
    return [root / path.lstrip("/") for path in own] + [root]


def file_text(path: Path) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def waits_asleep() -> bool:
    """Whether OpenMP threads sleep while they wait. By default they spin, which makes two threads several times slower than one
    if other processes use the cores. `import tightrope` sets OMP_WAIT_POLICY; OpenMP reads it when torch is imported."""
    return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


def end_idle_threads() -> bool:
    """End the threads that OpenMP keeps for later, without which a forked process would wait forever in its first parallel
    region. Returns whether this OpenMP can."""
    try:
        ended: int = ctypes.CDLL(torch._C.__file__).omp_pause_resource_all(HARD)
    except (AttributeError, OSError):
        return False
    return ended == 0


class threads:
    """A context in which torch uses `count` threads."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.before != self.count:
            torch.set_num_threads(self.count)

    def __exit__(self, *_: object) -> None:
        if torch.get_num_threads() != self.before:
            torch.set_num_threads(self.before)
