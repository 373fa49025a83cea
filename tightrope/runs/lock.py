"""One process to a run directory: locks that the system drops when the process ends, in whatever way.

There are two, both `flock`, which belongs to an open file: closing another descriptor of the same file does not drop it. The
lock on the directory holds when `.lock` is removed or replaced. The lock on `.lock` serves network file systems that lock no
directories, and says who holds it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..files import Place

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows: nothing keeps two processes apart
    HAS_LOCKS = False

LOCK = ".lock"
ATTEMPTS, PAUSE = 10, 0.01  # to lock a file that others look at, or replace; seconds in between
_held: dict[Path, list[int]] = {}  # descriptors whose locks are ours, by directory


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes from writing to a run's directory; UsageError if one does already."""
    run_dir = run_dir.resolve()
    if run_dir in _held:
        raise in_use(run_dir, "this process")
    descriptors = _held[run_dir] = []
    try:
        if HAS_LOCKS:
            lock_directory(run_dir, descriptors)
            lock_file(run_dir, descriptors)
        yield
    finally:
        _held.pop(run_dir, None)
        close_all(descriptors)


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def release_in_child() -> None:
    """A forked process inherits our open files. It may outlive us, and must not keep the locks."""
    for descriptors in _held.values():
        close_all(descriptors)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=release_in_child)


def lock_directory(run_dir: Path, descriptors: list[int]) -> None:
    """Lock the directory itself, where the file system can."""
    with contextlib.suppress(OSError):
        descriptors.append(os.open(run_dir, os.O_RDONLY))
        if not acquire(descriptors[-1], fcntl.LOCK_EX):
            raise in_use(run_dir, holder(run_dir))


def lock_file(run_dir: Path, descriptors: list[int]) -> None:
    """Lock `.lock`, and make sure that the locked file still has this name."""
    place = Place(run_dir) / LOCK
    for attempt in range(ATTEMPTS):
        try:
            fd = place.descriptor(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
        descriptors.append(fd)
        info = place.info() if acquire(fd, fcntl.LOCK_EX) else None
        if info is not None and os.path.samestat(info, os.fstat(fd)):
            with contextlib.suppress(OSError):  # a full disk: it is locked all the same
                os.ftruncate(fd, 0)
                os.write(fd, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return
        os.close(descriptors.pop())
        time.sleep(PAUSE if attempt + 1 < ATTEMPTS else 0)
    raise in_use(run_dir, holder(run_dir))


def acquire(fd: int, kind: int) -> bool:
    """Lock an open file, unless another open file has the lock. A file system without locks counts as locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass
    return True


def holder(run_dir: Path) -> str:
    """The process that `.lock` names."""
    with contextlib.suppress(OSError), opened(run_dir) as fd:
        return os.read(fd, 200).decode(errors="replace").strip() or "another process"
    return "another process"


@contextlib.contextmanager
def opened(run_dir: Path) -> Iterator[int]:
    """A descriptor to read `.lock`."""
    fd = (Place(run_dir) / LOCK).descriptor(os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def is_locked(run_dir: Path) -> bool:
    """Whether a process is writing there right now. Takes a shared lock for a moment, which `lock_file` waits for."""
    if run_dir.resolve() in _held:
        return True
    with contextlib.suppress(OSError), opened(run_dir) as fd:
        return HAS_LOCKS and not acquire(fd, fcntl.LOCK_SH)
    return False


def in_use(run_dir: Path, writer: str) -> UsageError:
    return UsageError(
        f"run_dir {run_dir} is being written by {writer}: wait until it has ended, or give another directory"
    )
