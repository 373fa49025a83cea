"""What a report is made of. Whoever knows runs fills it in; whoever draws pages reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ...files import Place
from ..callback import RunInfo
from ..video.mp4 import phases_in_words
from .columns import Columns

Kind = Literal["running", "ended", "solved", "stopped", "not finite", "failed"]


@dataclass(frozen=True)
class Status:
    """How it stands with a run."""

    kind: Kind
    words: str = ""  # what there is to add

    @property
    def name(self) -> str:
        """As pages have it."""
        return "finished" if self.kind == "ended" else self.kind


@dataclass(frozen=True)
class Score:
    """One greedy evaluation."""

    step: int
    mean: float
    length: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    episodes: int | None = None


@dataclass(frozen=True)
class Clip:
    """A video on the disk."""

    place: Place
    phase: int | None = None  # whose rollout it shows, or the last of several
    first: int | None = None  # of several, where that is known


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the disk."""

    name: str
    steps: int
    score: float | None = None


@dataclass(frozen=True)
class Found:
    """What else is known of a run, from its settings and its directory."""

    usual: dict[str, Any] = field(default_factory=dict)  # the settings it would have had with no flag given
    command: str = ""  # that makes the same run again
    scores: list[Score] = field(default_factory=list)  # those that were taken after training
    clips: list[Clip] = field(default_factory=list)  # oldest first
    kept: list[Kept] = field(default_factory=list)  # newest first


@dataclass(frozen=True)
class RunRecord:
    """A run, as much of it as a page shows."""

    about: RunInfo
    columns: Columns
    status: Status
    found: Found = Found()

    @property
    def name(self) -> str:
        return "" if self.about.run_dir is None else self.about.run_dir.name

    @property
    def steps(self) -> int:
        return int(self.columns.last("step") or 0)

    def label(self, clip: Clip) -> str:
        """What a video shows, in words."""
        if clip.phase is None:
            return clip.place.path.stem
        step = self.columns["step"][self.columns["phase"] == clip.phase]
        return phases_in_words(clip.first or clip.phase, clip.phase) + (f", {step[0]:,.0f} steps" if len(step) else "")

    @property
    def scores(self) -> list[Score]:
        """All evaluations by their steps; one taken after training stands in for one in training at the same step."""
        during = {score.step: score for score in self._scores_in_training()}
        after = {score.step: score for score in self.found.scores}
        return [score for _, score in sorted((during | after).items())]

    @property
    def last_score(self) -> float | None:
        """Of the policy as it is now; None where only earlier ones were scored."""
        last = self.scores[-1] if self.scores else None
        return last.mean if last is not None and last.step >= self.steps else None

    def _scores_in_training(self) -> Iterator[Score]:
        """Rows of a metrics file from before there was more to an evaluation have its mean and length alone."""

        def at_steps(name: str) -> dict[float, float]:
            return dict(zip(*(column.tolist() for column in self.columns.curve(f"eval/{name}")), strict=True))

        length, std, low, high, episodes = map(
            at_steps, ("episodic_length", "return_std", "return_min", "return_max", "episodes")
        )
        cut_off = at_steps("cut_off")  # by the time limit, so that the mean says little
        for step, mean in at_steps("episodic_return").items():
            if cut_off.get(step):
                continue
            count = int(episodes[step]) if step in episodes else None
            yield Score(int(step), mean, length.get(step), std.get(step), low.get(step), high.get(step), count)
