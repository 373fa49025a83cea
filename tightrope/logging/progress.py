"""The progress of a run, as the parts of a line of text, and of a second one about learning."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import NamedTuple

from ..errors import in_unit
from .callback import MetricsRow, RunInfo
from .metrics import MEASURED, RETURN, SCORE

SLOW_SECONDS = 2.0  # after which a phase shows how far it is
GAP, BARS = "  ", "▁▂▃▄▅▆▇█"
SCHEDULABLE = ("clip_coef", "ent_coef")  # shown if they follow a schedule
LEARNING = {  # the second line
    "loss": "losses/total_loss", "policy": "losses/policy_loss", "objective": "losses/objective",
    "value loss": "losses/value_loss", "value": "losses/value_mean", "explained": "losses/explained_variance",
    "entropy": "losses/entropy", "grad norm": "losses/grad_norm", "lr": "charts/learning_rate",
}  # fmt: skip
NOT_WITHOUT = {"value loss": "losses/value_mean"}  # a critic: the loss is 0 without one
LOWEST = 9  # the rank of parts that are shown only if there is room for everything


class LinePart(NamedTuple):
    """A part of the line. If space is short, the short texts are used, then parts with the highest ranks are dropped."""

    name: str
    text: str
    rank: int
    short: str


class Progress:
    """The progress of a run and the numbers to show."""

    def __init__(self, run: RunInfo) -> None:
        self.title, self.unit, self.total = run.title, run.unit, max(run.total_steps, 1)
        self.batch = run.settings.get("num_envs", 0) * run.settings.get("num_steps", 0)
        self.scheduled = [name for name in SCHEDULABLE if isinstance(run.settings.get(name), str)]
        self.steps = self.first_steps = run.steps
        self.latest: MetricsRow = {}  # the newest value of each metric
        self.returns: list[float] = []
        self.scale = 0.0  # the largest absolute return: it decides how many digits are shown
        self.began = self.updated = time.monotonic()
        self.first_phase: tuple[float, int] | None = None  # when it ended, and its steps
        self.ended = False
        self.evaluation: tuple[int, int] | None = None  # (episodes done, episodes) of a slow one that is running
        self.steps_taken = run.steps_taken
        self.begin_phase()

    def begin_phase(self) -> None:
        self.taken_before = 0 if self.steps_taken is None else self.steps_taken()
        self.phase_began = time.monotonic()

    @property
    def in_phase(self) -> str:
        """The progress of a slow phase, as text; empty if unknown."""
        if self.steps_taken is None or self.ended or time.monotonic() - self.phase_began < SLOW_SECONDS:
            return ""
        taken = self.steps_taken() - self.taken_before
        if not taken:  # an evaluation is running, say
            return ""
        return f"{taken:,} of {self.batch:,} steps into the next" if taken < self.batch else "learning"

    def add(self, row: MetricsRow) -> None:
        """The metrics of a phase."""
        self.latest.update(row)
        self.evaluation = None
        self.steps, self.updated = int(row["step"]), time.monotonic()
        if self.first_phase is None:
            self.first_phase = self.updated, self.steps
        if RETURN in row:
            self.returns.append(row[RETURN])
        for tag in (RETURN, SCORE):
            if tag in row and math.isfinite(row[tag]):
                self.scale = max(self.scale, abs(row[tag]))

    @property
    def share(self) -> float:
        return min(self.steps / self.total, 1.0)

    def parts(self) -> list[LinePart]:
        """All parts of the line, in reading order."""
        number = self.latest.get("phase", 0)
        exact = self.batch and self.steps == number * self.batch  # all phases have the same number of steps
        share, phase = f"{self.share:4.0%}", f"{number}/{self.total // self.batch}" if exact else f"{number}"
        found = [
            LinePart("share", share, 0, share),
            LinePart("phase", f"phase {phase}", 8, phase),
            LinePart("steps", f"{self.steps:,} steps", LOWEST, ""),
        ]
        score, brief = f"{{:{digits(self.scale)}}}", f"{{:{digits(self.scale, 2)}}}"
        length = ".1f" if self.latest.get("charts/episodic_length", 10) < 10 else ".0f"
        for name, tag, form, rank, short in (
            ("return", RETURN, f"return {score}", 1, f"return {score}"),
            ("greedy", SCORE, f"greedy {score}", 5, f"greedy {brief}"),
            ("length", "charts/episodic_length", f"length {{:{length}}}", 7, f"len {{:{length}}}"),
            ("KL", "losses/approx_kl", "KL {:.3g}", 6, "KL {:.2g}"),
            ("speed", "charts/SPS", "{:,.0f} steps/s", 3, "{:,.0f}/s"),
        ):
            if tag in self.latest:
                found.append(LinePart(name, form.format(self.latest[tag]), rank, short.format(self.latest[tag])))
            if tag == SCORE and (own := in_unit(self.latest.get(MEASURED), self.unit)):
                found.append(LinePart("own", own, 7, own))
        found += [
            LinePart(name, f"{name} {self.latest[tag]:.3g}", LOWEST, "")
            for name in self.scheduled
            if (tag := f"charts/{name}") in self.latest
        ]
        if (evaluation := self.evaluation) is not None:
            done = "{}/{}".format(*evaluation)
            found.append(LinePart("evaluation", f"evaluating {done}", 1, f"eval {done}"))
        elif within := self.in_phase:
            found.append(LinePart("in phase", within, 4, within.partition(" steps")[0]))
        left = self._time()
        return [*found, LinePart("time", left, 2, left)]

    def learning(self) -> list[str]:
        """The parts of the second line: losses, entropy, gradient norm and learning rate of the newest phase."""
        found = {name: tag for name, tag in LEARNING.items() if NOT_WITHOUT.get(name, tag) in self.latest}
        return [f"{name} {self.latest[tag]:.3g}" for name, tag in found.items() if tag in self.latest]

    def _time(self) -> str:
        """The time left at the speed so far, or the time taken. The first phase is not counted: it includes compilation."""
        if self.ended or self.steps >= self.total:
            return f"in {clock(self.updated - self.began)}"
        since, steps = self.began, self.first_steps
        if self.first_phase is not None and self.first_phase[1] < self.steps:
            since, steps = self.first_phase
        done = self.steps - steps
        if done <= 0:
            return "-:-- left"
        end = self.updated + (self.total - self.steps) * (self.updated - since) / done
        return f"{clock(max(end - time.monotonic(), 0.0))} left"


def digits(scale: float, significant: int = 3) -> str:
    """A format for numbers of that scale with so many significant digits."""
    if scale == 0:
        return ".1f"
    before = math.floor(math.log10(scale)) + 1  # digits before the point, 0 or less for numbers below 1
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


def sparkline(values: list[float], columns: int) -> str:
    """Values as a row of small bars, each the mean of an equal part of them."""
    columns = min(columns, len(values))
    if columns < 2:
        return ""
    ends = [round(i * len(values) / columns) for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((x - low) / span * (len(BARS) - 1)) if span > 0 else 0] for x in means)
