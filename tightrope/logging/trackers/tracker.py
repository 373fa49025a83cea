"""The base of trackers: a thread between a tracker and training, names of scalars, histograms, and the id of the run.

A tracker says what to do when a run starts (`open`), with numbers, histograms and files, and when it ends (`close`). All of
that happens on its own thread, in order. Training itself only appends rows to a list.

Histograms are made from copies: no hooks in the network, no waiting for the device. The gradient is that of the phase's last
minibatch, as the optimizer left it. Autograd hooks would miss gradients that recordings or kernels compute.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from ...files import Place, Unreadable
from ...types import Settings
from ..callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from .delivery import DeliveryThread, client_random

Ending = Literal["finished", "stopped", "failed"]
TrackerTags = Literal["tightrope", "sb3"]
Scalars = dict[str, float]

IDS_FILE, MAX_IDS_BYTES = "trackers.json", 10_000
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
MAX_HISTOGRAMS = 100  # of a tensor, in a run
MIN_PHASES_BETWEEN = 10  # between two of them
_ids_lock = threading.Lock()  # each tracker writes from its own thread

SB3: dict[str, tuple[str, float]] = {  # our name: (Stable-Baselines3's name, factor)
    "charts/episodic_return": ("rollout/ep_rew_mean", 1),
    "charts/episodic_length": ("rollout/ep_len_mean", 1),
    "charts/learning_rate": ("train/learning_rate", 1),
    "charts/clip_coef": ("train/clip_range", 1),
    "charts/SPS": ("time/fps", 1),
    "losses/total_loss": ("train/loss", 1),
    "losses/policy_loss": ("train/policy_gradient_loss", 1),
    "losses/objective": ("train/policy_loss", -1),  # VPG's, like A2C's
    "losses/value_loss": ("train/value_loss", 2),  # theirs has no factor 1/2
    "losses/entropy": ("train/entropy_loss", -1),
    "losses/approx_kl": ("train/approx_kl", 1),
    "losses/clipfrac": ("train/clip_fraction", 1),
    "losses/explained_variance": ("train/explained_variance", 1),
    "eval/episodic_return": ("eval/mean_reward", 1),
    "eval/episodic_length": ("eval/mean_ep_length", 1),
    "phase": ("time/iterations", 1),
    "time": ("time/time_elapsed", 1),
}


@dataclass(frozen=True)
class TrackerOptions:
    """The settings of trackers."""

    project: str | None = None
    entity: str | None = None
    run_name: str | None = None
    watch: bool = False
    tags: TrackerTags = "tightrope"
    say: Callable[[str], None] = print  # prints a line for the user


class Tracker(Callback):
    """The base of all trackers. A subclass implements the abstract methods, which run on the tracker's own thread."""

    may_fail = True
    package: ClassVar[str]  # what has to be installed; the extra of that name installs it

    def __init__(self, options: TrackerOptions) -> None:
        self.options = options

    # called by training, on its thread ---------------------------------------------------------------------------------

    def on_start(self, run: RunInfo) -> None:
        self.info = run
        self.schedule = HistogramSchedule(run.steps, run.total_steps) if self.options.watch else None
        client_random.install()
        self.delivery = DeliveryThread(self.package)
        self.delivery.add(self.open)

    def on_update(self, state: StateView) -> None:
        if self.schedule is not None and self.schedule.is_due(state.steps, state.phase):
            copy, step, phase = ParameterCopy(state), state.steps, state.phase
            self.delivery.add(lambda: self.histograms(copy.values(), step, phase))

    def on_phase(self, row: MetricsRow) -> None:
        seconds = time.time()
        self.delivery.add(lambda: self.scalars(self.named(row), row["step"], row["phase"], seconds))

    def on_video(self, path: Path, step: int) -> None:
        self.delivery.add(partial(self.video, path, step))

    def on_end(self, result: TrainingResult) -> None:
        state = result.state
        if result.score is not None:
            row = self.named({"step": state.steps, **result.score.metrics})
            numbers = {tag: x for tag, x in row.items() if tag.startswith("eval/")}
            self.delivery.add(partial(self.scalars, numbers, state.steps, math.inf, time.time()))
        complete = state.solved or state.steps >= self.info.total_steps
        ending: Ending = "failed" if result.error else "finished" if complete else "stopped"
        self.delivery.add(partial(self.close, ending, newest_checkpoint(self.info.run_dir)))
        self.delivery.close()

    # done by a tracker, on its own thread ------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> None:
        """Start a run of the tracker, or continue one. `self.info` describes it."""

    @abstractmethod
    def scalars(self, numbers: Scalars, step: int, phase: float, seconds: float) -> None:
        """The metrics of a phase, and the time at which they were known. The score of the trained agent comes last, with an
        infinite phase; its step has metrics already."""

    @abstractmethod
    def histograms(self, values: dict[str, np.ndarray], step: int, phase: int) -> None:
        """Parameters and gradients after a phase, by name, flat and finite."""

    @abstractmethod
    def video(self, path: Path, step: int) -> None:
        """A video has been written."""

    @abstractmethod
    def close(self, ending: Ending, model: Path | None) -> None:
        """The run has ended; `model` is the directory of its newest checkpoint."""

    # shared ------------------------------------------------------------------------------------------------------------

    def named(self, row: MetricsRow) -> Scalars:
        return named_scalars(row, self.options.tags)

    @property
    def run_name(self) -> str:
        """The setting, or the name of the run's directory, or the name that a directory would have."""
        if self.options.run_name is not None:
            return self.options.run_name
        if self.info.run_dir is not None:
            return self.info.run_dir.name
        env, algo, seed = (self.info.settings[name] for name in ("env", "algo", "seed"))
        return f"{env.replace('/', '-')}__{algo}__{seed}__{time.strftime('%Y%m%d-%H%M%S')}"

    @property
    def parameters(self) -> Settings:
        """Settings and facts of the run, in one flat mapping."""
        return {**self.info.settings, **{f"facts/{name}": fact_value(fact) for name, fact in self.info.facts.items()}}


def fact_value(fact: str) -> int | str:
    """2531 for 2,531: trackers sort by it."""
    digits = fact.replace(",", "")
    return int(digits) if digits.isdigit() else fact


def named_scalars(row: MetricsRow, tags: TrackerTags) -> Scalars:
    """The finite scalars of a row of metrics, under our names or Stable-Baselines3's. Where SB3 means another number by a name,
    the number is converted. Scalars that SB3 does not have keep our names."""
    ours = {tag: float(x) for tag, x in row.items() if tag != "step" and math.isfinite(x)}
    if tags == "tightrope":
        return ours
    theirs = {tag: SB3.get(tag, (tag, 1)) for tag in ours}
    named = {name: factor * ours[tag] for tag, (name, factor) in theirs.items()}
    return named | {"time/total_timesteps": float(row["step"])}


def saved_ids(run_dir: Path | None) -> dict[str, str]:
    """Read the id of this run in each tracker from RUN/trackers.json, so that a resumed run continues there. Anything in the
    file that is not an id is ignored."""
    try:
        found = {} if run_dir is None else json.loads((Place(run_dir) / IDS_FILE).read(MAX_IDS_BYTES))
        return {k: v for k, v in found.items() if isinstance(v, str) and RUN_ID.fullmatch(v)}
    except (Unreadable, ValueError, AttributeError, RecursionError):
        return {}


def save_id(run_dir: Path | None, tracker: str, run_id: str) -> None:
    """Write an id into RUN/trackers.json, atomically."""
    if run_dir is None:
        return
    with _ids_lock:
        content = json.dumps(saved_ids(run_dir) | {tracker: run_id}, indent=1, sort_keys=True) + "\n"
        (Place(run_dir) / IDS_FILE).write(content.encode())


def newest_checkpoint(run_dir: Path | None) -> Path | None:
    """The directory that checkpoints/latest points to."""
    if run_dir is None:
        return None
    checkpoints = Place(run_dir) / "checkpoints"
    try:
        folder = checkpoints / str(json.loads((checkpoints / "latest").read())["checkpoint"])
    except (Unreadable, ValueError, KeyError, TypeError, RecursionError):
        return None
    return folder.path if folder.is_dir() else None


def model_files(checkpoint: Path) -> dict[str, Path]:
    """The files that a tracker keeps, by name: a run's settings and one checkpoint, which can be loaded as a run after a
    download. Symbolic links are left out."""
    run = Place(checkpoint.parents[1])
    folder = run / "checkpoints" / checkpoint.name
    files = {f"checkpoints/{folder.name}/{name}": folder / name for name in folder.names()}
    files["config.yaml"] = run / "config.yaml"
    return {name: place.path for name, place in files.items() if place.is_file()}


# histograms -----------------------------------------------------------------------------------------------------------


class HistogramSchedule:
    """When histograms are due: after the first phase, then every `MIN_PHASES_BETWEEN` phases or less often."""

    def __init__(self, steps: int, total_steps: int) -> None:
        self.every = max(1, (total_steps - steps) // MAX_HISTOGRAMS)
        self.next_steps, self.next_phase = steps, 0

    def is_due(self, steps: int, phase: int) -> bool:
        if steps < self.next_steps or phase < self.next_phase:
            return False
        self.next_steps, self.next_phase = steps + self.every, phase + MIN_PHASES_BETWEEN
        return True


class ParameterCopy:
    """A copy of parameters and gradients, on its way to the host."""

    def __init__(self, state: StateView) -> None:
        optimizer = state.optimizer
        names = {id(p): name for name, p in state.policy.named_parameters()}
        self.layout = [(names[id(p)], p.numel()) for p in optimizer.parameters]
        self.numbers, self.arrival = torch.stack([optimizer.flat.detach(), optimizer.grad]), None
        if self.numbers.is_cuda:
            on_device = self.numbers
            self.numbers = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            self.numbers.copy_(on_device, non_blocking=True)
            self.arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrival.record(torch.cuda.current_stream(on_device.device))

    def values(self) -> dict[str, np.ndarray]:
        """Finite numbers by name, such as parameters/actor.0.weight. It waits for the device, so the training thread must not
        call it."""
        if self.arrival is not None:
            self.arrival.synchronize()
        found = {}
        for kind, row in zip(("parameters", "gradients"), self.numbers.cpu().numpy().astype(np.float64), strict=True):
            offset = 0
            for name, size in self.layout:
                part = row[offset : offset + size]
                found[f"{kind}/{name}"] = part[np.isfinite(part)]
                offset += size
        return found
