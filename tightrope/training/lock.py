"""Lock a run directory, so that one process at a time writes to it. The system drops the locks when the process ends.

There are two `flock` locks, which closing another descriptor of the same file does not drop. The lock on the directory still
holds if `.lock` is removed or replaced. The lock on the file `.lock` is for network file systems that cannot lock directories;
the file names the process that holds it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..files import Place, Unreadable

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows has no flock: run directories are not locked
    HAS_LOCKS = False

LOCK = ".lock"
ATTEMPTS, PAUSE = 10, 0.05  # to lock a file that other processes probe or replace; seconds between attempts
_held: dict[Path, list[int]] = {}  # locked descriptors of this process, by directory


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the locks of a run's directory; UsageError if another process holds them."""
    run_dir = run_dir.resolve()
    if run_dir in _held:
        raise in_use(run_dir, "this process")
    descriptors = _held[run_dir] = []
    try:
        if HAS_LOCKS and not (lock_directory(run_dir, descriptors) and lock_file(run_dir, descriptors)):
            raise in_use(run_dir, lock_owner(run_dir))
        yield
    finally:
        release(run_dir)


def release(*run_dirs: Path) -> None:
    for descriptor in [fd for run_dir in run_dirs for fd in _held.pop(run_dir, [])]:
        os.close(descriptor)


# A forked process inherits the locked descriptors and may outlive this one: it closes them.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: release(*_held))


def acquire(descriptor: int, kind: int) -> bool:
    """Lock an open file; False if another process holds the lock. True on a file system without locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True


def lock_directory(run_dir: Path, descriptors: list[int]) -> bool:
    """Lock the directory itself, if the file system can."""
    with contextlib.suppress(OSError):
        descriptors.append(os.open(run_dir, os.O_RDONLY))
        return acquire(descriptors[-1], fcntl.LOCK_EX)
    return True


def lock_file(run_dir: Path, descriptors: list[int]) -> bool:
    """Lock the file `.lock`, and check that it was not replaced meanwhile."""
    place = Place(run_dir) / LOCK
    for _ in range(ATTEMPTS):
        try:
            descriptors.append(descriptor := place.descriptor(os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise UsageError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
        info = place.info() if acquire(descriptor, fcntl.LOCK_EX) else None
        if info is not None and os.path.samestat(info, os.fstat(descriptor)):
            with contextlib.suppress(OSError):  # a full disk: the lock holds nevertheless
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return True
        os.close(descriptors.pop())
        time.sleep(PAUSE)
    return False


def lock_owner(run_dir: Path) -> str:
    """The process that `.lock` names."""
    with contextlib.suppress(Unreadable):
        return (Place(run_dir) / LOCK).read(200).decode(errors="replace").strip() or "another process"
    return "another process"


def is_locked(run_dir: Path) -> bool:
    """Whether a process holds the lock of a run directory. Takes a shared lock for a moment; `lock_file` then retries."""
    if run_dir.resolve() in _held:
        return True
    with contextlib.suppress(Unreadable), (Place(run_dir) / LOCK).open(limit=200) as file:
        return HAS_LOCKS and not acquire(file.fileno(), fcntl.LOCK_SH)
    return False


def in_use(run_dir: Path, writer: str) -> UsageError:
    fix = "wait until it has ended, or give another directory"
    return UsageError(f"run_dir {run_dir} is being written by {writer}: {fix}")
