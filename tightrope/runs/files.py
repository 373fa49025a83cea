"""Files that are whole or not there, whenever the power fails; and reading that a hostile file cannot make expensive."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 1 << 20


class Unreadable(Exception):
    """A file that is not what it should be; the message says in which way."""


def write_file(path: Path, content: bytes) -> None:
    """All of the content or nothing: written under another name, on the disk before it is renamed. Makes no directory:
    one that has gone was moved or removed by somebody."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no name that a user's own file would have
    try:
        write_through(temporary, content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_leftovers(path: Path) -> None:
    """Of processes that died while they wrote this file."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        if not leftover.is_dir() or leftover.is_symlink():
            leftover.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Write a new file and wait until the disk has it. What has that name already, a link perhaps, is not written into."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the disk has a directory's names: a rename is only then sure to be found again."""
    if os.name == "nt":  # has no such thing
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def canonical(content: Any) -> bytes:
    """The one way in which we write JSON, so that not a byte of it can change unseen."""
    return json.dumps(content, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"


def opened(path: Path, most: int) -> BinaryIO:
    """A plain file of at most so many bytes, open: no link, pipe or device, which could lead anywhere or never end."""
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}") from None
    if (complaint := unfit(os.fstat(number), most)) is not None:
        os.close(number)
        raise Unreadable(f"{path.name} {complaint}")
    return os.fdopen(number, "rb")


def unfit(info: os.stat_result, most: int) -> str | None:
    """Why a file is not to be read."""
    if not stat.S_ISREG(info.st_mode):
        return "is not a plain file"
    if info.st_size > most:
        return f"has {info.st_size:,} bytes, more than the {most:,} it may have"
    on_disk = 512 * getattr(info, "st_blocks", info.st_size)
    if info.st_size > 64 * CHUNK and on_disk < info.st_size // 64:  # costs nothing to send, and all its size to read
        return f"has {info.st_size:,} bytes that are mostly holes"
    return None


def read_canonical(path: Path, most: int = CHUNK) -> dict[str, Any]:
    """An object that `canonical` has written, and not a byte of it changed."""
    with opened(path, most) as file:
        content = file.read(most + 1)
    try:
        found = json.loads(content)
        if isinstance(found, dict) and canonical(found) == content:
            return found
    except (ValueError, RecursionError):
        pass
    raise Unreadable(f"{path.name} is not as it was written")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(path: Path, size: int) -> str:
    """The SHA-256 of a file that must have this size, read piece by piece."""
    total = hashlib.sha256()
    with opened(path, size) as file:
        if os.fstat(file.fileno()).st_size != size:
            raise Unreadable(f"{path.name} has {os.fstat(file.fileno()).st_size:,} bytes instead of {size:,}")
        while piece := file.read(CHUNK):
            total.update(piece)
    return total.hexdigest()
