"""What a population prints: a line for each event and, in a terminal, a bar."""

from __future__ import annotations

import sys

from ..errors import printable
from ..output import print_line


class PopulationLines:
    """Prints lines and, in a terminal, one bar over the steps of all agents."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.quiet, self.total, self.steps = quiet, total, dict[int, int]()
        self.bar = None
        if not quiet and sys.stdout.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            console = Console(soft_wrap=True, markup=False, emoji=False, highlight=False)
            columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
            # without a thread, because processes are forked, and without proxies of stdout, which these would inherit
            self.bar = Progress(
                *columns,
                console=console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> PopulationLines:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, line: str) -> None:
        if self.quiet:
            return
        if self.bar is not None:
            self.bar.console.print(printable(line))
        else:
            print_line(printable(line))

    def show(self) -> None:
        """Update the bar to the present steps of all agents."""
        if self.bar is not None:
            done = sum(self.steps.values())
            self.bar.update(self.task, completed=done, description=f"{done:,} of {self.total:,} steps", refresh=True)
