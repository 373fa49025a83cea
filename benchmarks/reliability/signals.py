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
from runs import check_all_is_whole, check_same_numbers, checkpoints, rows, training

from tightrope.training import scoring
from tightrope.training.run_directory import RunDirectory

NAME = "PPO, Pendulum, evaluations"
PHASES = 16
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def slow(owner: Any, name: str, mark: Path) -> Callable[[], None]:
    """In a process: leave a mark at the third call of a function, which takes its time."""

    def prepare() -> None:
        original, calls = getattr(owner, name), iter(range(1, 10**9))

        def slowed(*args: Any, **options: Any) -> Any:
            if next(calls) == 3:
                mark.touch()
                time.sleep(0.2)
            return original(*args, **options)

        setattr(owner, name, slowed)

    return prepare


def stopped(path: Path, number: int, prepare: Callable[[], None], mark: Path, group: bool = False) -> Process:
    """A training that got a signal once the mark was there."""
    process = Process(*training(NAME, path / "run", PHASES), prepare=prepare)
    until(mark.exists, process)
    process.send(number, group)
    return process


def check_stopped(process: Process, number: int, path: Path) -> None:
    """It left as asked, with everything saved; resumed, it comes to the end of an undisturbed run."""
    run = path / "run"
    assert process.wait() == CODES[signal.Signals(number)], (process.code, process.output)
    newest = check_all_is_whole(run)
    assert newest is not None
    assert f"stopped after {newest.steps:,} steps; `tightrope resume {run}` goes on" in process.output, process.output
    assert "Traceback" not in process.output, process.output
    assert len(rows(run)) == newest.manifest["phase"], "phases that were not saved"
    check_resumes(path)


def check_resumes(path: Path) -> None:
    code, output = finished("resume", path / "run")
    assert code == 0, output
    code, output = finished(*training(NAME, path / "reference", PHASES))
    assert code == 0, output
    check_same_numbers(path / "run", path / "reference")


def during(owner: Any, name: str) -> Callable[[Path, int], None]:
    def case(path: Path, number: int) -> None:
        mark = path / "mark"
        check_stopped(stopped(path, number, slow(owner, name, mark), mark), number, path)

    return case


def anywhere(path: Path, number: int) -> None:
    process = Process(*training(NAME, path / "run", PHASES))
    until(lambda: checkpoints(path / "run"), process)
    time.sleep(random.uniform(0, 0.3))
    process.send(number)
    check_stopped(process, number, path)


def twice(path: Path, number: int) -> None:
    """The second one leaves at once; what was saved before stays."""
    mark = path / "mark"

    def very_slow() -> None:
        slow(RunDirectory, "save", mark)()
        save = RunDirectory.save
        RunDirectory.save = lambda *args: (save(*args), time.sleep(60 * mark.exists()))[0]  # type: ignore

    process = stopped(path, number, very_slow, mark)
    time.sleep(0.5)
    assert process.poll() is None, process.output
    process.send(number)
    code = process.wait(5)
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM), (code, process.output)
    assert check_all_is_whole(path / "run") is not None
    check_resumes(path)


def during_the_last_evaluation(path: Path, number: int) -> None:
    """Training is over and saved."""
    mark = path / "mark"

    def prepare() -> None:
        import tightrope.agent

        slow(tightrope.agent, "evaluate", mark)()
        evaluate = tightrope.agent.evaluate_policy
        tightrope.agent.evaluate_policy = lambda *args, **rest: (mark.touch(), time.sleep(60), evaluate(*args, **rest))[
            2
        ]

    process = stopped(path, number, prepare, mark)
    code = process.wait(5)
    assert code == CODES[signal.Signals(number)], (code, process.output)
    assert f"stopped during the last evaluation; the trained agent is in {path / 'run'}" in process.output
    code, output = finished("resume", path / "run")
    assert code == 0, output
    assert "nothing to do" in output, output


SIGNALS: dict[str, Callable[[Path, int], None]] = {
    "anywhere": anywhere,
    "during a save": during(os, "fsync"),
    "during a save, before the pointer is moved": during(os, "rename"),
    "during an evaluation": during(scoring, "evaluate_policy"),
    "twice, during a save": twice,
    "during the last evaluation": during_the_last_evaluation,
}


def cases() -> dict[str, Case]:
    def given(case: Callable[[Path, int], None], number: int) -> Case:
        return lambda path: case(path, number)

    return {f"{number.name} {name}": given(case, number) for name, case in SIGNALS.items() for number in CODES}
