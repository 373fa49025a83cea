"""The data behind a report. `training/reports.py` fills it in, the pages show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...files import Place
from ...types import Settings
from ..callback import RunInfo
from ..metrics import Columns
from ..video.mp4 import phase_range
from .html import format_setting

StatusKind = Literal["running", "ended", "solved", "stopped", "not finite", "failed"]


@dataclass(frozen=True)
class RunStatus:
    """Whether a run is under way, or how it ended."""

    kind: StatusKind
    details: str = ""

    @property
    def name(self) -> str:
        """As pages show it."""
        return "finished" if self.kind == "ended" else self.kind


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


@dataclass(frozen=True)
class VideoFile:
    place: Place
    phase: int | None = None  # the phase that it shows, or the last of several
    first: int | None = None  # the first of several, if it is known


@dataclass(frozen=True)
class CheckpointFile:
    name: str
    steps: int
    score: float | None = None


@dataclass(frozen=True)
class RunFiles:
    """What a run's settings and its directory tell."""

    usual: Settings = field(default_factory=dict)  # its settings if no flag had been given
    command: str = ""  # trains the same run again
    scores: list[ScoreRecord] = field(default_factory=list)  # taken after training
    videos: list[VideoFile] = field(default_factory=list)  # oldest first
    checkpoints: list[CheckpointFile] = field(default_factory=list)  # newest first


@dataclass(frozen=True)
class RunRecord:
    """Everything that a page shows of a run."""

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
        """What a video shows, as text."""
        if video.phase is None:
            return video.place.path.stem
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

    def _scores_in_training(self) -> Iterator[ScoreRecord]:
        """Old metrics files have only the mean and the length."""

        def by_step(name: str) -> dict[float, float]:
            return dict(zip(*(column.tolist() for column in self.columns.curve(f"eval/{name}")), strict=True))

        names = ("episodic_length", "return_std", "return_min", "return_max", "episodes")
        length, std, low, high, episodes = map(by_step, names)
        cut_off = by_step("cut_off")  # by the time limit: the mean is not a score
        for step, mean in by_step("episodic_return").items():
            if cut_off.get(step):
                continue
            count = int(episodes[step]) if step in episodes else None
            yield ScoreRecord(int(step), mean, length.get(step), std.get(step), low.get(step), high.get(step), count)


# settings that do not change what is learned, besides the seed
IGNORED = {
    "seed", "device", "threads", "accelerate", "save_seconds", "save_every", "keep_checkpoints", "rank_timeout", "eval_every",
    "eval_episodes", "eval_envs", "eval_seconds",
    "video_every", "log", "project", "entity", "run_name", "watch", "tags",
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    number: int  # decides its colour
    runs: list[RunRecord]

    @property
    def settings(self) -> Settings:
        return self.runs[0].info.settings


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Groups in the order of the runs, each named by the settings in which it differs."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        relevant = {name: value for name, value in run.info.settings.items() if name not in IGNORED}
        found.setdefault(json.dumps(relevant, sort_keys=True, default=str), []).append(run)
    for members in found.values():
        members.sort(key=lambda run: str(run.info.settings.get("seed")).zfill(20))
    kinds = [members[0].info.settings for members in found.values()]
    return [Group(group_label(kinds[i], kinds), i, members) for i, members in enumerate(found.values())]


def differing_settings(kinds: Sequence[Settings]) -> list[str]:
    """Settings that all of them have, with different values."""
    names = [name for name in kinds[0] if name not in IGNORED and all(name in kind for kind in kinds)]
    return [name for name in names if any(kind[name] != kinds[0][name] for kind in kinds)]


def group_label(kind: Settings, kinds: Sequence[Settings]) -> str:
    algo = str(kind.get("algo"))
    alike = [other for other in kinds if other.get("algo") == kind.get("algo")]
    words = [f"{name} {format_setting(kind[name])}" for name in differing_settings(alike)]
    if len(alike) < len(kinds) or not words:
        words.insert(0, algo)
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "")
