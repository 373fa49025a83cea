"""The data of a report page. `training/reports.py` collects it; the modules of this package show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...errors import NotFinite, in_unit
from ...files import Place
from ...types import Settings
from ..callback import RunInfo, TrainingResult
from ..metrics import MEASURED, SCORE, Columns
from ..video.mp4 import phase_range
from .html import status_words

StatusKind = Literal["running", "ended", "solved", "stopped", "not finite", "failed"]


@dataclass(frozen=True)
class RunStatus:
    """Whether a run is running, or how it ended."""

    kind: StatusKind
    details: str = ""

    @property
    def name(self) -> str:
        """As pages show it."""
        return status_words(self.kind)


@dataclass(frozen=True)
class ScoreRecord:
    """One greedy evaluation."""

    step: int
    mean: float
    length: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    episodes: int | None = None
    measured: float | None = None  # in the task's own unit
    unit: str = ""

    @property
    def own(self) -> str:
        """Such as "11.8 rad/s"; empty if the task has no unit of its own."""
        return in_unit(self.measured, self.unit)


def mean_in_unit(scores: Sequence[ScoreRecord]) -> str:
    """The mean of some scores in the task's own unit; empty unless all of them have it."""
    measured = [score.measured for score in scores if score.measured is not None and score.unit]
    return in_unit(sum(measured) / len(measured), scores[0].unit) if measured and len(measured) == len(scores) else ""


@dataclass(frozen=True)
class VideoFile:
    place: Place
    phase: int | None = None  # the phase that it shows, or the last of several
    first: int | None = None  # the first of several, if it is known


@dataclass(frozen=True)
class CheckpointSummary:
    name: str
    steps: int
    score: float | None = None


@dataclass(frozen=True)
class RunFiles:
    """Data from the directory of a run besides its metrics."""

    usual: Settings = field(default_factory=dict)  # its settings without any flag
    command: str = ""  # trains the same run again
    scores: list[ScoreRecord] = field(default_factory=list)  # taken after training
    videos: list[VideoFile] = field(default_factory=list)  # oldest first
    checkpoints: list[CheckpointSummary] = field(default_factory=list)  # newest first
    play: object = None  # what the player of `tightrope play` needs, if it was recorded


@dataclass(frozen=True)
class RunRecord:
    """All data of a run that a page shows."""

    info: RunInfo
    columns: Columns
    status: RunStatus
    files: RunFiles = RunFiles()

    @property
    def name(self) -> str:
        return "" if self.info.run_dir is None else self.info.run_dir.name

    @property
    def steps(self) -> int:
        return int(self.columns.last("step") or 0)

    def label(self, video: VideoFile) -> str:
        """The caption of a video."""
        if video.phase is None:
            return video.place.path.stem
        if video.phase == 0:
            return "the untrained policy"
        step = self.columns["step"][self.columns["phase"] == video.phase]
        return phase_range(video.first or video.phase, video.phase) + (f", {step[0]:,.0f} steps" if len(step) else "")

    @property
    def scores(self) -> list[ScoreRecord]:
        """All evaluations by step. One taken after training replaces one in training at the same step."""
        during = {score.step: score for score in self._scores_in_training()}
        after = {score.step: score for score in self.files.scores}
        return [score for _, score in sorted((during | after).items())]

    @property
    def last_score(self) -> float | None:
        """The score of the newest policy; None if only earlier policies were scored."""
        last = self.scores[-1] if self.scores else None
        return last.mean if last is not None and last.step >= self.steps else None

    @property
    def last_error(self) -> float:
        """The standard error of that score; 0 if it is unknown."""
        last = self.scores[-1] if self.last_score is not None else None
        return (last.std or 0.0) / (last.episodes or 1) ** 0.5 if last is not None else 0.0

    def _scores_in_training(self) -> Iterator[ScoreRecord]:
        """Old metrics files have only the mean and the length."""

        def by_step(name: str) -> dict[float, float]:
            return dict(zip(*(column.tolist() for column in self.columns.curve(f"eval/{name}")), strict=True))

        numbers = [by_step(name) for name in ("episodic_length", "return_std", "return_min", "return_max")]
        measured = by_step(MEASURED.removeprefix("eval/"))
        episodes, cut_off = by_step("episodes"), by_step("cut_off")  # by the time limit: the mean is not a score
        for step, mean in by_step("episodic_return").items():
            if not cut_off.get(step):
                length, std, low, high = (found.get(step) for found in numbers)
                count = int(episodes[step]) if step in episodes else None
                own = measured.get(step), self.info.unit
                yield ScoreRecord(int(step), mean, length, std, low, high, count, *own)


def end_status(result: TrainingResult, info: RunInfo, columns: Columns) -> RunStatus:
    error = result.error
    if isinstance(error, NotFinite):
        return RunStatus("not finite", str(error))
    if isinstance(error, Exception):
        return RunStatus("failed", " ".join(f"{type(error).__name__}: {error}".split())[:500])
    if result.state.solved:
        return status_if_target_reached(columns, info.settings) or RunStatus("solved")
    return status_by_steps(result.steps, info.settings, info.run_dir)


def status_if_target_reached(columns: Columns, settings: Settings) -> RunStatus | None:
    """The status of a run in which an evaluation reached `stop_at_return`; None for others."""
    target = settings.get("stop_at_return")
    scores = columns[SCORE][~(columns["eval/cut_off"] > 0)]
    if target is None or not (scores >= target).any():
        return None
    return RunStatus("ended", f"An evaluation reached stop_at_return, {target:g}.")


def status_by_steps(steps: int, settings: Settings, run_dir: Path | None) -> RunStatus:
    """The status of a run that no longer trains: ended if no whole phase is left, otherwise stopped."""
    total, phase = settings["total_timesteps"], settings["num_envs"] * settings["num_steps"]
    if steps + phase > total:
        return RunStatus("ended")
    return RunStatus("stopped", f"after {steps:,} of {total:,} steps: `tightrope resume {run_dir}` continues")
