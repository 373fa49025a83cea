"""How far an evaluation has come that belongs to no training: one line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from ..output import print_line
from .onlooker import Onlooker

SECONDS = 30.0  # between plain lines


class EvaluationLine(Onlooker):
    """Told of `evaluating`, and closed when the result is about to be printed."""

    name = "progress"

    def __init__(self, title: str) -> None:
        self.title, self.alive = title, sys.stderr is not None and sys.stderr.isatty()
        self.width = 0  # of what stands on the terminal
        self.said: float | None = None

    def evaluating(self, over: int, episodes: int) -> None:
        line = f"{self.title}  evaluating: {over} of {episodes} episodes"
        if self.alive:
            print_line(f"\r{line.ljust(self.width)}", error=True, end="")
            self.width = len(line)
        elif self.said is None or time.monotonic() - self.said >= SECONDS:
            self.said = time.monotonic()
            print_line(line, error=True)

    def __enter__(self) -> EvaluationLine:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as if there had been no line."""
        if self.width:
            print_line(f"\r{' ' * self.width}\r", error=True, end="")
            self.width = 0
