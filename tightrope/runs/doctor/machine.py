"""The machine under a run: system, processor, memory, threads, and the disk that runs are written to."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from ...engine import choose_threads, cores
from ...engine.threads import CGROUP, cpu_limit, own_groups, read
from ...files import write_file
from ...types import Settings
from .findings import Finding, in_bytes, in_words

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MUJOCO_GL")
LITTLE = 1e9  # bytes: videos, a report and the last few checkpoints of some runs
ENDLESS = 2**60  # what a cgroup says that has no limit


def system() -> Iterator[Finding]:
    name = f"{platform.system()} {platform.release()}, {platform.machine()}"
    with contextlib.suppress(OSError):
        name = f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    yield Finding("system", name)


def processor() -> Iterator[Finding]:
    """How many cores there are, and how many of them are ours: a container may have less than it sees."""
    there, usable, limit = os.cpu_count() or 1, cores(), cpu_limit()
    facts: Settings = {"model": cpu_model(), "cores": there, "usable": usable, "limit": limit}
    words = f"{cpu_model()}, {torch.backends.cpu.get_cpu_capability()}; {counted(usable, 'core')} to use"
    words += f" of {there}" if usable < there else ""
    words += f", by a limit of {limit:g} on their time (cgroup)" if limit is not None and limit < there else ""
    yield Finding("cpu", words, facts=facts)


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory() -> Iterator[Finding]:
    total, free, limit = *memory_there(), memory_limit()
    facts: Settings = {"total": total, "free": free, "limit": limit}
    words = f"{in_bytes(total)}, {in_bytes(free)} free" if total else "cannot be told here"
    if limit is not None and total and limit < total:
        words += f", but a limit of {in_bytes(limit)} (cgroup)"
    yield Finding("memory", words, facts=facts)


def memory_there() -> tuple[int, int]:
    """(in all, free) in bytes; zeros where the system does not say."""
    with contextlib.suppress(OSError, KeyError, IndexError):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}
        return sizes["MemTotal"], sizes["MemAvailable"]
    with contextlib.suppress(ValueError, OSError, AttributeError):
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    return 0, 0


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# limits of the container -----------------------------------------------------------------------------------------------


def memory_limit(root: Path = CGROUP) -> int | None:
    """Bytes that a cgroup allows."""
    files = [folder / "memory.max" for folder in own_groups(root)] + [root / "memory/memory.limit_in_bytes"]
    limits = [int(said) for said in map(read, files) if said.isdigit()]
    return min((limit for limit in limits if limit < ENDLESS), default=None)


# threads ---------------------------------------------------------------------------------------------------------------


def threads() -> Iterator[Finding]:
    """By the rule that training follows, whatever torch would do by itself."""
    small, images = choose_threads(nn.Linear(4, 64), 256), choose_threads(nn.Conv2d(4, 32, 8), 256)
    words = f"{small} for small networks, which more would slow down; {images} for images, as many as cores to use"
    facts: Settings = {"small": small, "images": images, "torch": torch.get_num_threads()}
    yield Finding("threads", f"{words}. --threads decides otherwise", facts=facts)


def variables() -> Iterator[Finding]:
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if given:
        yield Finding("variables", ", ".join(f"{name}={value}" for name, value in given.items()), facts=dict(given))


# disk ------------------------------------------------------------------------------------------------------------------


def disk(here: Path | None = None) -> Iterator[Finding]:
    """Whether a run could live in the working directory: a file written through and renamed, a lock, room."""
    here = here or Path.cwd()
    elsewhere = "cd to a directory of yours, or train with --run-dir"
    try:
        with tempfile.TemporaryDirectory(prefix=".tightrope-doctor-", dir=here) as folder:
            write_file(Path(folder) / "file", b"whole or not there")
            locks = lock_works(Path(folder) / "lock")
    except OSError as error:
        yield Finding("runs", f"cannot be written in {here}: {in_words(error)}", "broken", elsewhere)
        return
    free = shutil.disk_usage(here).free
    words = f"can be written in {here}, {in_bytes(free)} free"
    facts: Settings = {"free": free, "locks": locks}
    if free < LITTLE:
        yield Finding("runs", words, "warning", f"make room, or {elsewhere}", facts)
    elif not locks:
        words += ", without locks: two processes could write to one run"
        yield Finding(
            "runs", words, "warning", f"take care that one run is trained once at a time, or {elsewhere}", facts
        )
    else:
        yield Finding("runs", f"{words}, with locks", facts=facts)


def lock_works(path: Path) -> bool:
    """Whether the file system knows record locks; `runs.lock` does without where it does not."""
    try:
        import fcntl
    except ImportError:
        return False
    with path.open("wb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
