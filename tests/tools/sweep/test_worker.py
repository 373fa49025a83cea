"""Bad trials and what becomes of the others: errors of all kinds, scores that are not finite, a process that is broken."""

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import FrozenTrial, TrialState

from tightrope.errors import EnvError
from tightrope.tools.sweep.slots import FAILED, GIVEN_UP, MAX_FAILURES_OF_SLOT, OUTCOME, SLOT, TrialSlots
from tightrope.tools.sweep.space import Range
from tightrope.tools.sweep.worker import DIVERGED, INVALID, MAX_FAILURES_IN_A_ROW, Objective, TooManyFailures, Worker
from tightrope.training.config import configure
from tightrope.training.evaluation import Evaluation
from tightrope.training.signals import Interrupted, Interrupts
from tightrope.types import Settings

DEFAULTS = configure("CartPole-v1", "ppo").to_flat_dict()
MakeWorker = Callable[..., Worker]


@pytest.fixture
def make_worker(make_slots: Callable[[int], TrialSlots]) -> MakeWorker:
    """A worker whose trials do nothing but have a score: a function of the attempt, counted from 0, and of gamma."""

    def worker(score: Callable[[int, float], float], count: int, close: Callable[[], None] = lambda: None) -> Worker:
        attempts = iter(range(1000))

        def make(settings: Settings) -> Any:
            attempt = next(attempts)

            def evaluate(episodes: int) -> Any:
                return Evaluation([score(attempt, settings.get("gamma", 0.0))], [1], measured=2.0, unit="m")

            return SimpleNamespace(finished=True, evaluate=evaluate, close=close)

        slots = make_slots(count)
        slots.first = {"gamma": 0.95}
        objective = Objective(make, DEFAULTS, {"gamma": Range(0.9, 0.99)}, [1], 1)
        return Worker(objective, slots, 1, lambda line: None, lambda: None)

    return worker


def raising(error: BaseException, when: Callable[[int], bool]) -> Callable[[int, float], float]:
    def score(attempt: int, gamma: float) -> float:
        if when(attempt):
            raise error
        return 1.0

    return score


def outcomes(worker: Worker) -> list[str]:
    return [trial.user_attrs.get(OUTCOME, trial.state.name) for trial in worker.slots.trials()]


def trials_in(worker: Worker, slot: int) -> list[FrozenTrial]:
    return [trial for trial in worker.slots.trials() if trial.user_attrs[SLOT] == slot]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_during_an_evaluation_ends_the_trial(error: BaseException, make_worker: MakeWorker) -> None:
    objective = make_worker(raising(error, lambda attempt: True), 1).objective
    with Interrupts() as interrupts:
        with pytest.raises(type(error)):
            objective.train_one(objective.make({}), None, interrupts)
        interrupts.received = signal.SIGTERM
        with pytest.raises(Interrupted) as stop:
            objective.train_one(objective.make({}), None, interrupts)
    assert stop.value.number == signal.SIGTERM


@pytest.mark.parametrize("kind", [EnvError, OSError, KeyError])
def test_what_fails_once_is_tried_again_by_the_same_process(kind: type[Exception], make_worker: MakeWorker) -> None:
    worker = make_worker(raising(kind("row 3 broke\nand more"), lambda attempt: attempt == 1), 3)
    assert worker.work() is None
    first, second = trials_in(worker, 1)
    assert first.state == TrialState.FAIL
    assert first.user_attrs[OUTCOME].startswith(f"{FAILED}: {kind.__name__}: ")
    assert "row 3 broke" in first.user_attrs[OUTCOME]
    assert "\n" not in first.user_attrs[OUTCOME]
    assert (second.state, second.params) == (TrialState.COMPLETE, first.params)
    assert worker.slots.done() == 3


def test_what_fails_each_time_is_given_up_and_all_others_are_done(make_worker: MakeWorker) -> None:
    bad: list[float] = []

    def score(attempt: int, gamma: float) -> float:
        if len(bad) < 2:
            bad.append(gamma)
        if gamma in bad:
            raise RuntimeError("this gamma is not for me")
        return 1.0

    worker = make_worker(score, 4)
    assert worker.work() is None
    assert worker.slots.done() == 4
    for slot in (0, 1):
        assert [trial.state for trial in trials_in(worker, slot)] == MAX_FAILURES_OF_SLOT * [TrialState.FAIL]
        last = trials_in(worker, slot)[-1].user_attrs[OUTCOME]
        assert last.startswith(f"{GIVEN_UP} after {MAX_FAILURES_OF_SLOT} attempts: {FAILED}: Runtime")
    assert outcomes(worker).count("COMPLETE") == 2


@pytest.mark.parametrize(
    ("score", "outcome"),
    [
        *((value, f"{DIVERGED}: scores {value}") for value in (math.nan, math.inf, -math.inf)),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), f"{INVALID}: OutOfMemoryError"),
        (MemoryError(), f"{INVALID}: MemoryError"),
    ],
)
def test_what_diverges_or_needs_too_much_memory_is_pruned_at_once(
    score: Any, outcome: str, make_worker: MakeWorker
) -> None:
    def once(attempt: int, gamma: float) -> float:
        assert attempt < 10, "it is tried for ever"
        if attempt == 1 and isinstance(score, Exception):
            raise score
        return score if attempt == 1 else 1.0  # type: ignore[return-value]

    worker = make_worker(once, 3)
    assert worker.work() is None
    [trial] = trials_in(worker, 1)
    assert trial.state == TrialState.PRUNED  # so that the sampler learns from it
    assert trial.user_attrs[OUTCOME].startswith(outcome)
    assert outcomes(worker).count("COMPLETE") == 2


@pytest.mark.parametrize("error", [RuntimeError("the GPU fell out"), torch.OutOfMemoryError("others have it all")])
def test_a_process_in_which_everything_fails_stops_and_leaves_the_rest(
    error: Exception, make_worker: MakeWorker
) -> None:
    worker = make_worker(raising(error, lambda attempt: attempt >= 2), 9)
    with pytest.raises(
        TooManyFailures, match=f"{MAX_FAILURES_IN_A_ROW} trials in a row failed, the last with .*{error}"
    ):
        worker.work()
    assert len(worker.slots.free()) >= 9 - 2 - MAX_FAILURES_IN_A_ROW
    assert not [trial for trial in worker.slots.trials() if trial.state == TrialState.RUNNING]


def test_failures_that_are_not_in_a_row_stop_nobody(make_worker: MakeWorker) -> None:
    worker = make_worker(raising(RuntimeError("now and then"), lambda attempt: attempt % 3 > 0), 4)
    assert worker.work() is None
    assert worker.slots.done() == 4
    assert sum(outcome.startswith(FAILED) for outcome in outcomes(worker)) > MAX_FAILURES_IN_A_ROW


def test_an_environment_that_does_not_close_spoils_no_score(make_worker: MakeWorker) -> None:
    def stuck() -> None:
        raise BrokenPipeError

    worker = make_worker(lambda attempt, gamma: 1.0, 2, stuck)
    assert worker.work() is None
    assert outcomes(worker) == ["COMPLETE", "COMPLETE"]


def test_a_storage_that_fails_is_not_the_trials_fault(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(trial: optuna.Trial, value: float, step: int) -> None:
        raise OSError(28, "No space left on device")

    worker = make_worker(lambda attempt, gamma: 1.0, 2)
    monkeypatch.setattr(optuna.Trial, "report", full)
    with pytest.raises(OSError, match="No space left"):
        worker.work()
    assert not [outcome for outcome in outcomes(worker) if outcome.startswith(FAILED)]
    assert worker.slots.free() == [0, 1]


@pytest.mark.parametrize(
    ("images", "chosen", "workers", "threads"),
    [(True, None, 1, 8), (True, None, 3, 2), (True, None, 20, 1), (True, 5, 3, None), (False, None, 3, None)],
)
def test_processes_of_a_sweep_on_one_machine_share_its_cores(
    images: bool, chosen: int | None, workers: int, threads: int | None, make_worker: MakeWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(import_module("tightrope.engine.threads"), "cores", lambda: 8)
    monkeypatch.setattr(TrialSlots, "local_workers", lambda self: workers)
    worker = make_worker(lambda attempt, gamma: 1.0, 1)
    made: list[Settings] = []

    def make(settings: Settings) -> Any:
        made.append(settings)
        return worker.objective.make(settings)

    objective = replace(worker.objective, make=make, defaults={**DEFAULTS, "threads": chosen}, images=images)
    replace(worker, objective=objective).work()
    (trial,) = worker.slots.trials()
    assert [settings.get("threads") for settings in made] == [threads]
    assert trial.user_attrs.get("threads") == threads


def test_a_trial_is_told_in_the_unit_of_its_task(make_worker: MakeWorker) -> None:
    worker = make_worker(lambda attempt, gamma: 7.0, 1)
    assert worker.work() is None
    (trial,) = worker.slots.trials()
    assert "score 7 (7), 2 m in " in worker.summary(trial, 1.0)
