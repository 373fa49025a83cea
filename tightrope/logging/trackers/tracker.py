"""What trackers have in common: a thread of their own between them and training.

A tracker says what to do when a run begins (`open`), with numbers, histograms and files, and when it ends (`close`). All of
that happens on its thread, in order. What training does itself is to put a row of numbers on a list.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...files import Place, Unreadable
from ..callback import Callback, RunInfo, StateView, TrainingResult
from .courier import Courier
from .randomness import apart
from .tags import Scalars, TrackerTags, naming
from .watch import Histogram, Look, Watch

Ending = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrackerOptions:
    """What a tracker is asked for."""

    project: str | None = None
    entity: str | None = None
    run_name: str | None = None
    watch: bool = False
    tags: TrackerTags = "tightrope"
    say: Callable[[str], None] = print  # a line for the user


class Tracker(Callback):
    may_fail = True
    package: ClassVar[str]  # what has to be installed; the extra of that name installs it

    def __init__(self, options: TrackerOptions) -> None:
        self.options = options

    # what training calls, on its own thread ----------------------------------------------------------------------------

    def on_start(self, about: RunInfo) -> None:
        self.about = about
        self.named = naming(self.options.tags, about.settings)
        self.watch = Watch(about.steps, about.total_steps) if self.options.watch else None
        apart.begin()
        self.courier = Courier(self.package)
        self.courier.hand(self.open)

    def on_update(self, state: StateView) -> None:
        if self.watch is not None and self.watch.is_due(state.steps, state.phase):
            look, step, phase = Look(state), state.steps, state.phase
            self.courier.hand(lambda: self.histograms(look.histograms(), step, phase))

    def on_phase(self, row: dict[str, Any]) -> None:
        self.courier.hand(partial(self.scalars, row, time.time()))

    def on_video(self, path: Path, step: int) -> None:
        self.courier.hand(partial(self.film, path, step))

    def on_end(self, result: TrainingResult) -> None:
        state = result.state
        if result.score is not None:
            row = self.named({"step": state.steps, **result.score.metrics})
            numbers = {tag: x for tag, x in row.items() if tag.startswith("eval/")}
            self.courier.hand(partial(self.score, numbers, state.steps, time.time()))
        complete = state.solved or state.steps >= self.about.total_steps
        ending: Ending = "failed" if result.error else "finished" if complete else "stopped"
        model = newest_checkpoint(self.about.run_dir)
        self.courier.hand(partial(self.close, ending, model))
        self.courier.close()

    # what a tracker does, on its own -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> None:
        """Begin a run of the tracker's, or go on with one; `self.about` says what there is to know."""

    @abstractmethod
    def scalars(self, row: dict[str, Any], seconds: float) -> None:
        """The numbers of a phase, and when they were known."""

    @abstractmethod
    def score(self, numbers: Scalars, step: int, seconds: float) -> None:
        """What the trained agent scored, at a step whose numbers are there already."""

    @abstractmethod
    def histograms(self, found: dict[str, Histogram], step: int, phase: int) -> None:
        """Parameters and gradients after a phase."""

    @abstractmethod
    def film(self, path: Path, step: int) -> None:
        """A video has been written."""

    @abstractmethod
    def close(self, ending: Ending, model: Path | None) -> None:
        """The run has ended; `model` is the folder of its newest checkpoint."""

    # what they share ---------------------------------------------------------------------------------------------------

    @property
    def run_name(self) -> str:
        """As asked for, or like the run's directory, or like one it would have had."""
        if self.options.run_name is not None:
            return self.options.run_name
        if self.about.run_dir is not None:
            return self.about.run_dir.name
        env, algo, seed = (self.about.settings[name] for name in ("env", "algo", "seed"))
        return f"{env.replace('/', '-')}__{algo}__{seed}__{time.strftime('%Y%m%d-%H%M%S')}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings and facts of the run, in one flat mapping."""
        facts = {f"facts/{name}": number(fact) for name, fact in self.about.facts.items()}
        return {**self.about.settings, **facts}


def number(fact: str) -> int | str:
    """2531 for 2,531: trackers sort by it."""
    digits = fact.replace(",", "")
    return int(digits) if digits.isdigit() else fact


def newest_checkpoint(run_dir: Path | None) -> Path | None:
    """The folder that the run's pointer names."""
    if run_dir is None:
        return None
    checkpoints = Place(run_dir) / "checkpoints"
    try:
        folder = checkpoints / str(json.loads((checkpoints / "latest").read())["checkpoint"])
    except (Unreadable, ValueError, KeyError, TypeError, RecursionError):
        return None
    return folder.path if folder.is_dir() else None


def model_files(checkpoint: Path) -> dict[str, Path]:
    """What a tracker keeps of a run, by the names under which it can be loaded from wherever it was downloaded to: a run's
    settings and one checkpoint under its own name. A link in their place is left out."""
    run = Place(checkpoint.parents[1])
    folder = run / "checkpoints" / checkpoint.name
    files = {f"checkpoints/{folder.name}/{name}": folder / name for name in folder.names()}
    return {
        name: place.path for name, place in {"config.yaml": run / "config.yaml", **files}.items() if place.is_file()
    }
