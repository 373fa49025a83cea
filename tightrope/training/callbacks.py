"""The callbacks that a run's settings imply, what all callbacks are told at the start, and the rows of metrics."""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch

from ..engine import State, world
from ..engine.metrics import Reading
from ..envs.adapters.host import HostEnv
from ..envs.training_warnings import STEPS_WITHOUT_END, endless_warning, find_action_mask, mask_in_info, mask_warning
from ..errors import UsageError, printable
from ..logging import Callback, CallbackList, ConsoleLogger, ReportWriter, RolloutVideo, RunInfo
from ..logging.trackers import TRACKERS, TrackerOptions
from ..output import print_line
from ..version import __version__
from .build import traits_of
from .config import Config
from .plan import TrainingPlan, target_of
from .reports import files_in
from .run_directory import RunDirectory
from .user_objects import short_name

ENOUGH = 20  # episodes whose mean return is that at the end of training
AT_THE_END = 0.1  # of the steps so far


def check_callbacks(callbacks: object) -> None:
    """Refuse what is no list of callbacks, such as a function or a class."""
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(each, Callback) for each in callbacks):
        raise UsageError(f"callbacks {callbacks!r} is invalid: give a list of tr.Callback objects")


def built_in_callbacks(
    config: Config, run: RunDirectory | None, quiet: bool, call: Callable[..., None]
) -> list[Callback]:
    """Videos, the progress line, trackers and the report. `call` tells all callbacks of a video."""
    made: list[Callback] = []
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: print_line(printable(line)))
    settings = config.run
    if run is not None and settings.video_every != 0:  # first: others are told what it has written
        made.append(RolloutVideo(run.path / "videos", settings.video_every, partial(call, "on_video"), say))
    if not quiet:
        made.append(ConsoleLogger())
    names = settings.project, settings.entity, settings.run_name
    options = TrackerOptions(*names, settings.watch, settings.tags, say)
    made += [TRACKERS[name](options) for name in dict.fromkeys(settings.log)]
    if run is not None:  # last: it shows what others have made
        made.append(ReportWriter(lambda run_dir: files_in(run_dir, config)))
    return made


def run_info(state: State, config: Config, plan: TrainingPlan, run: RunDirectory | None) -> RunInfo:
    """What there is to know of a run before it starts, or goes on."""
    env, device = state.env, state.env.device
    facts = {
        "tightrope": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} ({platform.machine()})",
        "parameters": f"{plan.parameters:,}",
    }  # fmt: skip
    return RunInfo(
        title=printable(f"{short_name(config.env)} {config.algo}"), settings=config.flat(), plan=plan.lines(),
        steps=state.steps, total_steps=state.steps + plan.steps, run_dir=None if run is None else run.path, facts=facts,
        steps_taken=(lambda: env.steps_taken * world().size) if isinstance(env, HostEnv) else None,
        target=target_of(config, env), traits=asdict(traits_of(env)),
    )  # fmt: skip


class Log:
    """Writes a row of metrics for each phase to the metrics file and the callbacks. A phase's metrics are read once the device
    has the next phase to do, so that nobody waits."""

    def __init__(
        self, state: State, callbacks: CallbackList, run: RunDirectory | None, late: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        self.callbacks, self.run, self.say, self.late = callbacks, run, say, late  # late: in phases
        self.endless = endless_warning(state.env)  # to be said if no episode ends for long
        self.unmasked = None if find_action_mask(state.env) else state.env  # whose answers may yet show masks
        self.num_envs = state.env.num_envs * world().size
        self.unread: list[tuple[dict[str, float], Reading]] = []
        self.began, self.seconds_before, self.steps_before = time.perf_counter(), state.seconds, state.steps
        self.recent: deque[tuple[int, float, float]] = deque()  # steps, episodes, sum of their returns, by phase
        self.stopped = 0.0  # seconds of evaluation and saving, which are not training

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def add(self, state: State, reading: Reading) -> dict[str, float]:
        """Begin the row of the phase that was just started; other columns may be added."""
        row: dict[str, float] = {"step": state.steps, "phase": state.phase}
        self.unread.append((row, reading))
        state.seconds = self.seconds_before + self.elapsed
        return row

    def forget_after(self, phase: int) -> None:
        """Drop phases that were undone."""
        self.unread = [(row, reading) for row, reading in self.unread if row["phase"] <= phase]

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """What happens inside does not count as training."""
        began = time.perf_counter()
        yield
        self.stopped += time.perf_counter() - began

    def report(self, everything: bool = False) -> None:
        """Write the rows that are there by now, or all of them."""
        while len(self.unread) > (0 if everything else self.late):
            row, reading = self.unread.pop(0)
            row |= reading.row()
            row["charts/SPS"] = (row["step"] - self.steps_before) / (self.elapsed - self.stopped)
            step, episodes = int(row["step"]), row["charts/episodes"]
            self.recent.append((step, episodes, episodes * row.get("charts/episodic_return", 0.0)))
            while self.recent[0][0] < (1 - AT_THE_END) * step:
                self.recent.popleft()
            self._warn(step, episodes)
            self.write(row)

    def _warn(self, step: int, episodes: float) -> None:
        """Say once that no episode has ended for long, and that answers to steps have action masks."""
        endless = step - self.steps_before >= STEPS_WITHOUT_END * self.num_envs
        if self.endless is not None and (episodes or endless):
            if not episodes:
                self.say(f"note: {self.endless}")
            self.endless = None
        if self.unmasked is not None and (where := mask_in_info(self.unmasked)):
            self.say(f"note: {mask_warning(self.unmasked, where)}")
            self.unmasked = None

    def write(self, row: dict[str, float]) -> None:
        """To the metrics file and the callbacks."""
        row["time"] = self.seconds_before + self.elapsed
        if self.run is not None:
            self.run.log(row)
        self.callbacks.call("on_phase", row)

    @property
    def last_return(self) -> float | None:
        """The mean return of episodes that ended in the last tenth of training; None where they were few."""
        episodes = sum(count for _, count, _ in self.recent)
        return sum(total for _, _, total in self.recent) / episodes if episodes >= ENOUGH else None
