"""Run an algorithm's loop, and between its phases write metrics, call callbacks, evaluate and save checkpoints."""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from signal import SIGINT

import torch

from .. import activity
from ..algorithms import ALGORITHMS
from ..engine import State, all_reduce_max, threads, unguarded, world
from ..engine.distributed import propagate_errors, set_lost_rank_advice
from ..envs.adapters.host import HostEnv
from ..envs.with_memory import without_memory
from ..errors import EnvError, NotFinite, printable, warn
from ..logging import Callback, CallbackList, ConsoleLogger, ReportWriter, RunInfo, TrainingResult
from ..logging.trackers import TRACKERS, TrackerOptions, check_trackers
from ..output import print_line
from ..types import Env
from ..version import __version__
from .build import resolved, traits_of
from .config import Config
from .evaluate import Evaluation
from .films import video_callback
from .nonfinite import NonFiniteGuard
from .own_code import short_name
from .plan import TrainingPlan, plan, reached, target_of
from .reports import files_in
from .run_directory import RunDirectory
from .schedules import change_lines
from .scoring import Evaluations, Log, Score, last_score, run_missed_evaluation
from .signals import Interrupted, Interrupts


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    evaluations: list[tuple[int, Evaluation]]  # (steps, result) of those during training
    interrupted: int | None = None  # the signal that stopped training
    unsaved: str | None = None  # why the end of training could not be saved
    score: Evaluation | None = None  # of the trained agent, if one was requested
    unscored: bool = False  # whether the signal interrupted this score
    # mean return of sampled actions at the end of training, if comparable with the score
    last_return: float | None = None


class Trainer:
    """Trains `state` to the end of the plan, or until it has `until` steps. Metrics, checkpoints and reports go to the run
    directory, if there is one. `callbacks` are added to those that the settings imply. `score` is called on rank 0 once
    everything is saved; other ranks do not wait for it."""

    def __init__(
        self, state: State, config: Config, score_env: Env, run: RunDirectory | None = None, quiet: bool = False,
        until: int | None = None, callbacks: Sequence[Callback] = (), score: Score | None = None,
        runs_user_code: bool = False, report: bool = True,
    ) -> None:  # fmt: skip
        """`runs_user_code`: between phases. It then gets its own random streams and complete rows of metrics. `report`: whether
        to write report.html."""
        check_trackers(config.run.log)
        self.state, self.score_env, self.run, self.until, self.score = state, score_env, run, until, score
        self.runs_user_code, self.quiet, self.reports = runs_user_code, quiet or not world().is_rank0, report
        self.plan = plan(state, config)
        self.config = resolved(config, state).changed(threads=self.plan.threads)
        self.own_callbacks = [each for each in callbacks if world().is_rank0 or each.every_rank]
        self.settings_unsaved = False
        self.stop = 0.0  # the signal, to any rank, that ends training; 0 for none
        self.final: Evaluation | None = None
        self.unscored = False
        self.outcome = Outcome([])

    def say(self, line: str) -> None:
        if not self.quiet:
            print_line(printable(line))

    def change(self, config: Config) -> None:
        """Use other settings from the next phase on."""
        self.config = self.evaluations.config = self.guard.config = config
        self.settings_unsaved = True
        if self.run is not None:
            self.run.write_config(config)

    def phases(self) -> Generator[dict[str, float]]:
        """Train, and yield the metrics of each phase. If the caller leaves the loop, the run is saved and can be resumed."""
        state, config, run = self.state, self.config, self.run
        state.solved = False  # otherwise the loop would end at once
        if run is not None:
            set_lost_rank_advice(lambda: run.lost_rank_advice(config))
        self.on_device = state.runtime.on_device  # there the host waits for data of other ranks
        training = activity.during("training", waits=self.on_device)
        opened = nullcontext() if run is None else run.opened(config)
        with propagate_errors(), training, Interrupts() as self.interrupts, opened:
            self._start()
            error: BaseException | None = None
            try:
                with threads(self.plan.threads), state.streams.activated():
                    yield from self._loop()
            except GeneratorExit:
                self.log.report(everything=True)
                self.guard.check_metrics()
                self._save_the_end()
                raise
            except BaseException as broken:
                error = broken
                self._after_an_error(broken)
            else:
                self.log.report(everything=True)
                self._save_the_end()
                self._score_the_end()
            finally:
                self.log.report(everything=True)
                self.callbacks.call("on_end", TrainingResult(state, error, self.callbacks.stopped, self.final))
        self._say_the_end()
        self.outcome = self._outcome()

    def _start(self) -> None:
        for line in self.plan.lines():
            self.say(line)
        self.callbacks = CallbackList()
        if world().is_rank0:
            self.callbacks.add(built_in_callbacks(self))
        self.callbacks.add(self.own_callbacks)
        self.callbacks.call("on_start", run_info(self.state, self.config, self.plan, self.run))
        state, config = self.state, self.config
        self.guard = NonFiniteGuard(state, config, None if self.run is None else self.run.path)
        self.log = Log(state, self.callbacks, self.run, self.guard.late, self.say)
        self.evaluations = Evaluations(state, config, self.score_env, self.callbacks, self.interrupts, self.say)

    def _loop(self) -> Iterator[dict[str, float]]:
        """Run phases; after each, write metrics, call callbacks, evaluate and save as due."""
        state, run, log = self.state, self.run, self.log
        takes_over = state.phase == 0 and self.config.run.init_from is not None
        if run is not None and (takes_over or any(change.step == state.steps for change in self.config.changes)):
            self._save()  # from here on the run needs neither the other run nor the flags that changed it
        self.stop, steps_before = run_missed_evaluation(self.evaluations, log, run), state.steps
        stopped = self.callbacks.stopped is not None
        for _ in self._run_phases() if not (self.stop or state.solved or stopped) else ():
            config = self.config
            row = log.add(state, self.guard.newest, config.algorithm.total_loss)
            row |= config.algorithm.varying(steps_before)
            activity.begin("recording a phase", waits=self.on_device)
            to_score = is_due(config.run.eval_every, steps_before, state.steps)
            due = run is not None and run.seconds_since_saving >= config.run.save_seconds
            requests = self.interrupts.received or 0, due, self.callbacks.stopped is not None
            # ranks stop and save together
            self.stop, to_save, stopped_by_callback = all_reduce_max(
                torch.tensor(requests, dtype=torch.float64)
            ).tolist()
            stopped = bool(stopped_by_callback)
            to_save = to_save or is_due(config.run.save_every, steps_before, state.steps)
            if to_score or to_save or self.runs_user_code:
                self.guard.check_metrics()  # a phase with non-finite numbers is not evaluated, saved or shown
            with log.clock_stopped():
                self.callbacks.call("on_update", state)
            if to_score:
                with log.clock_stopped():
                    row |= self.evaluations.make()
            steps_before, best = state.steps, self.evaluations.new_best()
            log.report(everything=self.runs_user_code)
            if run is not None and (to_save or best is not None):
                log.report(everything=True)
                with log.clock_stopped():
                    self._save(best)
            self.stop = self.stop or self.evaluations.signal
            if not self.stop:
                yield from self._handed_out(row)
            if not world().is_distributed:  # several ranks stop together, after the next phase
                self.stop, stopped = self.stop or self.interrupts.received or 0, self.callbacks.stopped is not None
            if self.stop or stopped or state.solved or (self.until is not None and state.steps >= self.until):
                self.guard.check_metrics()
                break

    def _run_phases(self) -> Iterator[None]:
        """Yield after each phase. Changed settings restart the algorithm's loop, which keeps nothing outside the state."""
        while True:
            config = self.config
            phases = self.guard.watch(unguarded(ALGORITHMS[config.algo].loop)(self.state, config.algorithm))
            for _ in phases:
                yield
                if self.config is not config:
                    self.guard.check_metrics()
                    break
            else:
                return

    def _handed_out(self, row: dict[str, float]) -> Iterator[dict[str, float]]:
        """Yield a row to user code between two phases, in which a signal raises as usual."""
        if not self.runs_user_code:
            yield row
            return
        outside = self.log.clock_stopped(), self.state.streams.suspended(), activity.during(activity.OUTSIDE)
        with outside[0], outside[1], outside[2], suppress(Interrupted), self.interrupts.raised():
            yield row

    def _save(self, best: float | None = None) -> None:
        assert self.run is not None
        self.run.save(self.state, self.config, best)
        self.settings_unsaved = False

    def _save_the_end(self) -> None:
        run = self.run
        if run is None:
            return
        if run.saved_steps != self.state.steps or run.trouble is not None or self.settings_unsaved:
            self._save()

    def _after_an_error(self, error: BaseException) -> None:
        """Restore the state after the last complete phase and save it. Raises the error again, unless a signal has already
        requested the end of training."""
        state, run, log = self.state, self.run, self.log
        self.guard.rollback_unfinished_phase()
        log.forget_after(state.phase)
        log.report(everything=True)
        alone = not world().is_distributed
        stopping = self.interrupts.received is not None and isinstance(error, EnvError) and alone
        if run is not None and isinstance(error, Exception) and (isinstance(error, NotFinite) or alone):
            self._save()  # not after a second Ctrl-C, and not if one of several ranks fails alone
            if isinstance(error, EnvError) and not stopping:
                raise EnvError(f"{error}; {run.left(state)}") from error.__cause__
            error.add_note(run.left(state))
        if not stopping:
            raise error
        warn(f"the last phase is lost, earlier phases are kept: {error}")

    def _score_the_end(self) -> None:
        run = self.run
        received = self.stop if world().is_distributed else self.interrupts.received
        if self.score is None or received or not world().is_rank0 or (run is not None and run.trouble is not None):
            return
        episodes = self.config.run.eval_episodes
        self.final = last_score(self.score, episodes, self.state, self.callbacks, run, self.interrupts)
        self.unscored = self.final is None

    def _say_the_end(self) -> None:
        state, target, after = self.state, self.config.run.stop_at_return, f"after {self.state.steps:,} steps"
        if self.callbacks.stopped is not None:
            self.say(f"stopped {after}: {self.callbacks.stopped}")
        elif state.solved and reached(state, self.config):
            self.say(f"reached stop_at_return {target:g} {after}: an evaluation returned {state.best_score:.2f}")
        elif state.solved:
            self.say(f"solved {after}")

    def _outcome(self) -> Outcome:
        received = int(self.stop) if world().is_distributed else self.interrupts.received
        if self.unscored:
            received = self.interrupts.received or SIGINT
        trouble = None if self.run is None else self.run.trouble
        # comparable: complete episodes, in the environment of the score
        comparable = not self.config.algorithm.by_trajectory and self.config.run.train_env is None
        last_return = self.log.last_return if comparable else None
        return Outcome(self.evaluations.made, received or None, trouble, self.final, self.unscored, last_return)


def built_in_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks that the settings of a run imply: videos, the progress line, trackers and the report."""
    run, config, made = trainer.run, trainer.config, list[Callback]()
    settings = config.run
    if run is not None and settings.video_every != 0:  # first: other callbacks are told of its videos
        folder, told = run.path / "videos", partial(trainer.callbacks.call, "on_video")
        state, env = trainer.state, trainer.score_env
        made.append(video_callback(state, env, folder, settings.video_every, told, trainer.say))
    if not trainer.quiet:
        made.append(ConsoleLogger())
    names = settings.project, settings.entity, settings.run_name
    options = TrackerOptions(*names, settings.watch, settings.tags, trainer.say)
    made += [TRACKERS[name](options) for name in dict.fromkeys(settings.log)]
    if run is not None and trainer.reports:  # last: it shows the results of the others
        made.append(ReportWriter(lambda run_dir: files_in(run_dir, config)))
    return made


def is_due(every: int, steps_before: int, steps: int) -> bool:
    """Whether a multiple of `every` lies between `steps_before` and `steps`."""
    return bool(every) and steps // every > steps_before // every


def run_info(state: State, config: Config, plan: TrainingPlan, run: RunDirectory | None) -> RunInfo:
    """The description of a run that callbacks get before it starts or resumes."""
    env, device = without_memory(state.env), state.env.device
    facts = {
        "tightrope": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device} ({platform.machine()})",
        "parameters": f"{plan.parameters:,}",
    }  # fmt: skip
    return RunInfo(
        title=printable(f"{short_name(config.env)} {config.algo}"), settings=config.to_flat_dict(),
        plan=[*plan.lines(), *change_lines(config.changes)],
        steps=state.steps, total_steps=state.steps + plan.steps, run_dir=None if run is None else run.path, facts=facts,
        steps_taken=(lambda: env.steps_taken * world().size) if isinstance(env, HostEnv) else None,
        target=target_of(config, env), traits=asdict(traits_of(env)), unit=getattr(env, "unit", ""),
    )  # fmt: skip
