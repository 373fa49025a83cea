"""One bad trial, and what becomes of the others: errors of all kinds, scores that are no number, a process that is broken."""

import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import FrozenTrial, TrialState

from tightrope.errors import EnvError
from tightrope.runs.config import configure
from tightrope.runs.signals import Interrupts
from tightrope.runs.sweep.places import (
    DEAD,
    FAILED,
    GIVEN_UP,
    MOST_DEATHS,
    OUTCOME,
    PLACE,
    WORKER,
    Places,
    born,
    whoami,
)
from tightrope.runs.sweep.space import Range
from tightrope.runs.sweep.storage import open_storage
from tightrope.runs.sweep.study import MOST_IN_A_ROW, Failing, Worker, quiet_optuna
from tightrope.runs.sweep.trial import DIVERGED, UNFIT, Stop, Task
from tightrope.types import Settings

Scoring = Callable[[int], float]  # of the attempt, counted from 0


class Pretender:
    """A learner that does nothing but have a score."""

    finished = True

    def __init__(self, score: Callable[[], float], close: Callable[[], None]) -> None:
        self.score, self.close = score, close

    def evaluate(self, episodes: int) -> Any:
        return SimpleNamespace(mean=self.score())


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Worker]:
    quiet_optuna()
    storage = open_storage(str(tmp_path / "a.journal"))
    study = optuna.create_study(storage=storage, direction="maximize")

    def made(scoring: Scoring, count: int, close: Callable[[], None] = lambda: None) -> Worker:
        attempts = iter(range(1000))

        def make(settings: Settings) -> Any:
            number = next(attempts)
            return Pretender(lambda: scoring(number), close)

        usual = configure("CartPole-v1", "ppo").flat()
        task = Task("ppo", make, usual, {"gamma": Range(0.9, 0.99)}, [1], 1)
        places = Places(study, count, {"gamma": 0.95}, patience=(0.0, 0.0))
        return Worker(study, task, places, 1, lambda line: None, lambda: None)

    return made


@pytest.mark.parametrize("leave", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_that_ends_an_evaluation_ends_the_trial(leave: BaseException, worker: Callable[..., Worker]) -> None:
    def interrupted(attempt: int) -> float:
        raise leave

    task = worker(interrupted, 1).task
    with Interrupts() as interrupts:
        with pytest.raises(type(leave)):
            task.trained(task.make({}), None, interrupts)
        interrupts.received = signal.SIGTERM
        with pytest.raises(Stop) as stop:
            task.trained(task.make({}), None, interrupts)
    assert stop.value.signal == signal.SIGTERM


def raising(error: Exception, attempts: Callable[[int], bool]) -> Scoring:
    def score(attempt: int) -> float:
        if attempts(attempt):
            raise error
        return 1.0

    return score


def outcomes(worker: Worker) -> list[str]:
    return [trial.user_attrs.get(OUTCOME, trial.state.name) for trial in worker.places.trials()]


def at(worker: Worker, place: int) -> list[FrozenTrial]:
    return [trial for trial in worker.places.trials() if trial.user_attrs[PLACE] == place]


@pytest.mark.parametrize(
    "error", [EnvError("row 3 broke\nand more"), ValueError("row 3 broke"), OSError("row 3 broke"), KeyError("row 3 broke")]
)  # fmt: skip
def test_what_fails_once_is_done_again_by_the_same_process(error: Exception, worker: Callable[..., Worker]) -> None:
    ours = worker(raising(error, lambda attempt: attempt == 1), 4)
    assert ours.work(new=True) is None
    first, second = at(ours, 1)
    assert first.state == TrialState.FAIL
    assert first.user_attrs[OUTCOME].startswith(f"{FAILED}: {type(error).__name__}: ")
    assert "row 3 broke" in first.user_attrs[OUTCOME]
    assert "\n" not in first.user_attrs[OUTCOME]
    assert (second.state, second.params) == (TrialState.COMPLETE, first.params)
    assert ours.places.done() == 4


def test_what_fails_each_time_is_given_up_and_all_others_are_done(worker: Callable[..., Worker]) -> None:
    ours = worker(lambda attempt: 1.0, 8)
    make = ours.task.make
    bad: list[float] = []

    def sometimes(settings: Settings) -> Any:
        if len(bad) < 2:
            bad.append(settings["gamma"])
        if settings["gamma"] in bad:
            raise RuntimeError("this gamma is not for me")
        return make(settings)

    object.__setattr__(ours.task, "make", sometimes)
    assert ours.work(new=True) is None
    assert ours.places.done() == 8
    for place in (0, 1):
        assert [trial.state for trial in at(ours, place)] == MOST_DEATHS * [TrialState.FAIL]
    assert at(ours, 0)[-1].user_attrs[OUTCOME].startswith(f"{GIVEN_UP} after {MOST_DEATHS} attempts: {FAILED}: Runtime")
    assert sum(trial.state == TrialState.COMPLETE for trial in ours.places.trials()) == 6


def test_deaths_and_failures_are_counted_together(worker: Callable[..., Worker]) -> None:
    ours = worker(lambda attempt: 1.0, 1)
    ours.places.fill()
    for why in [DEAD, f"{FAILED}: a", DEAD, f"{FAILED}: b", DEAD]:
        assert ours.places.done() == 0
        trial = ours.places.take()
        assert trial is not None
        ours.places.fail(ours.places.trials()[trial.number], why)
    assert ours.places.done() == 1
    assert ours.places.take() is None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), MemoryError()])
def test_what_needs_too_much_memory_is_not_tried_again(error: Exception, worker: Callable[..., Worker]) -> None:
    ours = worker(raising(error, lambda attempt: attempt == 1), 3)
    assert ours.work(new=True) is None
    [trial] = at(ours, 1)
    assert trial.state == TrialState.PRUNED  # so that the search learns from it
    assert trial.user_attrs[OUTCOME].startswith(f"{UNFIT}: {type(error).__name__}")
    assert outcomes(ours).count("COMPLETE") == 2


@pytest.mark.parametrize("error", [RuntimeError("the GPU fell out"), torch.OutOfMemoryError("others have it all")])
def test_a_process_in_which_everything_fails_stops_and_leaves_the_rest(
    error: Exception, worker: Callable[..., Worker]
) -> None:
    ours = worker(raising(error, lambda attempt: attempt >= 2), 20)
    with pytest.raises(Failing, match=f"{MOST_IN_A_ROW} trials in a row failed, the last with .*{error}"):
        ours.work(new=True)
    waiting = [trial for trial in ours.places.trials() if trial.state == TrialState.WAITING]
    assert len(waiting) >= 20 - 2 - MOST_IN_A_ROW
    assert not [trial for trial in ours.places.trials() if trial.state == TrialState.RUNNING]


def test_failures_that_are_not_in_a_row_stop_nobody(worker: Callable[..., Worker]) -> None:
    ours = worker(raising(RuntimeError("now and then"), lambda attempt: attempt % 3 > 0), 12)
    assert ours.work(new=True) is None
    assert ours.places.done() == 12
    assert sum(said.startswith(FAILED) for said in outcomes(ours)) > MOST_IN_A_ROW


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_fills_its_place(score: float, worker: Callable[..., Worker]) -> None:
    def once(attempt: int) -> float:
        assert attempt < 10, "it is tried for ever"
        return score if attempt == 1 else 1.0

    ours = worker(once, 3)
    assert ours.work(new=True) is None
    [trial] = at(ours, 1)
    assert trial.state == TrialState.PRUNED
    assert trial.user_attrs[OUTCOME].startswith(f"{DIVERGED}: scores {score}")
    assert outcomes(ours).count("COMPLETE") == 2


def test_an_environment_that_does_not_close_spoils_no_score(worker: Callable[..., Worker]) -> None:
    def stuck() -> None:
        raise BrokenPipeError

    ours = worker(lambda attempt: 1.0, 2, stuck)
    assert ours.work(new=True) is None
    assert outcomes(ours) == ["COMPLETE", "COMPLETE"]


def test_a_storage_that_fails_is_not_the_trials_fault(
    worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(trial: optuna.Trial, value: float, step: int) -> None:
        raise OSError(28, "No space left on device")

    ours = worker(lambda attempt: 1.0, 2)
    monkeypatch.setattr(optuna.Trial, "report", full)
    with pytest.raises(OSError, match="No space left"):
        ours.work(new=True)
    assert not [said for said in outcomes(ours) if said.startswith(FAILED)]


@pytest.mark.parametrize(
    ("images", "given", "workers", "threads"),
    [(True, None, 1, 8), (True, None, 3, 2), (True, None, 20, 1), (True, 5, 3, None), (False, None, 3, None)],
)
def test_processes_of_a_sweep_on_one_machine_share_its_cores(
    images: bool, given: int | None, workers: int, threads: int | None, worker: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(import_module("tightrope.engine.threads"), "cores", lambda: 8)
    monkeypatch.setattr(Places, "workers_here", lambda self: workers)
    one = worker(lambda attempt: 1.0, 1)
    made: list[Settings] = []
    usual = {**one.task.usual, "threads": given}

    def make(settings: Settings) -> Any:
        made.append(settings)
        return one.task.make(settings)

    replace(one, task=replace(one.task, make=make, usual=usual, images=images)).work(new=True)
    (trial,) = one.places.trials()
    assert [settings.get("threads") for settings in made] == [threads]
    assert trial.user_attrs.get("threads") == threads


def test_processes_on_this_machine_are_counted(worker: Callable[..., Worker]) -> None:
    places = worker(lambda attempt: 1.0, 4).places
    assert places.workers_here() == 1, "this one, before it has a trial"
    places.fill()
    mine, elsewhere, gone = places.take(), places.take(), places.take()
    assert mine is not None
    assert elsewhere is not None
    assert gone is not None
    elsewhere.set_user_attr(WORKER, whoami() | {"machine": "another", "pid": 7})
    gone.set_user_attr(WORKER, whoami() | {"pid": 2**22 + 1})
    assert places.workers_here() == 1
    gone.set_user_attr(WORKER, {**whoami(), "pid": os.getppid(), "born": born(os.getppid())})
    assert places.workers_here() == 2
