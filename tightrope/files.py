"""The one way into a run's directory, whoever wrote what is there.

A `Place` is a name below a directory. The directory is the user's to choose and may be a link. Below it every step is taken
from the descriptor of the directory before it, no link is followed, and only regular files of a limited size are opened: a
pipe or a device could wait forever or never end. New content is written under a name that nobody can know, created
exclusively, and then renamed: a file is whole or not there, whenever the power fails.
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
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20
DESCRIPTORS = os.open in os.supports_dir_fd  # not on Windows, where names are used instead
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would block
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class Unreadable(Exception):
    """A file that is not what it should be; the message says in which way."""


def no_directory(name: str) -> OSError:
    return NotADirectoryError(errno.ENOTDIR, f"{name} is a link or a file, not a directory of its own")


@dataclass(frozen=True)
class Place:
    """A file or directory below `root`."""

    root: Path
    parts: tuple[str, ...] = ()

    @staticmethod
    def of(path: Path) -> Place:
        """A file that a user has named: its directory is followed, the file itself is not."""
        return Place(path.parent) / path.name

    def __truediv__(self, name: str) -> Place:
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise Unreadable(f"{name!r} is not the name of a file")
        return Place(self.root, (*self.parts, name))

    def __str__(self) -> str:
        return str(self.path)

    @property
    def path(self) -> Path:
        """For messages and links; what is opened is opened through this class."""
        return self.root.joinpath(*self.parts)

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else self.root.name

    @property
    def parent(self) -> Place:
        return Place(self.root, self.parts[:-1]) if self.parts else Place(self.root.parent)

    @contextlib.contextmanager
    def held(self) -> Iterator[int | None]:
        """The descriptor of this directory; None where the system has none."""
        if not DESCRIPTORS:
            yield None
            return
        number = os.open(self.root, DIRECTORY)
        try:
            for part in self.parts:
                try:
                    inner = os.open(part, DIRECTORY | NO_LINK, dir_fd=number)
                except OSError as error:
                    raise no_directory(part) if error.errno in (errno.ENOTDIR, errno.ELOOP) else error from None
                os.close(number)
                number = inner
            yield number
        finally:
            os.close(number)

    def within(self, folder: int | None, name: str) -> str:
        """How to call a name in this directory."""
        return name if folder is not None else str(self.path / name)

    def info(self) -> os.stat_result | None:
        """Of the name itself, be it a link; None if there is nothing to be seen."""
        try:
            if not self.parts:
                return os.stat(self.root)
            with self.parent.held() as folder:
                return os.stat(self.parent.within(folder, self.name), dir_fd=folder, follow_symlinks=False)
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
        with self.held() as folder:
            return sorted(os.listdir(self.path if folder is None else folder))

    def folders(self) -> list[str]:
        """Directories in this one. A link is none."""
        with self.held() as folder, os.scandir(self.path if folder is None else folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def descriptor(self, flags: int) -> int:
        """A regular file, open; OSError if it is anything else."""
        with self.parent.held() as folder:
            name = self.parent.within(folder, self.name)
            if not NO_LINK and os.path.islink(name):
                raise OSError(errno.ELOOP, "it is a link", str(self))
            try:
                number = os.open(name, flags | NO_LINK | NO_WAIT, 0o666, dir_fd=folder)
            except OSError as error:
                reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
                raise OSError(error.errno, reason, str(self)) from None
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "it is not a plain file", str(self))
        return number

    def open(self, most: int) -> BinaryIO:
        """A regular file of at most so many bytes."""
        try:
            number = self.descriptor(os.O_RDONLY)
        except FileNotFoundError:
            raise Unreadable(f"{self.name} is missing") from None
        except (OSError, ValueError) as error:
            raise Unreadable(f"{self.name} cannot be read: {getattr(error, 'strerror', error)}") from None
        if (complaint := too_large(os.fstat(number), most)) is not None:
            os.close(number)
            raise Unreadable(f"{self.name} {complaint}")
        return os.fdopen(number, "rb")

    def read(self, most: int = CHUNK) -> bytes:
        """All that it has when it is opened."""
        with self.open(most) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    def mkdir(self, new: bool = False) -> None:
        """Make this directory; if it need not be `new`, one may be there. The one that it is in must be."""
        with self.parent.held() as folder, contextlib.suppress(*() if new else (FileExistsError,)):
            os.mkdir(self.parent.within(folder, self.name), dir_fd=folder)
        if not self.is_dir():
            raise no_directory(self.name)

    def sync(self) -> None:
        """Wait until the disk has this directory's names: a rename is only then sure to be found again."""
        with self.held() as folder:
            if folder is not None:
                os.fsync(folder)

    def rename(self, name: str) -> Place:
        """Give it another name in the same directory."""
        with self.parent.held() as folder:
            old, new = (self.parent.within(folder, each) for each in (self.name, name))
            os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        return self.parent / name

    def remove(self) -> None:
        """A file, a link or a whole directory, as far as that is possible."""
        with contextlib.suppress(OSError), self.parent.held() as folder:
            name = self.parent.within(folder, self.name)
            try:
                os.unlink(name, dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def write(self, content: bytes, wait: bool = True) -> None:
        """All of the content or nothing. Unless told not to, it waits until the disk has it."""
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
    """A new file under a name that nobody can know, until it is published under its own or discarded."""

    def __init__(self, place: Place) -> None:
        self.folder, self.name = place.parent, f".{place.name}.{secrets.token_hex(8)}.tmp"
        self.holding = contextlib.ExitStack()
        self.number = self.holding.enter_context(self.folder.held())
        self.pending = True
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK
            number = os.open(self.folder.within(self.number, self.name), flags, 0o666, dir_fd=self.number)
        except BaseException:
            self.holding.close()
            raise
        self.file = os.fdopen(number, "w+b")

    def publish(self, name: str, wait: bool = True) -> None:
        self.file.flush()
        if wait:
            os.fsync(self.file.fileno())
        if self.number is None:
            self.file.close()  # Windows renames no file that is open
        old, new = (self.folder.within(self.number, each) for each in (self.name, name))
        os.replace(old, new, src_dir_fd=self.number, dst_dir_fd=self.number)
        self.pending = False
        if wait and self.number is not None:
            os.fsync(self.number)

    def discard(self) -> None:
        """Leave nothing behind, unless it has been published."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self.pending:
            with contextlib.suppress(OSError):
                os.unlink(self.folder.within(self.number, self.name), dir_fd=self.number)
        self.holding.close()


def address(file: BinaryIO, place: Place) -> str:
    """For a library that opens files by name: the file that is open here and no other, where the system can say that."""
    link = f"/proc/self/fd/{file.fileno()}"
    return link if os.path.exists(link) else str(place)


def write_file(path: Path, content: bytes) -> None:
    """A file that a user has named, whole or not at all. Makes no directory: one that has gone was moved or removed."""
    Place.of(path).write(content)


def remove_leftovers(place: Place) -> None:
    """Of processes that died while they wrote this file."""
    with contextlib.suppress(OSError):
        for name in place.parent.names():
            if name.startswith(f".{place.name}.") and name.endswith(".tmp") and not (place.parent / name).is_dir():
                (place.parent / name).remove()


def too_large(info: os.stat_result, most: int) -> str | None:
    """Why a file is not to be read."""
    if info.st_size > most:
        return f"has {info.st_size:,} bytes, more than the {most:,} it may have"
    on_disk = 512 * getattr(info, "st_blocks", info.st_size)
    if info.st_size > 64 * CHUNK and on_disk < info.st_size // 64:  # costs nothing to send, and all its size to read
        return f"has {info.st_size:,} bytes that are mostly holes"
    return None


def canonical(content: Any) -> bytes:
    """The one way in which we write JSON, so that not a byte of it can change unseen."""
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def read_canonical(place: Place, most: int = CHUNK) -> dict[str, Any]:
    """An object that `canonical` has written, and not a byte of it changed."""
    content = place.read(most)
    try:
        found = json.loads(content)
        if isinstance(found, dict) and canonical(found) == content:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"{place.name} is not as it was written")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(place: Place, size: int) -> str:
    """The SHA-256 of a file that must have this size, read piece by piece."""
    total = hashlib.sha256()
    with place.open(size) as file:
        there = os.fstat(file.fileno()).st_size
        if there != size:
            raise Unreadable(f"{place.name} has {there:,} bytes instead of {size:,}")
        while piece := file.read(CHUNK):
            total.update(piece)
    return total.hexdigest()
