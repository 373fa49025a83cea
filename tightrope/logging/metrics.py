"""metrics.jsonl: one JSON object per phase, written as it happens."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from io import FileIO
from typing import Any

from ..files import CHUNK, Draft, Place


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite: JSON has no other word for it."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """Rows after the first `size` bytes of a file (all it has, if not given); numbers that are not finite are null.

    Half a row at the end is cut off. `say` is told if the file does not have so many bytes of whole rows. What the disk does
    not take is kept and written with the next row, so that the file has no gap.
    """

    def __init__(self, place: Place, size: int | None = None, say: Callable[[str], None] = print) -> None:
        self.file = opened(place)
        there = self.file.seek(0, os.SEEK_END)
        self.whole = end_of_rows(
            self.file, there if size is None else min(size, there)
        )  # bytes, up to the end of a row
        if os.fstat(self.file.fileno()).st_nlink > 1:  # another name, a snapshot perhaps, keeps what it has
            self.file = copied(self.file, place, self.whole)
        self.unwritten = b""
        if size is not None and self.whole < size:
            say(
                f"{place} has whole rows in {self.whole:,} of the {size:,} bytes that it had at the checkpoint: "
                f"{last_phase(self.file, self.whole)}, and those up to the checkpoint are missing"
            )
        self.file.truncate(self.file.seek(self.whole))

    def write(self, row: dict[str, Any]) -> None:
        """OSError if it has to wait for another try."""
        self.unwritten += json.dumps(finite(row), allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.unwritten:
            written = self.file.write(self.unwritten)
            self.unwritten = self.unwritten[written:]
        self.whole = self.file.tell()

    def sync(self) -> int:
        """Wait until the disk has it all; returns the length of the file."""
        self.flush()
        os.fsync(self.file.fileno())
        return self.whole

    def close(self) -> None:
        """Leave no half of a row behind."""
        if not self.file.closed and self.file.tell() != self.whole:
            self.file.truncate(self.whole)
        self.file.close()


def opened(place: Place) -> FileIO:
    return os.fdopen(place.descriptor(os.O_RDWR | os.O_CREAT), "r+b", buffering=0)


def end_of_rows(file: FileIO, size: int) -> int:
    """How many of the first `size` bytes of a file are whole lines."""
    end = size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = part(file, begin, end).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def last_phase(file: FileIO, size: int) -> str:
    """Which phase the last row is of, in words."""
    line = part(file, max(0, size - CHUNK), size).rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return f"the last one is of phase {int(json.loads(line)['phase'])}"
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return "the last one is of no phase" if size else "there is none"


def copied(file: FileIO, place: Place, size: int) -> FileIO:
    """A file of the same first `size` bytes in the place of one that has other names too."""
    draft = Draft(place)
    try:
        with file:
            for begin in range(0, size, CHUNK):
                draft.file.write(part(file, begin, min(begin + CHUNK, size)))
        draft.publish(place.name)
    finally:
        draft.discard()
    return opened(place)


def part(file: FileIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin) or b""
