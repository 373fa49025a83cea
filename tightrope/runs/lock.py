"""One process to a run directory: locks that the system drops with the process, however that ends.

There are two. The one on `.lock` belongs to our open file (F_OFD_SETLK): unlike a plain record lock it stays when anything in
the process opens and closes that file, as a copy of the directory does. The one on the directory itself (`flock`) stays when
`.lock` is removed or replaced; not every network file system has it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..files import Place

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # the directory is the user's to keep apart
    HAS_LOCKS = False

LOCK = ".lock"
ATTEMPTS = 10  # to lock a file that others remove meanwhile
_held: dict[Path, list[int]] = {}  # open files whose locks are ours, by directory


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile; refused if somebody does."""
    run_dir = run_dir.resolve()
    if run_dir in _held:
        raise in_use(run_dir, "this process")
    numbers = _held[run_dir] = []
    try:
        if HAS_LOCKS:
            lock_directory(run_dir, numbers)
            lock_file(run_dir, numbers)
        yield
    finally:
        _held.pop(run_dir, None)
        while numbers:
            os.close(numbers.pop())


def forget_in_child() -> None:
    """A forked process has our open files, too. It may outlive us, and must not keep the locks."""
    for numbers in _held.values():
        while numbers:
            os.close(numbers.pop())
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_in_child)


def lock_directory(run_dir: Path, numbers: list[int]) -> None:
    """Lock the directory itself, where the file system can."""
    try:
        numbers.append(os.open(run_dir, os.O_RDONLY))
        fcntl.flock(numbers[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise in_use(run_dir, holder(run_dir)) from None
    except OSError:  # it cannot
        return


def lock_file(run_dir: Path, numbers: list[int]) -> None:
    """Lock `.lock`, and see to it that this is still its name once it is locked."""
    path = Place(run_dir) / LOCK
    for _ in range(ATTEMPTS):
        try:
            number = path.descriptor(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
        numbers.append(number)
        if not acquire(number):
            raise in_use(run_dir, holder(run_dir))
        if is_still(number, path.path):
            with contextlib.suppress(OSError):  # a full disk: it is locked all the same
                os.ftruncate(number, 0)
                os.write(number, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return
        os.close(numbers.pop())
    raise in_use(run_dir, "somebody who removes its lock")


def acquire(number: int) -> bool:
    """Take the lock of an open file, unless another open file has it. One without locks counts as taken."""
    try:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(number, fcntl.F_OFD_SETLK, whole_file(fcntl.F_WRLCK))
        else:  # a record lock, which our own copies of the file would drop
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def whole_file(kind: int) -> bytes:
    """Linux's struct flock: kind, from the beginning, byte 0, to the end, by no process in particular."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def is_still(number: int, path: Path) -> bool:
    """Whether a path leads to an open file."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def holder(run_dir: Path) -> str:
    """Who says in `.lock` that it has the lock."""
    with contextlib.suppress(OSError), opened(run_dir) as number:
        return os.read(number, 200).decode(errors="replace").strip() or "another process"
    return "another process"


@contextlib.contextmanager
def opened(run_dir: Path) -> Iterator[int]:
    """`.lock`, to be read."""
    number = (Place(run_dir) / LOCK).descriptor(os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def is_locked(run_dir: Path) -> bool:
    """Whether somebody writes there right now. Only asks: a lock taken for a moment would keep out who wants to begin."""
    if run_dir.resolve() in _held:
        return True
    if not HAS_LOCKS:
        return False
    try:
        with opened(run_dir) as number:
            if hasattr(fcntl, "F_OFD_GETLK"):
                answer = fcntl.fcntl(number, fcntl.F_OFD_GETLK, whole_file(fcntl.F_RDLCK))
                return struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK
            fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # there is none, or a file system without locks
        return False
    return False


def in_use(run_dir: Path, holder: str) -> UsageError:
    return UsageError(
        f"run_dir {run_dir} is being written by {holder}: wait until it has ended, or give another directory"
    )
