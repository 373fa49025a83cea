"""metrics.jsonl: one JSON object per phase. `MetricsFile` writes it, `read_rows` and `Columns` read it."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from typing import Any

import numpy as np

from ..files import CHUNK, Place
from .callback import MetricsRow

RETURN, SCORE = "charts/episodic_return", "eval/episodic_return"
MEASURED = "eval/measured"  # the score in the task's own unit
LENGTH, EPISODES = "charts/episodic_length", "charts/episodes"
MAX_FILE = 1 << 30  # bytes: over a million phases
MAX_LINE = CHUNK  # bytes of one row
MAX_TAGS = 10_000
MAX_VALUE = 1e100  # its square is still finite


def finite(value: Any) -> Any:
    """`value` with null for every number that is not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """Appends rows after the first `size` bytes of a file (all of it, if not given). Numbers that are not finite are null.

    An incomplete row at the end is cut off. `say` gets a line if the file has fewer than `size` bytes of complete rows. If the
    disk fails, rows are kept and written with the next one, so that the file has no gap.
    """

    def __init__(self, place: Place, size: int | None = None, say: Callable[[str], None] = print) -> None:
        self.file = open_file(place)
        length = self.file.seek(0, os.SEEK_END)
        self.whole = end_of_rows(self.file, length if size is None else min(size, length))  # bytes of whole rows
        if os.fstat(self.file.fileno()).st_nlink > 1:  # a hard link, perhaps a snapshot, keeps its content
            with self.file:
                starts = range(0, self.whole, CHUNK)  # one read ends at 2 GiB
                place.write(b"".join(read_bytes(self.file, i, min(i + CHUNK, self.whole)) for i in starts))
            self.file = open_file(place)
        self.unwritten = b""
        if size is not None and self.whole < size:
            found = f"{place} has whole rows in {self.whole:,} of the {size:,} bytes that it had at the checkpoint"
            say(f"{found}: the last rows before the checkpoint are missing")
        self.file.truncate(self.file.seek(self.whole))

    def write(self, row: MetricsRow) -> None:
        """Write a row. OSError if the disk fails; the row is then written with the next one."""
        self.unwritten += json.dumps(finite(row), allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.unwritten:
            written = self.file.write(self.unwritten)
            self.unwritten = self.unwritten[written:]
        self.whole = self.file.tell()

    def sync(self) -> int:
        """Wait until everything is on the disk; returns the length of the file."""
        self.flush()
        os.fsync(self.file.fileno())
        return self.whole

    def close(self) -> None:
        """Close the file, and cut off an incomplete row at its end."""
        if not self.file.closed and self.file.tell() != self.whole:
            self.file.truncate(self.whole)
        self.file.close()


def open_file(place: Place) -> FileIO:
    return os.fdopen(place.descriptor(os.O_RDWR | os.O_CREAT), "r+b", buffering=0)


def read_bytes(file: FileIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)


def end_of_rows(file: FileIO, size: int) -> int:
    """How many of the first `size` bytes of a file are whole lines."""
    end = size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = read_bytes(file, begin, end).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


class Columns:
    """Metrics as one column per tag. Rows may lack tags and hold null. A number takes sixteen bytes."""

    def __init__(self, rows: Iterable[MetricsRow] = ()) -> None:
        self.count = 0
        self.numbers: dict[str, tuple[array[int], array[float]]] = {}  # (row, value) of each number
        for row in rows:
            self.add(row)

    def add(self, row: MetricsRow) -> None:
        for tag, value in row.items():
            if tag not in self.numbers and len(self.numbers) >= MAX_TAGS:
                continue
            rows, values = self.numbers.setdefault(tag, (array("q"), array("d")))
            rows.append(self.count)
            values.append(as_float(value))
        self.count += 1

    def __getitem__(self, tag: str) -> np.ndarray:
        """One value per row, NaN for rows without the tag."""
        column = np.full(self.count, math.nan)
        if tag in self.numbers:
            rows, values = self.numbers[tag]
            column[np.frombuffer(rows, np.int64)] = np.frombuffer(values)
        return column

    def __contains__(self, tag: str) -> bool:
        return tag in self.numbers and bool(np.isfinite(np.frombuffer(self.numbers[tag][1])).any())

    @property
    def tags(self) -> list[str]:
        return list(self.numbers)

    def curve(self, tag: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of the rows that have both."""
        step, value = self["step"], self[tag]
        there = np.isfinite(step) & np.isfinite(value)
        return step[there], value[there]

    def values(self, tag: str) -> np.ndarray:
        return self.curve(tag)[1]

    def weights(self, tag: str) -> np.ndarray:
        """How much the value of each row with the tag counts: the number of episodes behind a mean over episodes, else 1."""
        there = np.isfinite(self["step"]) & np.isfinite(self[tag])
        counted = self[EPISODES] if tag in (RETURN, LENGTH) else np.ones(self.count)
        return np.where(counted > 0, counted, 1.0)[there]  # old files have no count

    def last(self, tag: str) -> float | None:
        """The newest finite value."""
        values = self[tag]
        values = values[np.isfinite(values)]
        return float(values[-1]) if len(values) else None


def as_float(value: object) -> float:
    """NaN for anything that is not a number, or is too large to be a metric."""
    return float(value) if isinstance(value, (int, float)) and -MAX_VALUE < value < MAX_VALUE else math.nan


def read_rows(place: Place, max_bytes: int = MAX_FILE) -> Iterator[MetricsRow]:
    """The rows of a metrics file. Invalid and incomplete lines are skipped. A missing file has no rows; `Unreadable` if it is
    not a regular file of at most `max_bytes`."""
    if not place.exists():
        return
    with place.open(max_bytes) as file:
        while line := file.readline(MAX_LINE):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield row
