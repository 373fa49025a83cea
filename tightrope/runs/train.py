"""Drives an algorithm's loop: metrics, progress, evaluation and checkpoints are ordinary code between its yields."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS
from ..engine import State, stream_seed, threads
from ..errors import EnvError, NotFinite, UsageError
from ..types import Env
from ..view import MetricsFile, Progress
from .build import settled
from .checkpoint import CONFIG, save_config, save_state
from .config import Config
from .crash import Guard, lateness
from .evaluate import Evaluation, evaluate
from .metrics import Reading
from .plan import plan
from .signals import Interrupts

SAVE_SECONDS = 30.0  # between two checkpoints of a run under way; saving changes no number


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    evaluations: list[tuple[int, Evaluation]]  # (steps, result) of the periodic ones
    interrupted: int | None  # the signal that asked training to stop


def train(state: State, config: Config, score_env: Env, run_dir: Path | None = None, quiet: bool = False) -> Outcome:
    """Train `state` to the end of the configured plan; with a run directory, leave everything about the run there."""
    algorithm, run = config.algorithm, config.run
    the_plan = plan(state, config)
    if not quiet:
        for line in the_plan.lines():
            print(line, flush=True)
    metrics_file = None
    if run_dir is not None:
        try:
            save_config(run_dir, settled(config).changed(threads=the_plan.threads))
        except OSError as error:
            raise UsageError(f"run_dir {run_dir} cannot be written: {error.strerror}") from None
        metrics_file = MetricsFile(run_dir / "metrics.jsonl")
    progress = Progress(f"{config.env} {config.algo}", state.steps + the_plan.steps, state.steps, quiet)
    evaluations: list[tuple[int, Evaluation]] = []
    saved_at = time.perf_counter()
    began, aside, steps_before, steps_at_start = time.perf_counter(), 0.0, state.steps, state.steps

    unreported: list[tuple[dict[str, Any], Reading]] = []
    late = lateness(state.env)  # phases: a device has the next one before we read the last
    guard = Guard(state, config, late, run_dir)

    def report(but: int = 0) -> None:
        while len(unreported) > but:
            row, reading = unreported.pop(0)
            row |= reading.row()
            elapsed = time.perf_counter() - began
            row |= {"charts/SPS": (row["step"] - steps_at_start) / (elapsed - aside), "time": elapsed}
            if metrics_file is not None:
                metrics_file.write(row)
            progress.update(row)

    try:
        with threads(the_plan.threads), Interrupts() as interrupts:
            guard.remember()
            for metrics in ALGORITHMS[config.algo].loop(state, algorithm):
                row: dict[str, Any] = {"step": state.steps, "phase": state.phase}
                unreported.append((row, Reading(metrics)))
                due = run.eval_every and state.steps // run.eval_every > steps_before // run.eval_every
                save_due = run_dir is not None and time.perf_counter() - saved_at >= SAVE_SECONDS
                guard.look(unreported, but=0 if due or save_due else late)  # nothing bad is scored or kept
                paused = time.perf_counter()
                if due:
                    seed = stream_seed(run.seed, "evaluation", state.phase)
                    evaluation = evaluate(state.policy, score_env, run.eval_episodes, seed)
                    evaluations.append((state.steps, evaluation))
                    row["eval/episodic_return"] = evaluation.mean
                    row["eval/episodic_length"] = evaluation.mean_length
                    if evaluation.mean > state.best_score:
                        state.best_score = evaluation.mean
                        if run_dir is not None:
                            save_state(run_dir, state, "best")
                aside += time.perf_counter() - paused  # evaluation and saving are not training
                report(but=late)
                steps_before, paused = state.steps, time.perf_counter()
                if run_dir is not None and save_due:
                    save_state(run_dir, state)
                    saved_at = time.perf_counter()
                aside += time.perf_counter() - paused
                if interrupts.received is not None:
                    break
                guard.remember()
            guard.look(unreported)
    except NotFinite as error:
        try:
            if run_dir is not None:
                save_state(run_dir, state)  # as it was before the bad phase
        except OSError as trouble:
            raise NotFinite(f"{error}; but that state could not be saved: {trouble.strerror}") from None
        raise
    except EnvError as error:
        if run_dir is None:
            raise
        save_state(run_dir, state)  # as it was after the last whole phase
        raise EnvError(f"{error}; what was learned in {state.steps:,} steps is in {run_dir}") from error
    finally:
        report()
        progress.close()
        if metrics_file is not None:
            metrics_file.close()
    if run_dir is not None:
        save_state(run_dir, state)
    if not quiet and interrupts.received is None and not ALGORITHMS[config.algo].finished(state, algorithm):
        print(f"solved after {state.steps:,} steps")
    return Outcome(evaluations, interrupts.received)


def new_run_dir(run_dir: Path | None, config: Config) -> Path:
    """Where a new run will live; refused if a run lives there already. Creates nothing."""
    if run_dir is None:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        base = Path("runs") / f"{config.env.replace('/', '-')}__{config.algo}__{config.run.seed}__{stamp}"
        run_dir, attempt = base, 1
        while run_dir.exists():
            attempt += 1
            run_dir = base.with_name(f"{base.name}-{attempt}")
    try:
        if (run_dir / CONFIG).exists():
            raise UsageError(f"run_dir {run_dir} already holds a run: give another directory, or remove that one")
        nearest = next(p for p in (run_dir, *run_dir.absolute().parents) if p.exists())
    except OSError as error:
        raise UsageError(
            f"run_dir {str(run_dir)[:60]} will not do ({error.strerror}): give another directory"
        ) from None
    if not nearest.is_dir():
        raise UsageError(f"run_dir {run_dir} will not do, {nearest} is a file: give a directory")
    if not os.access(nearest, os.W_OK):
        raise UsageError(f"run_dir {run_dir} cannot be made, {nearest} is read-only: give another directory")
    return run_dir
