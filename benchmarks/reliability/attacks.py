"""What the cases of adversary.py have in common: a good run to spoil, and limits on what a command may take."""

import atexit
import functools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from processes import Process, finished, nothing
from runs import CARTPOLE, training

Case = Callable[[Path], object]  # given an empty directory; raises if a promise is broken
MOST_MB = 300  # more than a good run takes
SECONDS = 10.0  # for a command that takes about one


class Skipped(Exception):
    """A case that cannot be tried here, and why."""


@functools.cache
def good_run() -> Path:
    """A run of one phase with one checkpoint and one video."""
    folder = tempfile.mkdtemp()
    atexit.register(remove, folder, os.getpid())
    run = Path(folder) / "good"
    finished(*training(CARTPOLE, run, 1), "--keep-checkpoints", "1", "--video-every", "1")
    return run


def remove(folder: str, process: int) -> None:
    """Remove a directory, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def usual_memory() -> float:
    """MB that the commands take of a good run."""
    with tempfile.TemporaryDirectory() as folder:
        run = copy_of_good_run(Path(folder))
        found = [Process("eval", run, "--episodes", "1"), Process("report", run)]
        for process in found:
            process.ends(0)
        return max(process.peak for process in found)


def copy_of_good_run(path: Path) -> Path:
    return Path(shutil.copytree(good_run(), path / "run"))


def attempt(*args: str | Path, prepare: Callable[[], None] = nothing, seconds: float = SECONDS) -> Process:
    """A command that must end in time, without a traceback, and without much memory; ended by force if it does not."""
    most = usual_memory() + MOST_MB
    process = Process(*args, prepare=prepare)
    end = time.monotonic() + seconds
    try:
        while process.poll() is None:
            assert time.monotonic() < end, f"{args[0]} hangs: {process.output[-300:]}"
            assert resident(process.pid) < most, f"{args[0]} takes more than {most:.0f} MB"
            time.sleep(0.005)
    finally:
        process.end_group()
    assert process.peak < most, f"{args[0]} took {process.peak:.0f} MB"
    assert "Traceback (most recent" not in process.output, f"{args[0]}: {process.output[-1500:]}"
    assert process.code in (0, 1, 2), f"{args[0]} ended with {process.code}: {process.output[-300:]}"
    return process


def resident(pid: int) -> float:
    """MB of memory that a process has now."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def check_refused(process: Process) -> None:
    """It left with one line."""
    what = process.args[0]
    assert process.code == 2, f"{what}: exit code {process.code}: {process.output[-300:]}"
    assert process.output.count("\n") == 1, f"{what}: not one line: {process.output}"
    assert len(process.output) <= 2000, f"{what}: a line of {len(process.output)} characters"
    assert process.output.removesuffix("\n").isprintable(), f"{what} writes escapes: {process.output!r}"


def in_directory(path: Path) -> Callable[[], None]:
    """Work there, as `python -m tightrope` would: modules are found there too."""

    def prepare() -> None:
        os.chdir(path)
        sys.path.insert(0, str(path))
        sys.path_importer_cache.clear()

    return prepare
