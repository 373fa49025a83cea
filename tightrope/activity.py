"""What this process is doing, noted piece by piece: other ranks can then tell slow work from work that has stopped.

The main thread writes, which costs next to nothing; the thread that speaks to the other ranks reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

OUTSIDE = "running code outside Tightrope"
STEPPING = "stepping its environments"


class Activity:
    """`now` is (what is being done, whether it ends only when other ranks have done their part). `count` goes up whenever a
    piece of work is done or begun."""

    def __init__(self) -> None:
        self.now = (OUTSIDE, False)
        self.count = 0


current = Activity()


def begin(what: str, waits: bool = False) -> tuple[str, bool]:
    """Something else is being done from here on; returns what was done before."""
    before = current.now
    current.now = (what, waits)
    current.count += 1
    return before


def mark() -> None:
    """A piece of the same work is done."""
    current.count += 1


@contextmanager
def during(what: str, waits: bool = False) -> Iterator[None]:
    """Sets the activity inside, and restores the one before."""
    before = begin(what, waits)
    try:
        yield
    finally:
        begin(*before)


class Stopwatch:
    """For how long there has been no progress. It sees what has happened since it was last read."""

    def __init__(self) -> None:
        self.count, self.since = current.count, time.monotonic()

    def seconds(self) -> float:
        if current.count != self.count:
            self.count, self.since = current.count, time.monotonic()
        return time.monotonic() - self.since
