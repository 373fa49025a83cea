"""What training of many runs prints: a line for each event and, in a terminal, bars."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..errors import printable
from ..output import print_line

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBars:
    """Prints lines and, in a terminal, a bar for each task under way. `total` is the number of steps of each."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.quiet = total, quiet
        self.tasks: dict[str, TaskID] = {}
        self.progress: Progress | None = None
        if not quiet and sys.stdout.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn()
            console = Console(soft_wrap=True, markup=False, emoji=False, highlight=False)
            # without a thread, because processes are forked, and without proxies of stdout, which these would inherit
            self.progress = Progress(
                *columns,
                console=console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> ProgressBars:
        if self.progress is not None:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()

    def say(self, line: str) -> None:
        if self.progress is not None:
            self.progress.console.print(printable(line))
        elif not self.quiet:
            print_line(printable(line))

    def show(self, task: str, steps: int, words: str) -> None:
        """Update the bar of a task, with these words beside it."""
        if self.progress is not None and task not in self.tasks:
            self.tasks[task] = self.progress.add_task(words, total=self.total, completed=steps)
        elif self.progress is not None:
            self.progress.update(self.tasks[task], completed=steps, description=words, refresh=True)

    def remove(self, task: str) -> None:
        """Remove the bar of a task that has ended, if there is one."""
        if self.progress is not None and task in self.tasks:
            self.progress.remove_task(self.tasks.pop(task))
