"""Progress: a live bar on a terminal, plain lines at a sensible pace elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

SHARE, SECONDS = 0.1, 30.0  # a plain line after this much more progress or time


class Bar(Protocol):
    def show(self, done: int, facts: str) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Shows phase after phase; `row` is what the metrics file gets."""

    def __init__(self, title: str, phases: int, first_phase: int = 0, quiet: bool = False) -> None:
        self.seen: dict[str, float] = {}
        self.bar: Bar | None = None
        if not quiet:
            self.bar = LiveBar(title, phases, first_phase) if sys.stderr.isatty() else PlainLines(title, phases)

    def update(self, row: dict[str, Any]) -> None:
        if self.bar is None:
            return
        self.seen.update(row)  # a phase in which no episode finished shows the last return there was
        self.bar.show(int(row["phase"]), facts(self.seen))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def facts(row: dict[str, Any]) -> str:
    """The numbers a person watches, in one line."""
    words = [f"{int(row['step']):,} steps"]
    for tag, form in (
        ("charts/episodic_return", "return {:.1f}"),
        ("charts/episodic_length", "length {:.0f}"),
        ("eval/episodic_return", "greedy {:.1f}"),
        ("losses/approx_kl", "KL {:.4f}"),
        ("losses/entropy", "entropy {:.2f}"),
        ("charts/SPS", "{:,.0f} steps/s"),
    ):
        if tag in row:
            words.append(form.format(row[tag]))
    return "  ".join(words)


class LiveBar:
    """A bar redrawn in place."""

    def __init__(self, title: str, phases: int, first_phase: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
        )
        self.rich = RichProgress(*columns, console=Console(stderr=True))
        self.rich.start()
        self.task = self.rich.add_task(title, total=phases, completed=first_phase, facts="")

    def show(self, done: int, facts: str) -> None:
        self.rich.update(self.task, completed=done, facts=facts)

    def close(self) -> None:
        self.rich.stop()


class PlainLines:
    """A line now and then, for logs."""

    def __init__(self, title: str, phases: int) -> None:
        self.title, self.phases = title, phases
        self.said, self.at = 0.0, time.monotonic()

    def show(self, done: int, facts: str) -> None:
        share, now = done / self.phases, time.monotonic()
        if share - self.said >= SHARE or now - self.at >= SECONDS or done == self.phases:
            print(f"{self.title} {share:4.0%}  phase {done}/{self.phases}  {facts}", file=sys.stderr, flush=True)
            self.said, self.at = share, now

    def close(self) -> None:
        """Nothing is left open."""
