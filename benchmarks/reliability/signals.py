"""Signals at every kind of moment: exit code, message and files as promised, and the run resumes to the same end."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks import Case
from processes import Process, finished, until
from runs import PENDULUM, check_same_numbers, check_stopped, checkpoints, newest_of, rows, training

import tightrope.agent
from tightrope.training import scoring
from tightrope.training.checkpoint_reader import LATEST
from tightrope.training.run_directory import RunDirectory

PHASES = 16
SENT = (signal.SIGINT, signal.SIGTERM)
Moment = Callable[[Path, int], None]  # given a directory and a signal


def slow(owner: Any, name: str, mark: Path, argument: str | None = None) -> None:
    """Leave a mark at the third call of a function, or the third with an argument, which then takes its time."""
    original, calls = getattr(owner, name), iter(range(1, 10**9))

    def slowed(*args: Any, **options: Any) -> Any:
        if argument in (None, *args) and next(calls) == 3:
            mark.touch()
            time.sleep(0.2)
        return original(*args, **options)

    setattr(owner, name, slowed)


def signalled(path: Path, number: int, prepare: Callable[[Path], None]) -> Process:
    """A training that got a signal once the mark was there that `prepare` leaves."""
    mark = path / "mark"
    process = Process(*training(PENDULUM, path / "run", PHASES), prepare=lambda: prepare(mark))
    until(mark.exists, process)
    process.send(number)
    return process


def check_saved(process: Process, number: int, path: Path) -> None:
    newest = check_stopped(process, path / "run", number)
    assert len(rows(path / "run")) == newest.manifest["phase"], "phases that were not saved"
    check_resumes(path)


def check_resumes(path: Path) -> None:
    """Resumed, it comes to the end of an undisturbed run."""
    finished("resume", path / "run")
    finished(*training(PENDULUM, path / "reference", PHASES))
    check_same_numbers(path / "run", path / "reference")


def during(owner: Any, name: str, argument: str | None = None) -> Moment:
    def case(path: Path, number: int) -> None:
        check_saved(signalled(path, number, lambda mark: slow(owner, name, mark, argument)), number, path)

    return case


def anywhere(path: Path, number: int) -> None:
    process = Process(*training(PENDULUM, path / "run", PHASES))
    until(lambda: checkpoints(path / "run"), process)
    time.sleep(random.uniform(0, 0.3))
    process.send(number)
    check_saved(process, number, path)


def twice(path: Path, number: int) -> None:
    """The second one leaves at once; what was saved before stays."""

    def very_slow(mark: Path) -> None:
        slow(RunDirectory, "save", mark)
        save = RunDirectory.save
        RunDirectory.save = lambda *args: (save(*args), time.sleep(60 * mark.exists()))[0]  # type: ignore

    process = signalled(path, number, very_slow)
    time.sleep(0.5)
    assert process.poll() is None, process.output
    process.send(number)
    process.ends(130 if number == signal.SIGINT else -signal.SIGTERM, seconds=5)
    newest_of(path / "run")
    check_resumes(path)


def during_the_last_evaluation(path: Path, number: int) -> None:
    """Training is over and saved."""

    def prepare(mark: Path) -> None:
        evaluate = tightrope.agent.evaluate_policy

        def slowed(*args: Any, **options: Any) -> Any:
            mark.touch()
            time.sleep(60)
            return evaluate(*args, **options)

        tightrope.agent.evaluate_policy = slowed

    output = signalled(path, number, prepare).ends(128 + number, seconds=5)
    assert f"stopped during the last evaluation; the trained agent is in {path / 'run'}" in output, output
    output = finished("resume", path / "run")
    assert "nothing to do" in output, output


MOMENTS: dict[str, Moment] = {
    "anywhere": anywhere,
    "during a save": during(os, "fsync"),
    "during a save, before the pointer is moved": during(os, "replace", LATEST),
    "during an evaluation": during(scoring, "evaluate_policy"),
    "twice, during a save": twice,
    "during the last evaluation": during_the_last_evaluation,
}


def cases() -> dict[str, Case]:
    def given(moment: Moment, number: int) -> Case:
        return lambda path: moment(path, number)

    return {f"{number.name} {name}": given(moment, number) for name, moment in MOMENTS.items() for number in SENT}
