"""metrics.jsonl: one JSON object per phase, written as it happens."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for every number that is not finite: JSON has no other word for it."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class MetricsFile:
    """Rows after the first `size` bytes of a file (all it has, if not given); numbers that are not finite are null.

    What the disk does not take is kept and written with the next row, so that the file has no gap.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # what a link leads to is not ours to cut
        self.file = os.fdopen(os.open(path, flags, 0o644), "r+b", buffering=0)
        there = self.file.seek(0, os.SEEK_END)
        self.whole = there if size is None else min(size, there)  # bytes, up to the end of a row
        self.file.truncate(self.file.seek(self.whole))
        self.unwritten = b""

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
