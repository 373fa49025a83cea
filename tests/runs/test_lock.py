"""One process to a run directory, whatever happens to its lock file meanwhile."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tightrope.errors import UsageError
from tightrope.runs import lock
from tightrope.runs.lock import LOCK, is_locked, locked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and flock as on Linux")
TRY = """
import sys, pathlib
from tightrope.errors import UsageError
from tightrope.runs.lock import is_locked, locked
run = pathlib.Path(sys.argv[1])
print(is_locked(run))
try:
    with locked(run):
        print("in")
except UsageError as error:
    print(error)
"""
HOLD = """
import os, sys, pathlib, time
from tightrope.runs.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    if child := os.fork():
        print(child, flush=True)
    time.sleep(60)
"""


def second(run: Path) -> tuple[bool, str]:
    """(whether another process thinks that it is locked, what that process is told when it wants to write)."""
    done = subprocess.run([sys.executable, "-c", TRY, run], capture_output=True, text=True, timeout=60, check=True)
    seen, told = done.stdout.splitlines()
    return seen == "True", told


def copy_in_a_thread(run: Path) -> None:
    thread = threading.Thread(target=shutil.copytree, args=(run, run.with_name("copy")))
    thread.start()
    thread.join()


def remove(run: Path) -> None:
    (run / LOCK).unlink()


def replace(run: Path) -> None:
    shutil.copy(run / LOCK, run / "new")
    (run / "new").replace(run / LOCK)


MISCHIEF: dict[str, Callable[[Path], object]] = {
    "nothing": lambda run: None,
    "a copy in a thread": copy_in_a_thread,
    "a reader": lambda run: (run / LOCK).read_text(),
    "a second look": is_locked,
    "removed": remove,
    "replaced": replace,
    "moved away": lambda run: (run / LOCK).rename(run / "elsewhere"),
}


@pytest.mark.parametrize("mischief", MISCHIEF)
def test_a_second_process_stays_out(mischief: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with locked(run):
        MISCHIEF[mischief](run)
        seen, told = second(run)
        assert "is being written by" in told
        assert seen or mischief in ("removed", "replaced", "moved away")
    assert second(run) == (False, "in")


@pytest.fixture
def family(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A process that holds the lock, and one forked from it."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent.pid, child
        for process in (parent.pid, child):
            os.kill(process, signal.SIGKILL)


def test_a_forked_process_that_outlives_the_trainer_does_not_hold_it(family: tuple[int, int], tmp_path: Path) -> None:
    assert second(tmp_path)[1].endswith(
        f"process {family[0]} on {os.uname().nodename}: wait until it has ended, or give another directory"
    )
    os.kill(family[0], signal.SIGKILL)
    for _ in range(100):
        if second(tmp_path)[1] == "in":
            break
    assert second(tmp_path) == (False, "in")
    os.kill(family[1], 0)  # which is still there


def test_a_process_may_have_it_only_once(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(UsageError, match="this process"), locked(tmp_path):
            pass
        assert second(tmp_path)[1] != "in"
    assert not is_locked(tmp_path)


def test_a_lock_on_a_file_that_has_lost_its_name_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def slowly(fd: int, kind: int) -> bool:
        if taken == [lock.fcntl.LOCK_EX]:  # after the directory, the file
            remove(tmp_path)
        taken.append(kind)
        return acquire(fd, kind)

    acquire = lock.acquire
    monkeypatch.setattr(lock, "acquire", slowly)
    with locked(tmp_path):
        assert len(taken) == 3
        assert second(tmp_path)[0]


def test_without_locks_on_directories_the_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files_only(fd: int, kind: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(9, "Bad file descriptor")
        flock(fd, kind)

    flock = fcntl.flock
    monkeypatch.setattr("fcntl.flock", files_only)
    with locked(tmp_path):
        copy_in_a_thread(tmp_path / ".")
        assert "is being written by process" in second(tmp_path)[1]


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / LOCK
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "other").write_text("mine")
        path.symlink_to("other")
    else:
        path.mkdir()
    assert not is_locked(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"), locked(tmp_path):
        pass
    assert kind != "link" or (tmp_path / "other").read_text() == "mine"
    shutil.rmtree(path) if kind == "directory" else path.unlink()
    with locked(tmp_path):
        pass


def test_who_only_looks_keeps_nobody_out(tmp_path: Path) -> None:
    with locked(tmp_path):
        pass
    looking = "import pathlib, sys\nfrom tightrope.runs.lock import is_locked\nprint(flush=True)\n"
    looking += "while True: is_locked(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", looking, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(100):
            with locked(tmp_path):
                pass
        process.kill()
