"""Safe access to a run's directory, whose files may come from a stranger.

A `Place` is a name below a root directory. The user chooses the root, which may be a link. Below it every directory is opened
relative to the one before it and no link is followed. Only regular files of a limited size are opened: a pipe or a device could
block forever or never end. New content goes to a file with a random name, created exclusively and then renamed: a file is
complete or not there, whenever the power fails.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20
HAS_DIR_FD = os.open in os.supports_dir_fd  # not on Windows, where full paths are used instead
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a writer would block
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class Unreadable(Exception):
    """A file that is not what it should be; the message says in which way."""


def not_a_directory(name: str) -> OSError:
    return NotADirectoryError(errno.ENOTDIR, f"{name} is a link or a file, not a directory of its own")


@dataclass(frozen=True)
class Place:
    """A file or directory below `root`."""

    root: Path
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path) -> Place:
        """A file that a user has named: links are followed to its directory, but not from the file itself."""
        return Place(path.parent) / path.name

    def __truediv__(self, name: str) -> Place:
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise Unreadable(f"{name!r} is not the name of a file")
        return Place(self.root, (*self.parts, name))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """For messages and hyperlinks; files are opened through this class."""
        return self.root.joinpath(*self.parts)

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else self.root.name

    @property
    def parent(self) -> Place:
        return Place(self.root, self.parts[:-1]) if self.parts else Place(self.root.parent)

    @contextlib.contextmanager
    def directory_fd(self) -> Iterator[int | None]:
        """A descriptor of this directory; None where the system has no `dir_fd`."""
        if not HAS_DIR_FD:
            yield None
            return
        fd = os.open(self.root, DIRECTORY)
        try:
            for part in self.parts:
                try:
                    inner = os.open(part, DIRECTORY | NO_FOLLOW, dir_fd=fd)
                except OSError as error:
                    raise not_a_directory(part) if error.errno in (errno.ENOTDIR, errno.ELOOP) else error from None
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def entry(self) -> Iterator[tuple[str, int | None]]:
        """The name and the `dir_fd` with which functions of `os` reach it."""
        with self.parent.directory_fd() as folder:
            yield str(self.path) if folder is None else self.name, folder

    def info(self) -> os.stat_result | None:
        """The status of the name itself, not of what it links to; None if there is nothing to be seen."""
        try:
            if not self.parts:
                return os.stat(self.root)
            with self.entry() as (name, folder):
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    def exists(self) -> bool:
        return self.info() is not None

    def is_file(self) -> bool:
        return (info := self.info()) is not None and stat.S_ISREG(info.st_mode)

    def is_dir(self) -> bool:
        return (info := self.info()) is not None and stat.S_ISDIR(info.st_mode)

    def names(self) -> list[str]:
        """Everything in this directory; OSError if it cannot be read."""
        with self.directory_fd() as folder:
            return sorted(os.listdir(self.path if folder is None else folder))

    def folders(self) -> list[str]:
        """Directories in this one, links to directories left out."""
        with self.directory_fd() as folder, os.scandir(self.path if folder is None else folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def descriptor(self, flags: int) -> int:
        """Open a regular file; OSError if it is anything else."""
        with self.entry() as (name, folder):
            try:
                if not NO_FOLLOW and os.path.islink(name):
                    raise OSError(errno.ELOOP, "")
                fd = os.open(name, flags | NO_FOLLOW | NO_WAIT, 0o666, dir_fd=folder)
            except OSError as error:
                reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
                raise OSError(error.errno, reason, str(self)) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is not a plain file", str(self))
        return fd

    def open(self, limit: int) -> BufferedReader:
        """Open a regular file of at most `limit` bytes to read; Unreadable if it cannot be."""
        try:
            fd = self.descriptor(os.O_RDONLY)
        except FileNotFoundError:
            raise Unreadable(f"{self.name} is missing") from None
        except (OSError, ValueError) as error:
            raise Unreadable(f"{self.name} cannot be read: {getattr(error, 'strerror', error)}") from None
        if (problem := size_problem(os.fstat(fd), limit)) is not None:
            os.close(fd)
            raise Unreadable(f"{self.name} {problem}")
        return os.fdopen(fd, "rb")

    def read(self, limit: int = CHUNK) -> bytes:
        """The content that the file has when it is opened."""
        with self.open(limit) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    def mkdir(self, new: bool = False) -> None:
        """Make this directory, in one that exists. Unless it must be `new`, it may exist already."""
        with self.entry() as (name, folder), contextlib.suppress(*() if new else (FileExistsError,)):
            os.mkdir(name, dir_fd=folder)
        if not self.is_dir():
            raise not_a_directory(self.name)

    def sync(self) -> None:
        """Wait until the disk has the names in this directory: only then does a rename survive a power failure."""
        with self.directory_fd() as folder:
            if folder is not None:
                os.fsync(folder)

    def rename(self, name: str) -> Place:
        """Give it another name in the same directory, in place of a file that has it."""
        with self.entry() as (old, folder):
            new = name if folder is not None else str(self.path.with_name(name))
            os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        return self.parent / name

    def remove(self) -> None:
        """Remove a file, a link or a whole directory, as far as that is possible."""
        with contextlib.suppress(OSError), self.entry() as (name, folder):
            try:
                os.unlink(name, dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def write(self, content: bytes, wait: bool = True) -> None:
        """Write all of the content or nothing. With `wait`, it returns when the disk has it."""
        draft = Draft(self)
        try:
            draft.file.write(content)
            draft.publish(self.name, wait)
        finally:
            draft.discard()

    def create(self, content: bytes) -> None:
        """Write a file that is not there yet, and wait until the disk has it."""
        with os.fdopen(self.descriptor(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


class Draft:
    """A new file under a random name, until it is published under its own name or discarded."""

    def __init__(self, place: Place) -> None:
        self.folder, self.name = place.parent, f".{place.name}.{secrets.token_hex(8)}.tmp"
        fd = (self.folder / self.name).descriptor(os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.file, self.pending = os.fdopen(fd, "w+b"), True

    def publish(self, name: str, wait: bool = True) -> None:
        self.file.flush()
        if wait:
            os.fsync(self.file.fileno())
        if os.name == "nt":
            self.file.close()  # Windows renames no file that is open
        (self.folder / self.name).rename(name)
        self.pending = False
        if wait:
            self.folder.sync()

    def discard(self) -> None:
        """Close the file, and remove it unless it has been published."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self.pending:
            (self.folder / self.name).remove()


def address(file: BinaryIO, place: Place) -> str:
    """A path, for a library that opens files by name, that leads to this open file and no other, where the system has such."""
    link = f"/proc/self/fd/{file.fileno()}"
    return link if os.path.exists(link) else str(place)


def write_file(path: Path, content: bytes) -> None:
    """Write a file that a user has named, all of it or nothing. Its directory must exist: a run's may have been moved away."""
    Place.of(path).write(content)


def remove_leftovers(place: Place) -> None:
    """Remove what processes that died while they wrote this file have left."""
    with contextlib.suppress(OSError):
        for name in place.parent.names():
            if name.startswith(f".{place.name}.") and name.endswith(".tmp") and not (place.parent / name).is_dir():
                (place.parent / name).remove()


def size_problem(info: os.stat_result, limit: int) -> str | None:
    """Why a file is too large to be read, if it is."""
    if info.st_size > limit:
        return f"has {info.st_size:,} bytes, more than the {limit:,} it may have"
    on_disk = 512 * getattr(info, "st_blocks", info.st_size)
    if info.st_size > 64 * CHUNK and on_disk < info.st_size // 64:  # costs nothing to send, and all its size to read
        return f"has {info.st_size:,} bytes that are mostly holes"
    return None


def canonical(content: Any) -> bytes:
    """JSON in the one form that we write, so that a change of any byte is noticed."""
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def read_canonical(place: Place, limit: int = CHUNK) -> dict[str, Any]:
    """Read an object that `canonical` has written; Unreadable if a byte of it differs."""
    content = place.read(limit)
    try:
        found = json.loads(content)
        if isinstance(found, dict) and canonical(found) == content:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"{place.name} is not as it was written")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
