"""Safe access to a run's directory, whose files may come from a stranger.

A `Place` is a file or directory below a root directory. The user chooses the root, which may be a link; below it, no link is
followed. Only regular files of a limited size are opened: reading a pipe or a device could block or never end. New content is
written to a file with a random name and then renamed, so that a power failure leaves a complete file or none.
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
HAS_DIR_FD = os.open in os.supports_dir_fd  # false on Windows, where full paths are used
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a writer would block
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class Unreadable(Exception):
    """A file is not as expected; the message says why."""


def not_a_directory(name: str) -> OSError:
    return NotADirectoryError(errno.ENOTDIR, f"{name} is a link or a file, not a directory")


@dataclass(frozen=True)
class Place:
    """A file or directory below `root`."""

    root: Path
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path) -> Place:
        """The place of a path that a user gave: its directory may be a link, the file itself may not."""
        return Place(path.parent) / path.name

    def __truediv__(self, name: str) -> Place:
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise Unreadable(f"{name!r} is not the name of a file")
        return Place(self.root, (*self.parts, name))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """The path, for messages and hyperlinks only; files are opened through this class."""
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
        """The name and the `dir_fd` to pass to functions of `os`."""
        with self.parent.directory_fd() as folder:
            yield str(self.path) if folder is None else self.name, folder

    def info(self) -> os.stat_result | None:
        """The stat result without following a link; None if there is no such file."""
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
        """The names in this directory; OSError if it cannot be read."""
        with self.directory_fd() as folder:
            return sorted(os.listdir(self.path if folder is None else folder))

    def folders(self) -> list[str]:
        """The names of directories in this one, without links to directories."""
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
        """Open a regular file of at most `limit` bytes for reading; Unreadable otherwise."""
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
        """Read the file, up to its size when it is opened."""
        with self.open(limit) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    def mkdir(self, new: bool = False) -> None:
        """Make this directory; its parent must exist. It may exist already unless it must be `new`."""
        with self.entry() as (name, folder), contextlib.suppress(*() if new else (FileExistsError,)):
            os.mkdir(name, dir_fd=folder)
        if not self.is_dir():
            raise not_a_directory(self.name)

    def sync(self) -> None:
        """Flush the names in this directory to the disk: only then does a rename survive a power failure."""
        with self.directory_fd() as folder:
            if folder is not None:
                os.fsync(folder)

    def rename(self, name: str) -> Place:
        """Rename within the same directory, replacing a file of that name, and return the new place."""
        with self.entry() as (old, folder):
            new = name if folder is not None else str(self.path.with_name(name))
            os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        return self.parent / name

    def remove(self) -> None:
        """Remove a file, a link or a whole directory. Errors are ignored."""
        with contextlib.suppress(OSError), self.entry() as (name, folder):
            try:
                os.unlink(name, dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def write(self, content: bytes, wait: bool = True) -> None:
        """Replace the content of the file, completely or not at all. With `wait`, return once the disk has it."""
        draft = Draft(self)
        try:
            draft.file.write(content)
            draft.publish(self.name, wait)
        finally:
            draft.discard()

    def create(self, content: bytes) -> None:
        """Write a new file, and wait until the disk has it."""
        with os.fdopen(self.descriptor(os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


class Draft:
    """A file with a random name that is later renamed to its own name (published) or removed."""

    def __init__(self, place: Place) -> None:
        self.folder, self.name = place.parent, f".{place.name}.{secrets.token_hex(8)}.tmp"
        fd = (self.folder / self.name).descriptor(os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.file, self.pending = os.fdopen(fd, "w+b"), True

    def publish(self, name: str, wait: bool = True) -> None:
        self.file.flush()
        if wait:
            os.fsync(self.file.fileno())
        if os.name == "nt":
            self.file.close()  # Windows cannot rename an open file
        (self.folder / self.name).rename(name)
        self.pending = False
        if wait:
            self.folder.sync()

    def discard(self) -> None:
        """Close the file, and remove it unless it was published."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self.pending:
            (self.folder / self.name).remove()


def address(file: BinaryIO, place: Place) -> str:
    """A path for libraries that open files by name. On Linux it always leads to this open file."""
    link = f"/proc/self/fd/{file.fileno()}"
    return link if os.path.exists(link) else str(place)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file that a user named, completely or not at all. Its directory must exist."""
    Place.of(path).write(content)


def remove_leftovers(place: Place) -> None:
    """Remove the temporary files of processes that died while writing this file."""
    with contextlib.suppress(OSError):
        for name in place.parent.names():
            if name.startswith(f".{place.name}.") and name.endswith(".tmp") and not (place.parent / name).is_dir():
                (place.parent / name).remove()


def size_problem(info: os.stat_result, limit: int) -> str | None:
    """The reason why a file is too large to read, or None."""
    if info.st_size > limit:
        return f"has {info.st_size:,} bytes, more than the limit of {limit:,}"
    on_disk = 512 * getattr(info, "st_blocks", info.st_size)
    if info.st_size > 64 * CHUNK and on_disk < info.st_size // 64:  # a sparse file: tiny to send, huge to read
        return f"has {info.st_size:,} bytes that are mostly holes"
    return None


def canonical(content: Any) -> bytes:
    """The content as JSON in one fixed form, so that any changed byte is detected."""
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def read_canonical(place: Place, limit: int = CHUNK) -> dict[str, Any]:
    """Read an object that `canonical` wrote; Unreadable if the file is not in this exact form."""
    content = place.read(limit)
    try:
        found = json.loads(content)
        if isinstance(found, dict) and canonical(found) == content:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"{place.name} is damaged")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
