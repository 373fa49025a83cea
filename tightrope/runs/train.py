"""Drives an algorithm's loop: metrics, progress, evaluation and checkpoints are ordinary code between its yields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from signal import SIGINT

from ..algorithms import ALGORITHMS
from ..engine import Agreement, State, stream_seed, threads, world
from ..engine.ranks import told_by_first, watched, when_one_is_lost
from ..errors import EnvError, NotFinite
from ..types import Env
from ..view import Audience, Onlooker
from ..view.sinks import check_trackers
from .audience import about, invited
from .build import settled
from .config import Config
from .crash import Guard, lateness
from .directory import RunDirectory
from .evaluate import Evaluation, evaluate
from .last_score import Score, last_score
from .log import Log
from .plan import plan
from .signals import Interrupts


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    evaluations: list[tuple[int, Evaluation]]  # (steps, result) of the periodic ones
    interrupted: int | None = None  # the signal that asked training to stop
    unsaved: str | None = None  # why its end could not be saved
    score: Evaluation | None = None  # of what was learned, where it was asked for
    unscored: bool = False  # whether the signal came during that last evaluation


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
    quiet = quiet or not world().is_first
    the_plan = plan(state, config)
    config = settled(config, state).changed(threads=the_plan.threads)
    evaluations: list[tuple[int, Evaluation]] = []
    final: Evaluation | None = None
    unscored = False
    if run is not None:
        when_one_is_lost(lambda: run.after_a_loss(config))
    with watched(), Interrupts() as interrupts, nullcontext() if run is None else run.opened(config):
        if not quiet:
            for line in the_plan.lines():
                print(line, flush=True)
        audience = Audience([*invited(config, run, quiet), *guests] if world().is_first else [])
        audience.tell("begin", about(state, config, the_plan, run))
        log = Log(state, audience, run, lateness(state.env))
        guard = Guard(state, config, log.late, None if run is None else run.path)
        agreement, stop = Agreement(2), 0.0
        try:
            with threads(the_plan.threads), state.streams.in_force():
                guard.remember()
                steps_before = state.steps
                for metrics in ALGORITHMS[config.algo].loop(state, config.algorithm):
                    row, best = log.add(state, metrics), None
                    to_score = is_due(config.run.eval_every, steps_before, state.steps)
                    due = run is not None and run.seconds_since_saving >= config.run.save_seconds
                    stop, to_save = agreement.on(interrupts.received or 0, due)
                    guard.look(log.unread, but=0 if to_score or to_save else log.late)  # nothing bad is scored or kept
                    with log.clock_stopped():
                        audience.tell("phase", state)
                    if to_score:
                        with log.clock_stopped():
                            evaluation = evaluate_during(state, config, score_env)
                        evaluations.append((state.steps, evaluation))
                        row |= evaluation.metrics
                        if evaluation.mean > state.best_score:
                            best = state.best_score = evaluation.mean
                    steps_before = state.steps
                    log.report()
                    if run is not None and (to_save or best is not None):
                        log.report(everything=True)
                        with log.clock_stopped():
                            run.save(state, config, best)
                    if stop or (until is not None and state.steps >= until):
                        break
                    guard.remember()
                stop = max(stop, agreement.close()[0])
                guard.look(log.unread)
        except BaseException as error:
            guard.go_back(log.unread)  # to after the last whole phase
            log.report(everything=True)
            if run is not None and isinstance(error, Exception) and (isinstance(error, NotFinite) or not world().talks):
                run.save(state, config)  # which a second Ctrl-C does not wait for, nor ranks to which nothing happened
                if isinstance(error, EnvError):
                    raise EnvError(f"{error}; {run.left(state)}") from error
                error.add_note(run.left(state))
            raise
        else:
            log.report(everything=True)
            if run is not None and (run.saved_steps != state.steps or run.trouble is not None):
                run.save(state, config)
            whole = not (stop if world().talks else interrupts.received) and (run is None or run.trouble is None)
            if score is not None and whole and world().is_first:
                final = last_score(score, state, audience, run, interrupts)
                unscored = final is None
        finally:
            log.report(everything=True)
            audience.tell("end", state)  # who keeps the trained agent finds it saved
    if not quiet and state.solved:
        print(f"solved after {state.steps:,} steps")
    received = int(stop) if world().talks else interrupts.received
    if unscored:
        received = interrupts.received or SIGINT
    return Outcome(evaluations, received or None, None if run is None else run.trouble, final, unscored)


def is_due(every: int, steps_before: int, steps: int) -> bool:
    """Whether a multiple of `every` steps has been passed."""
    return bool(every) and steps // every > steps_before // every


def evaluate_during(state: State, config: Config, score_env: Env) -> Evaluation:
    """An evaluation whose episodes follow from the seed and the phase alone; the first rank tells the others."""

    def word() -> bytes:
        seed = stream_seed(config.run.seed, "evaluation", state.phase)
        captured = state.execution.unit == "phase"
        found = evaluate(state.policy, score_env, config.run.eval_episodes, seed, captured)
        return json.dumps(asdict(found)).encode()

    return Evaluation(**json.loads(told_by_first(word)))
