"""Drives an algorithm's loop: metrics, progress, evaluation and checkpoints are ordinary code between its yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from signal import SIGINT

import torch

from .. import activity
from ..algorithms import ALGORITHMS
from ..engine import State, all_reduce_max, reads_are_free, threads, unguarded, world
from ..engine.distributed import propagate_errors, set_loss_advice
from ..errors import EnvError, NotFinite, plain, warn
from ..output import print_line
from ..types import Env
from ..view import Audience, Onlooker
from ..view.sinks import check_trackers
from .audience import about, invited
from .build import settled
from .config import Config
from .crash import CrashGuard
from .directory import RunDirectory
from .evaluate import Evaluation
from .log import Log
from .plan import plan
from .scoring import Evaluations, Score, last_score, reached
from .signals import Interrupts


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    evaluations: list[tuple[int, Evaluation]]  # (steps, result) of the periodic ones
    interrupted: int | None = None  # the signal that asked training to stop
    unsaved: str | None = None  # why its end could not be saved
    score: Evaluation | None = None  # of what was learned, where it was asked for
    unscored: bool = False  # whether the signal came during that last evaluation
    last_return: float | None = None  # of sampled actions, at the end of training, where it is of the same kind


def train(
    state: State,
    config: Config,
    score_env: Env,
    run: RunDirectory | None = None,
    quiet: bool = False,
    until: int | None = None,
    guests: Sequence[Onlooker] = (),
    score: Score | None = None,
) -> Outcome:
    """Train `state` to the end of the configured plan, or until it has so many steps; with a run directory, leave
    everything about the run there. `guests` are onlookers besides those whom the settings invite. `score` is called once all is
    saved, on the first rank alone; the others do not wait for it."""
    check_trackers(config.run.log)
    quiet = quiet or not world().is_rank0
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: print_line(plain(line)))
    the_plan = plan(state, config)
    config = settled(config, state).changed(threads=the_plan.threads)
    state.solved = False  # or there would be nothing to do
    final: Evaluation | None = None
    unscored = False
    if run is not None:
        set_loss_advice(lambda: run.after_a_loss(config))
    on_device = not reads_are_free(state.env.device)  # where the host waits for what other ranks have to send
    training = activity.during("training", waits=on_device)
    with propagate_errors(), training, Interrupts() as interrupts, nullcontext() if run is None else run.opened(config):
        for line in the_plan.lines():
            say(line)
        audience = Audience([*invited(config, run, quiet), *guests] if world().is_rank0 else [])
        audience.tell("begin", about(state, config, the_plan, run))
        guard = CrashGuard(state, config, None if run is None else run.path)
        log = Log(state, audience, run, guard.late, say)
        evaluations = Evaluations(state, config, score_env, audience, interrupts, say)
        stop = 0.0
        try:
            with threads(the_plan.threads), state.streams.in_force():
                stop, steps_before = make_up_for(evaluations, log, run), state.steps
                phases = guard.over(unguarded(ALGORITHMS[config.algo].loop)(state, config.algorithm))
                for _ in phases if not (stop or state.solved) else ():
                    row = log.add(state, guard.newest)
                    activity.begin("recording a phase", waits=on_device)
                    to_score = is_due(config.run.eval_every, steps_before, state.steps)
                    due = run is not None and run.seconds_since_saving >= config.run.save_seconds
                    stop, to_save = all_ranks_do(interrupts.received or 0, due)
                    to_save = to_save or is_due(config.run.save_every, steps_before, state.steps)
                    if to_score or to_save:
                        guard.look()  # nothing bad is scored or kept
                    with log.clock_stopped():
                        audience.tell("phase", state)
                    if to_score:
                        with log.clock_stopped():
                            row |= evaluations.make()
                    steps_before, best = state.steps, evaluations.new_best()
                    log.report()
                    if run is not None and (to_save or best is not None):
                        log.report(everything=True)
                        with log.clock_stopped():
                            run.save(state, config, best)
                    stop = stop or evaluations.signal
                    if stop or state.solved or (until is not None and state.steps >= until):
                        guard.look()
                        break
        except BaseException as error:
            guard.go_back()  # to after the last whole phase
            log.forget_after(state.phase)
            log.report(everything=True)
            alone = not world().is_distributed
            stopping = interrupts.received is not None and isinstance(error, EnvError) and alone
            if run is not None and isinstance(error, Exception) and (isinstance(error, NotFinite) or alone):
                run.save(state, config)  # which a second Ctrl-C does not wait for, nor ranks to which nothing happened
                if isinstance(error, EnvError) and not stopping:
                    raise EnvError(f"{error}; {run.left(state)}") from error.__cause__
                error.add_note(run.left(state))
            if not stopping:
                raise
            warn(f"the last phase is given up, those before it are kept: {error}")  # training is to end anyway
        else:
            log.report(everything=True)
            if run is not None and (run.saved_steps != state.steps or run.trouble is not None):
                run.save(state, config)
            whole = not (stop if world().is_distributed else interrupts.received) and (
                run is None or run.trouble is None
            )
            if score is not None and whole and world().is_rank0:
                final = last_score(score, config.run.eval_episodes, state, audience, run, interrupts)
                unscored = final is None
        finally:
            log.report(everything=True)
            audience.tell("end", state)  # who keeps the trained agent finds it saved
    if state.solved:
        after, target = f"after {state.steps:,} steps", config.run.stop_at_return
        if reached(state, config):
            say(f"reached the return of {target:g} asked for {after}: an evaluation returned {state.best_score:.2f}")
        else:
            say(f"solved {after}")
    received = int(stop) if world().is_distributed else interrupts.received
    if unscored:
        received = interrupts.received or SIGINT
    trouble = None if run is None else run.trouble
    return Outcome(evaluations.made, received or None, trouble, final, unscored, comparable_return(config, log))


def all_ranks_do(*requests: float) -> list[float]:
    """What any rank requests, each the maximum over ranks: none may stop or save alone."""
    return all_reduce_max(torch.tensor(requests, dtype=torch.float64)).tolist()


def is_due(every: int, steps_before: int, steps: int) -> bool:
    """Whether a multiple of `every` steps has been passed."""
    return bool(every) and steps // every > steps_before // every


def make_up_for(evaluations: Evaluations, log: Log, run: RunDirectory | None) -> int:
    """The evaluation that was given up when the run was stopped: the same episodes now, in a row of their own. Returns the
    signal that ends it once more, or 0."""
    state, config = evaluations.state, evaluations.config
    if not state.unevaluated or not config.run.eval_every:
        state.unevaluated = False
        return 0
    with log.clock_stopped():
        metrics = evaluations.make()
    if metrics:
        log.write({"step": state.steps, "phase": state.phase, **metrics})
        if run is not None:
            run.save(state, config, evaluations.new_best())
    return evaluations.signal


def comparable_return(config: Config, log: Log) -> float | None:
    """The return at the end of training, if that is of whole episodes of the environment that scores are taken on."""
    return log.last_return if config.algorithm.whole_episodes and config.run.train_env is None else None
