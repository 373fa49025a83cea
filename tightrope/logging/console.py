"""Progress: one live line on a terminal, plain lines at a sensible pace elsewhere, nothing when quiet."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..output import print_line
from .callback import Callback, RunInfo, StateView, TrainingResult

if TYPE_CHECKING:
    from rich.text import Text

SHARE, SECONDS = 0.1, 30.0  # a plain line after this much more progress or time
REFRESHES = 5  # of the live line in a second
WATCH = 1.0  # seconds between looks at a phase under way, for plain lines
SLOW = 2.0  # seconds after which a phase shows how far it has come
GAP = "  "
BARS = "▁▂▃▄▅▆▇█"
EXTRA = 9  # the rank of what is shown only where there is room for everything


class ConsoleLogger(Callback):
    """Shows phase after phase."""

    name = "progress"
    may_fail = True

    def on_start(self, about: RunInfo) -> None:
        self.journey = Journey(about)
        alive = (
            sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        )
        self.display: Display = LiveLine(self.journey) if alive else PlainLines(self.journey)

    def on_update(self, state: StateView) -> None:
        self.journey.begin_phase()

    def on_phase(self, row: dict[str, Any]) -> None:
        self.journey.reach(row)
        self.display.show()

    def on_evaluation_progress(self, over: int, episodes: int) -> None:
        self.journey.evaluated = over, episodes
        self.display.show_evaluation()

    def on_trained(self, state: StateView) -> None:
        self.journey.ended = True
        self.display.say()

    def on_end(self, result: TrainingResult) -> None:
        self.journey.ended, self.journey.evaluated = True, None
        self.display.close()


class Display(Protocol):
    def show(self) -> None: ...
    def show_evaluation(self) -> None: ...
    def say(self) -> None: ...  # what has not been shown yet
    def close(self) -> None: ...


class Piece(NamedTuple):
    """A part of the line. Where there is no room for all they are said in short, and then those of the lowest rank stay."""

    name: str
    text: str
    rank: int
    short: str


class Journey:
    """How far a run has come, and what a person wants to know of it."""

    def __init__(self, about: RunInfo) -> None:
        self.title, self.total = about.title, max(about.total_steps, 1)
        settings = about.settings
        self.batch = settings.get("num_envs", 0) * settings.get("num_steps", 0)
        self.steps = self.began_at = about.steps
        self.seen: dict[str, Any] = {}  # a phase in which no episode finished shows the last return there was
        self.returns: list[float] = []
        self.scale = 0.0  # the largest return so far, either way: how many digits tell something
        self.began = self.latest = time.monotonic()
        self.first: tuple[float, int] | None = None  # when the first phase was there, and its steps
        self.ended = False
        self.evaluated: tuple[int, int] | None = None  # episodes that are over, of how many, in one that takes a while
        self.steps_taken = about.steps_taken
        self.begin_phase()

    def begin_phase(self) -> None:
        """What environments do from now on belongs to the next phase."""
        self.taken_before = 0 if self.steps_taken is None else self.steps_taken()
        self.phase_began = time.monotonic()

    @property
    def in_phase(self) -> str:
        """How far a phase that takes long has come, in words; nothing where that is not known."""
        if self.steps_taken is None or self.ended or time.monotonic() - self.phase_began < SLOW:
            return ""
        taken = self.steps_taken() - self.taken_before
        if not taken:  # an evaluation, or a signal, has come in between
            return ""
        return f"{taken:,} of {self.batch:,} steps into the next" if taken < self.batch else "learning"

    def reach(self, row: dict[str, Any]) -> None:
        """A phase further."""
        self.seen.update(row)
        self.evaluated = None
        self.steps, self.latest = int(row["step"]), time.monotonic()
        if self.first is None:
            self.first = self.latest, self.steps
        if "charts/episodic_return" in row:
            self.returns.append(row["charts/episodic_return"])
        for tag in ("charts/episodic_return", "eval/episodic_return"):
            if tag in row and math.isfinite(row[tag]):
                self.scale = max(self.scale, abs(row[tag]))

    @property
    def share(self) -> float:
        return min(self.steps / self.total, 1.0)

    def pieces(self) -> list[Piece]:
        """Everything there is to show, in the order in which it is read."""
        share, phase, taken = f"{self.share:4.0%}", f"{self.seen.get('phase', 0)}{self._of_phases()}", self._time()
        found = [
            Piece("share", share, 0, share),
            Piece("phase", f"phase {phase}", 8, phase),
            Piece("steps", f"{self.steps:,} steps", EXTRA, ""),
        ]
        score = f"{{:{digits(self.scale)}}}"
        brief = f"{{:{digits(self.scale, 2)}}}"
        steps = ".1f" if self.seen.get("charts/episodic_length", 10) < 10 else ".0f"
        for name, tag, form, rank, short in (
            ("return", "charts/episodic_return", f"return {score}", 1, f"return {score}"),
            ("greedy", "eval/episodic_return", f"greedy {score}", 5, f"greedy {brief}"),
            ("length", "charts/episodic_length", f"length {{:{steps}}}", 7, f"len {{:{steps}}}"),
            ("KL", "losses/approx_kl", "KL {:.3g}", 6, "KL {:.2g}"),
            ("speed", "charts/SPS", "{:,.0f} steps/s", 3, "{:,.0f}/s"),
        ):
            if tag in self.seen:
                found.append(Piece(name, form.format(self.seen[tag]), rank, short.format(self.seen[tag])))
        if (evaluated := self.evaluated) is not None:
            over, episodes = evaluated
            found.append(Piece("evaluation", f"evaluating {over}/{episodes}", 1, f"eval {over}/{episodes}"))
        elif words := self.in_phase:
            found.append(Piece("in phase", words, 4, words.partition(" steps")[0]))
        return [*found, Piece("time", taken, 2, taken)]

    def _of_phases(self) -> str:
        """Of how many, where each has as many steps."""
        exact = self.batch and self.steps == self.seen.get("phase", 0) * self.batch
        return f"/{self.total // self.batch}" if exact else ""

    def _time(self) -> str:
        """How long it will still take by the pace so far, or has taken."""
        now = time.monotonic()
        if self.ended or self.steps >= self.total:
            return f"in {clock(self.latest - self.began)}"
        since, steps = self.began, self.began_at
        if self.first is not None and self.first[1] < self.steps:  # before it comes compilation and the like
            since, steps = self.first
        done, left = self.steps - steps, self.total - self.steps
        if done <= 0:
            return "-:-- left"
        at = self.latest + left * (self.latest - since) / done
        return f"{clock(max(at - now, 0.0))} left"


def digits(scale: float, significant: int = 3) -> str:
    """A format for numbers of that scale with so many significant digits."""
    if scale == 0:
        return ".1f"
    before = math.floor(math.log10(scale)) + 1  # digits before the point, less than 1 for what is smaller than 1
    if not -3 < before <= 9:
        return f".{significant - 1}e"
    least = 1 if significant > 2 and before <= 5 else 0
    return f".{max(significant - before, least)}f"


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03 or 3 d 04:05 h."""
    whole = round(seconds)
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86_400
    if days:
        return f"{days} d {hours:02d}:{minutes:02d} h"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def curve(values: list[float], columns: int) -> str:
    """All values so far as a row of small bars, each the mean of its share of them."""
    columns = min(columns, len(values))
    if columns < 2:
        return ""
    ends = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((x - low) / span * (len(BARS) - 1)) if span > 0 else 0] for x in means)


def length(pieces: list[Piece]) -> int:
    return sum(len(piece.text) + len(GAP) for piece in pieces) - len(GAP)


class LiveLine:
    """One line redrawn in place, with as much as the terminal has room for."""

    def __init__(self, journey: Journey) -> None:
        from rich.console import Console
        from rich.live import Live

        self.journey, self.widest = journey, dict[tuple[str, str], int]()
        self.console = Console(stderr=True)
        self.rich = not self.console.options.ascii_only
        self.live = Live(console=self.console, get_renderable=self.line, refresh_per_second=REFRESHES)
        self.live.start()

    def show(self) -> None:
        """Nothing to do: the line is drawn anew a few times a second, however many phases there are."""

    show_evaluation = say = show

    def line(self) -> Text:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis", end="")
        for i, piece in enumerate(self._fitting(self.console.width - 1)):
            text.append(GAP if i else "")
            if piece.name == "bar":
                filled = round(self.journey.share * len(piece.text))
                text.append(piece.text[:filled], "green" if self.journey.share == 1 else "cyan")
                text.append(piece.text[filled:], "bright_black")
            else:
                text.append(piece.text, {"return": "bold", "curve": "cyan", "title": "bold"}.get(piece.name, ""))
        return text

    def _fitting(self, width: int) -> list[Piece]:
        """As much as there is room for: everything; what matters; that in short; as much of that as fits."""
        everything = self._decorated()
        needed = [piece for piece in everything if piece.rank < EXTRA]
        for pieces in (everything, needed):
            if length(settled := self._settled(pieces, "long")) <= width:
                return settled
        settled = self._settled([piece._replace(text=piece.short) for piece in needed], "short")
        while len(settled) > 1 and length(settled) > width:
            settled.remove(max(settled, key=lambda piece: piece.rank))
        return settled

    def _settled(self, pieces: list[Piece], form: str) -> list[Piece]:
        """Each with the most room it ever had, so that nothing jumps about."""
        for name, text, *_ in pieces:
            self.widest[form, name] = max(self.widest.get((form, name), 0), len(text))
        return [piece._replace(text=piece.text.ljust(self.widest[form, piece.name])) for piece in pieces]

    def _decorated(self) -> list[Piece]:
        """With a bar before everything and a curve after the return."""
        mark, returns = "━" if self.rich else "-", self.journey.returns
        found = [Piece("title", self.journey.title, EXTRA, ""), Piece("bar", mark * 12, 4, mark * 6)]
        for piece in self.journey.pieces():
            found.append(piece)
            if piece.name == "return" and self.rich and len(returns) > 1:
                found.append(Piece("curve", curve(returns, 10).ljust(10), 5, curve(returns, 6).ljust(6)))
        return found

    def close(self) -> None:
        self.widest.clear()
        self.live.stop()


class PlainLines:
    """A line now and then, for logs. A thread says how far a phase has come that takes longer than that."""

    def __init__(self, journey: Journey) -> None:
        self.journey = journey
        self.said, self.at = journey.share, time.monotonic()
        self.said_return: float | None = None
        self.said_returns = 0  # how many there had been
        self.unsaid = False
        self.evaluation_said = False  # the one under way
        self.closed = threading.Event()
        if journey.steps_taken is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.closed.wait(WATCH):
            if self.journey.in_phase and self.journey.evaluated is None and time.monotonic() - self.at >= SECONDS:
                self.unsaid = True
                self.say()

    def show(self) -> None:
        self.unsaid, self.evaluation_said = True, False
        if self.journey.share - self.said >= SHARE - 1e-9 or time.monotonic() - self.at >= SECONDS:
            self.say()

    def show_evaluation(self) -> None:
        """The first time, and then as seldom as anything else."""
        assert self.journey.evaluated is not None
        if not self.evaluation_said or time.monotonic() - self.at >= SECONDS:
            self.evaluation_said, self.at = True, time.monotonic()
            over, episodes = self.journey.evaluated
            print_line(f"{self.journey.title}{GAP}evaluating: {over} of {episodes} episodes", error=True)

    def say(self) -> None:
        if self.unsaid:
            self.said, self.at, self.unsaid = self.journey.share, time.monotonic(), False
            words = [piece.text + self._change(piece.name) for piece in self.journey.pieces()]
            print_line(GAP.join([self.journey.title, *words]), error=True)
            self.said_return = self.journey.seen.get("charts/episodic_return")
            self.said_returns = len(self.journey.returns)

    def _change(self, name: str) -> str:
        """Of the return, since the line before; none, if no episode has ended since."""
        if name != "return" or self.said_return is None or len(self.journey.returns) == self.said_returns:
            return ""
        change = self.journey.seen["charts/episodic_return"] - self.said_return
        return f" ({change:+{digits(self.journey.scale)}})"

    def close(self) -> None:
        """The last phase is always said."""
        self.closed.set()
        self.say()


class EvaluationLine(Callback):
    """Told of `evaluating`, and closed when the result is about to be printed."""

    name = "progress"
    may_fail = True

    def __init__(self, title: str) -> None:
        self.title, self.alive = title, sys.stderr is not None and sys.stderr.isatty()
        self.width = 0  # of what stands on the terminal
        self.said: float | None = None

    def on_evaluation_progress(self, over: int, episodes: int) -> None:
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
