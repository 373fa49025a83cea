"""One process to a run directory: a lock that the system drops with the process, however that ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..files import Place

LOCK = ".lock"
_held: set[Path] = set()  # by this process: the system's locks are between processes


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile; refused if somebody does.

    A record lock, not `flock`: it belongs to this process alone, so that workers forked by an environment, which may live on
    for a moment after a kill, do not hold it.
    """
    run_dir = run_dir.resolve()
    if run_dir in _held:
        raise in_use(run_dir, "this process")
    try:
        number = (Place(run_dir) / LOCK).descriptor(os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UsageError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
    try:
        if not acquire(number):
            raise in_use(run_dir, os.read(number, 200).decode(errors="replace").strip() or "another process")
        _held.add(run_dir)
        with contextlib.suppress(OSError):  # a full disk: it is locked all the same
            os.ftruncate(number, 0)
            os.write(number, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        _held.discard(run_dir)
        os.close(number)


def is_locked(run_dir: Path) -> bool:
    """Whether somebody writes there right now. Asks for a reader's lock, which a writer's excludes, and gives it back."""
    if run_dir.resolve() in _held:
        return True  # not to be asked of the system: giving back would give up our own
    try:
        import fcntl

        number = (Place(run_dir) / LOCK).descriptor(os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(number)
    return False


def acquire(number: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no such locks here; the directory is the user's to keep apart
        return True
    try:
        fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def in_use(run_dir: Path, holder: str) -> UsageError:
    return UsageError(
        f"run_dir {run_dir} is being written by {holder}: wait until it has ended, or give another directory"
    )
