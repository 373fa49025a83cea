"""One process to a run directory, whatever happens to its lock file meanwhile."""

from __future__ import annotations

import contextlib
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
from tightrope.training import lock
from tightrope.training.lock import LOCK, is_locked, locked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc and flock as on Linux")
TRY = """
import sys, pathlib
from tightrope.errors import UsageError
from tightrope.training.lock import is_locked, locked
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
from tightrope.training.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    if child := os.fork():
        print(child, flush=True)
    time.sleep(60)
"""
LOOK = """
import sys, pathlib
from tightrope.training.lock import is_locked
print(flush=True)
while True:
    is_locked(pathlib.Path(sys.argv[1]))
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


@contextlib.contextmanager
def process(code: str, run: Path) -> Iterator[tuple[int, str]]:
    """(its id, its first line of output); ended with the context."""
    with subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            yield started.pid, started.stdout.readline()
        finally:
            started.kill()


def test_a_forked_process_that_outlives_the_trainer_does_not_hold_it(tmp_path: Path) -> None:
    with process(HOLD, tmp_path) as (parent, line):
        ending = f"process {parent} on {os.uname().nodename}: wait until it has ended, or give another directory"
        try:
            assert second(tmp_path)[1].endswith(ending)
            os.kill(parent, signal.SIGKILL)
            for _ in range(100):
                if second(tmp_path)[1] == "in":
                    break
            assert second(tmp_path) == (False, "in")
            os.kill(int(line), 0)  # which is still there
        finally:
            os.kill(int(line), signal.SIGKILL)


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
    with process(LOOK, tmp_path):
        for _ in range(30):
            with locked(tmp_path):
                pass
