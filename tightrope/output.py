"""Printing to the terminal. An output stream that fails does not stop training."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class OutputLost(Exception):
    """Standard output cannot be written, in a command whose only purpose is its output."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the output cannot be written: {getattr(error, 'strerror', None) or error}")
        self.reader_left = getattr(error, "errno", None) == errno.EPIPE


class Guarded:
    """A text stream that drops text it cannot write, or raises OutputLost if it is `needed`."""

    def __init__(self, stream: TextIO, needed: bool = False) -> None:
        self.stream, self.needed = stream, needed

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except UnicodeEncodeError:  # the terminal's encoding lacks a character
            encoding = self.stream.encoding
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
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
        """Write the buffered text, or drop it: otherwise Python tries again at exit and returns exit code 120."""
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
    """Inside, an output stream that fails raises no error, except standard output if it is `needed`."""
    before = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w")  # noqa: SIM115 -- replaces a stream that was closed at the start, which is None
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
    """Print a line to standard output or, if `error`, to standard error. A stream that fails is ignored."""
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
