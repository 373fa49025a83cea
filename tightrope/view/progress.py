"""Progress: a live bar on a terminal, plain lines at a sensible pace elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from .onlooker import About, Onlooker, Shown

SHARE, SECONDS = 0.1, 30.0  # a plain line after this much more progress or time


class Bar(Protocol):
    def show(self, done: int, facts: str) -> None: ...
    def close(self) -> None: ...


class Progress(Onlooker):
    """Shows phase after phase."""

    name = "progress"

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.bar: Bar | None = None

    def begin(self, about: About) -> None:
        title, total = about.title, about.total_steps
        self.bar = LiveBar(title, total, about.steps) if sys.stderr.isatty() else PlainLines(title, total)

    def row(self, row: dict[str, Any]) -> None:
        assert self.bar is not None
        self.seen.update(row)  # a phase in which no episode finished shows the last return there was
        self.bar.show(int(row["step"]), facts(self.seen))

    def end(self, state: Shown) -> None:
        if self.bar is not None:
            self.bar.close()


def facts(row: dict[str, Any]) -> str:
    """The numbers a person watches, in one line."""
    words = []
    for tag, form in (
        ("charts/episodic_return", "return {:.1f}"),
        ("eval/episodic_return", "greedy {:.1f}"),
        ("charts/episodic_length", "length {:.0f}"),
        ("losses/approx_kl", "KL {:.4f}"),
        ("charts/SPS", "{:,.0f} steps/s"),
    ):
        if tag in row:
            words.append(form.format(row[tag]))
    return "  ".join([*words, f"{int(row['step']):,} steps"])  # most wanted first: a narrow terminal cuts the end


class LiveBar:
    """A bar redrawn in place."""

    def __init__(self, title: str, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        columns = (
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        console = Console(stderr=True)
        console.print(title, style="bold", highlight=False)
        self.rich = RichProgress(*columns, console=console)
        self.rich.start()
        self.task = self.rich.add_task(title, total=total, completed=done, facts="")

    def show(self, done: int, facts: str) -> None:
        self.rich.update(self.task, completed=done, facts=facts)

    def close(self) -> None:
        self.rich.stop()


class PlainLines:
    """A line now and then, for logs."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self.said, self.at = 0.0, time.monotonic()
        self.unsaid: tuple[float, str] | None = None

    def show(self, done: int, facts: str) -> None:
        self.unsaid = (done / self.total, facts)
        if self.unsaid[0] - self.said >= SHARE - 1e-9 or time.monotonic() - self.at >= SECONDS:
            self.say()

    def say(self) -> None:
        if self.unsaid is not None:
            self.said, facts = self.unsaid
            self.at, self.unsaid = time.monotonic(), None
            print(f"{self.title} {self.said:4.0%}  {facts}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The last phase is always said."""
        self.say()
