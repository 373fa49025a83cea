"""What is printed for people. A stream that can no longer be written is no reason to stop training."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """Standard output cannot be written, and what was to be printed is all that the command is for."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the output cannot be written: {getattr(error, 'strerror', None) or error}")
        self.reader_left = getattr(error, "errno", None) == errno.EPIPE


class Guarded:
    """A text stream. What it cannot write is dropped, or raises OutputLost where it is `needed`."""

    def __init__(self, stream: TextIO, needed: bool = False) -> None:
        self.stream, self.needed = stream, needed

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:  # a terminal of few letters
            encoding = self.stream.encoding
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self.fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        if self.needed:
            raise OutputLost(error) from None

    def finish(self) -> None:
        """Write what waits in its buffer, or drop it: otherwise Python tries once more as it ends, and exits with 120."""
        try:
            self.stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
                self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded_output(needed: bool) -> Iterator[None]:
    """Nothing that is printed in here can end it; but for what goes to standard output, if that is `needed`."""
    before = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w")  # noqa: SIM115 -- in place of a stream that was closed from the start, which is None
    streams = Guarded(before[0] or nowhere, needed), Guarded(before[1] or nowhere)
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in streams)
    try:
        yield
    finally:
        for stream in streams:
            stream.finish()
        nowhere.close()
        sys.stdout, sys.stderr = before


def print_line(line: str, error: bool = False, end: str = "\n") -> None:
    """Print a line to standard output or, if `error`, to standard error; it is dropped where that cannot be written."""
    stream = sys.stderr if error else sys.stdout
    if stream is not None:
        guard = Guarded(stream)
        guard.write(f"{line}{end}")
        guard.flush()


def format_bytes(count: float) -> str:
    power = max((p for p in range(5) if count >= 0.9995 * 1000**p), default=0)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def format_seconds(seconds: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}"
