"""Show progress on the console: two live lines on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from ..output import print_line
from .callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from .progress import GAP, LOWEST, LinePart, Progress, digits, sparkline

if TYPE_CHECKING:
    from rich.text import Text

LINE_SHARE, LINE_SECONDS = 0.1, 30.0  # a plain line after this much more progress or time
REFRESHES = 5  # of the live line, per second
INDENT = 4  # of the second line
WATCH_SECONDS = 1.0  # between two looks at a running phase, for plain lines
STYLES = {"return": "bold", "curve": "cyan", "title": "bold"}


class ConsoleLogger(Callback):
    """Shows the progress of training."""

    name, may_fail = "progress", True

    def on_start(self, run: RunInfo) -> None:
        self.progress = Progress(run)
        is_live = on_terminal() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self.display: LiveLine | PlainLines = (LiveLine if is_live else PlainLines)(self.progress)

    def on_update(self, state: StateView) -> None:
        self.progress.begin_phase()

    def on_phase(self, row: MetricsRow) -> None:
        self.progress.add(row)
        self.display.show()

    def on_evaluation_progress(self, done: int, episodes: int) -> None:
        self.progress.evaluation = done, episodes
        self.display.show_evaluation()

    def on_trained(self, state: StateView) -> None:
        self.progress.ended = True
        self.display.flush()

    def on_end(self, result: TrainingResult) -> None:
        self.progress.ended, self.progress.evaluation = True, None
        self.display.close()


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class LiveLine:
    """One line that is redrawn in place, with as much as fits into the terminal, and a second one about learning."""

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        self.progress, self.widths = progress, dict[tuple[str, bool], int]()
        self.console = Console(stderr=True)
        self.unicode = not self.console.options.ascii_only
        self.live = Live(console=self.console, get_renderable=self.line, refresh_per_second=REFRESHES)
        self.live.start()

    def show(self) -> None:
        """Nothing to do: rich redraws the line a few times a second."""

    show_evaluation = flush = show

    def line(self) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis", end="")
        for i, part in enumerate(self._fitting(self.console.width - 1)):
            text.append(GAP if i else "")
            if part.name == "bar":
                filled = round(self.progress.share * len(part.text))
                text.append(part.text[:filled], "green" if self.progress.share == 1 else "cyan")
                text.append(part.text[filled:], "bright_black")
            else:
                text.append(part.text, STYLES.get(part.name, ""))
        if second := self._second_line(self.console.width - 1):
            text.append(f"\n{second}", "bright_black")
        return text

    def _second_line(self, width: int) -> str:
        """As many of its parts as fit."""
        line = ""
        for part in self.progress.learning():
            longer = f"{line}{GAP}{part}"
            if len(longer) > width:
                break
            line = longer
        return line

    def _fitting(self, width: int) -> list[LinePart]:
        """The longest version of the line that fits: all parts, the important parts, these in short, or a cut line."""

        def too_long() -> bool:
            return len(GAP.join(part.text for part in parts)) > width

        everything = self._with_bar_and_curve()
        important = [part for part in everything if part.rank < LOWEST]
        for some, short in ((everything, False), (important, False), (important, True)):
            parts = [self._aligned(part, short) for part in some]
            if not too_long():
                break
        while len(parts) > 1 and too_long():
            parts.remove(max(parts, key=lambda part: part.rank))
        return parts

    def _aligned(self, part: LinePart, short: bool) -> LinePart:
        """Pad a part to its largest width so far, so that the line does not jump."""
        text, key = part.short if short else part.text, (part.name, short)
        self.widths[key] = max(self.widths.get(key, 0), len(text))
        return part._replace(text=text.ljust(self.widths[key]))

    def _with_bar_and_curve(self) -> list[LinePart]:
        mark, returns = "━" if self.unicode else "-", self.progress.returns
        found = [LinePart("title", self.progress.title, LOWEST, ""), LinePart("bar", mark * 12, 4, mark * 6)]
        for part in self.progress.parts():
            found.append(part)
            if part.name == "return" and self.unicode and len(returns) > 1:
                found.append(LinePart("curve", sparkline(returns, 10).ljust(10), 5, sparkline(returns, 6).ljust(6)))
        return found

    def close(self) -> None:
        self.widths.clear()
        self.live.stop()


class PlainLines:
    """Prints occasional plain lines, for log files. A thread reports on phases that take long."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.shown_share, self.shown_at = progress.share, time.monotonic()
        self.shown_returns = 0  # how many there were when a line was last shown
        self.pending = self.evaluation_shown = False
        self.closed = threading.Event()
        if progress.steps_taken is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.closed.wait(WATCH_SECONDS):
            if self.progress.in_phase and self.progress.evaluation is None and self._is_late():
                self.pending = True
                self.flush()

    def _is_late(self) -> bool:
        return time.monotonic() - self.shown_at >= LINE_SECONDS

    def show(self) -> None:
        self.pending, self.evaluation_shown = True, False
        if self.progress.share - self.shown_share >= LINE_SHARE - 1e-9 or self._is_late():
            self.flush()

    def show_evaluation(self) -> None:
        if self.progress.evaluation is not None and (not self.evaluation_shown or self._is_late()):
            self.evaluation_shown, self.shown_at = True, time.monotonic()
            print_line(evaluation_text(self.progress.title, *self.progress.evaluation), error=True)

    def flush(self) -> None:
        """Print a line if there is something new."""
        if self.pending:
            progress = self.progress
            self.shown_share, self.shown_at, self.pending = progress.share, time.monotonic(), False
            texts = [part.text + (self._trend() if part.name == "return" else "") for part in progress.parts()]
            print_line(GAP.join([progress.title, *texts]), error=True)
            if learning := progress.learning():
                print_line(" " * INDENT + GAP.join(learning), error=True)
            self.shown_returns = len(progress.returns)

    def _trend(self) -> str:
        """The change of the return since the last line; empty if no episode has ended since."""
        returns = self.progress.returns
        if not 0 < self.shown_returns < len(returns):
            return ""
        return f" ({returns[-1] - returns[self.shown_returns - 1]:+{digits(self.progress.scale)}})"

    def close(self) -> None:
        self.closed.set()
        self.flush()


def evaluation_text(title: str, done: int, episodes: int) -> str:
    return f"{title}{GAP}evaluating: {done} of {episodes} episodes"


class EvaluationLine(Callback):
    """Shows the progress of an evaluation outside of training: a temporary line on a terminal, plain lines elsewhere."""

    name, may_fail = "progress", True

    def __init__(self, title: str) -> None:
        self.title, self.is_live = title, on_terminal()
        self.width = 0  # of the text on the terminal
        self.shown_at = -LINE_SECONDS

    def on_evaluation_progress(self, done: int, episodes: int) -> None:
        line = evaluation_text(self.title, done, episodes)
        if self.is_live:
            print_line(f"\r{line}", error=True, end="")  # it never gets shorter
            self.width = len(line)
        elif time.monotonic() - self.shown_at >= LINE_SECONDS:
            self.shown_at = time.monotonic()
            print_line(line, error=True)

    def __enter__(self) -> EvaluationLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            print_line(f"\r{' ' * self.width}\r", error=True, end="")
            self.width = 0
