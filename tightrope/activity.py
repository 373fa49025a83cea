"""The current activity of this process, so that other ranks can tell slow work from work that has stopped.

The main thread writes it, which costs almost nothing. The heartbeat thread reads it and sends it to the other ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

OUTSIDE = "running code outside Tightrope"
STEPPING = "stepping its environments"


class Activity:
    """`now` is (description, whether the work waits for other ranks). `count` increases whenever work starts or advances."""

    def __init__(self) -> None:
        self.now = (OUTSIDE, False)
        self.count = 0


current = Activity()


def begin(what: str, waits: bool = False) -> tuple[str, bool]:
    """Set the activity, and return the previous one."""
    before = current.now
    current.now = (what, waits)
    current.count += 1
    return before


def mark() -> None:
    """Note that the current activity has advanced."""
    current.count += 1


@contextmanager
def during(what: str, waits: bool = False) -> Iterator[None]:
    """Set the activity inside, and restore the previous one afterwards."""
    before = begin(what, waits)
    try:
        yield
    finally:
        begin(*before)


class Stopwatch:
    """Measures the time without progress."""

    def __init__(self) -> None:
        self.count, self.since = current.count, time.monotonic()

    def seconds(self) -> float:
        if current.count != self.count:
            self.count, self.since = current.count, time.monotonic()
        return time.monotonic() - self.since
