"""Finds the rank that makes no progress while others wait for it, be its process alive or not.

A rank that has waited for longer than the limit asks the next one in the ring, which answers for itself or passes the
question on. Who makes progress, however slowly, is left alone; so is everyone as long as nobody waits. If the question finds
only ranks that wait, they wait for each other.
"""

from __future__ import annotations

import math
import time

from .. import activity

LIMIT = 1800.0  # seconds without progress, if nobody says otherwise; Gloo's own limit for a message
NOBODY = -1
FRESH = 3.0  # seconds for which a question counts as just heard: it comes once a second


class Overdue:
    """One rank's part in it. A question is text: how many ranks may still hear it, how many before them wait in a row."""

    def __init__(self, rank: int, name: str, size: int, limit: float = LIMIT) -> None:
        self.rank, self.name, self.size, self.limit = rank, name, size, limit
        self.verdict: tuple[int, str] | None = None  # the rank that holds the others up, NOBODY if it is no single one
        self.stopwatch = activity.Stopwatch()
        self.before, self.heard = 0, -math.inf  # ranks in a row before this one that wait, and when that was said

    def question(self) -> str | None:
        """What to ask the next rank: once a beat, if this one has waited for too long."""
        (_, waits), idle = activity.current.now, self.stopwatch.seconds()
        if not waits or idle <= self.limit:
            return None
        in_a_row = 1 + (self.before if time.monotonic() - self.heard < FRESH else 0)
        if in_a_row >= self.size:
            self.verdict = (
                NOBODY,
                f"all ranks wait for each other, {self.name} for {idle:.0f} s, as when each runs other code",
            )
            return None
        return f"{self.size - 1} {in_a_row}"

    def answer(self, question: str) -> str | None:
        """What to ask the next rank in turn. This one is found out if it has made no progress and waits for nobody."""
        left, in_a_row = map(int, question.split())
        (what, waits), idle = activity.current.now, self.stopwatch.seconds()
        self.before, self.heard = in_a_row, time.monotonic()
        if waits and idle > self.limit:
            return None  # it asks by itself
        if not waits and idle > self.limit:
            words = f"{self.name} has made no progress for {idle:.0f} s while {what}, and other ranks wait for it"
            self.verdict = self.rank, f"{words} (rank_timeout {self.limit:g})"
            return None
        return f"{left - 1} 0" if left > 1 else None

    def set_limit(self, seconds: float) -> None:
        """0 is none."""
        self.limit = seconds or math.inf
