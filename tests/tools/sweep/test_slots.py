"""Who runs which trial: what happens to it when a process dies at any moment, is suspended, or two claim the same slot."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tightrope.tools.sweep import slots as ts
from tightrope.tools.sweep.slots import SLOT, WORKER, TrialSlots, is_alive, process_id, process_start_time
from tightrope.tools.sweep.storage import close_storage, open_storage, silence_optuna


@pytest.fixture
def slots(make_slots: Callable[[int], TrialSlots]) -> TrialSlots:
    return make_slots(3)


def claimed(slots: TrialSlots, worker: dict[str, Any] | None = None) -> optuna.Trial:
    """A trial of this process, or of another."""
    trial = slots.claim()
    assert trial is not None
    if worker is not None:
        trial.set_user_attr(WORKER, worker)
    return trial


def dead_process() -> dict[str, Any]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return process_id() | {"pid": child.pid}


def finish(slots: TrialSlots) -> optuna.Trial:
    trial = claimed(slots)
    trial.suggest_float("x", 0, 1)
    slots.study.tell(trial, 1.0)
    return trial


def test_there_are_as_many_trials_as_slots_and_their_number_can_change(slots: TrialSlots) -> None:
    for done in range(3):
        assert slots.done() == done
        finish(slots)
    assert slots.claim() is None
    assert slots.done() == 3
    assert [t.user_attrs[SLOT] for t in slots.trials()] == [0, 1, 2]
    assert slots.trials()[0].params == {"x": 0.5}
    slots.count = 4
    assert slots.free() == [3]
    slots.count = 2
    assert (slots.claim(), slots.done()) == (None, 2)


def test_a_trial_of_a_dead_process_is_tried_again_with_the_same_settings(slots: TrialSlots) -> None:
    trial = claimed(slots)
    drawn = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    assert slots.fail_dead_trials() == []  # we live
    trial.set_user_attr(WORKER, dead_process())
    assert slots.fail_dead_trials() == [trial.number]
    assert slots.fail_dead_trials() == []
    assert (slots.trials()[0].state, slots.trials()[0].user_attrs[ts.OUTCOME]) == (TrialState.FAIL, ts.DEAD)
    assert slots.free() == [1, 2, 0], "others first"
    finish(slots)
    finish(slots)
    again = claimed(slots)
    assert again.user_attrs[SLOT] == 0
    assert (again.suggest_float("x", 0, 1), again.suggest_float("y", 0, 1)) == drawn


def test_on_another_machine_a_process_is_dead_once_its_heartbeat_stops(
    slots: TrialSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = claimed(slots, {"machine": "another", "host": "far", "pid": 1, "born": "1"})
    clock = [0.0]
    monkeypatch.setattr(ts.time, "monotonic", lambda: clock[0])

    def heartbeats() -> int:
        return slots.trials()[0].user_attrs.get(ts.HEARTBEAT, [0, 0])[1]

    with slots.heartbeat(trial):
        for _ in range(3):
            before = heartbeats()
            while heartbeats() == before:
                time.sleep(0.01)
            clock[0] += 0.9 * slots.grace_seconds
            assert slots.fail_dead_trials() == []
    assert slots.fail_dead_trials() == []
    clock[0] += 1.1 * slots.grace_seconds
    assert slots.fail_dead_trials() == [0]


def test_a_suspended_process_cannot_write_to_a_trial_that_others_took_over(slots: TrialSlots) -> None:
    trial = claimed(slots, dead_process())
    slots.fail_dead_trials()
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.report(1.0, 1)
    slots.study.tell(trial, 5.0, skip_if_finished=True)
    assert not slots.fail(trial._trial_id, ts.STOPPED)
    assert [t.user_attrs[ts.OUTCOME] for t in slots.trials()] == [ts.DEAD]
    assert slots.free() == [1, 2, 0]


def test_of_two_trials_in_one_slot_the_later_withdraws(slots: TrialSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    first = claimed(slots)
    looks = iter([[0], [1]])
    monkeypatch.setattr(slots, "free", lambda: next(looks))  # as if both had looked before either claimed
    second = claimed(slots)
    assert [(t.user_attrs[SLOT], t.user_attrs.get(ts.OUTCOME)) for t in slots.trials()] == [
        (0, None),
        (0, ts.WITHDRAWN),
        (1, None),
    ]
    assert (first.number, second.number) == (0, 2)
    x = first.suggest_float("x", 0, 1)
    slots.fail(first._trial_id, ts.DEAD)
    monkeypatch.undo()
    slots.count = 1
    assert claimed(slots).suggest_float("x", 0, 1) == x, "of the trial that ran, not of the one that withdrew"


def test_a_stopped_trial_is_first_in_turn_and_keeps_its_settings(slots: TrialSlots) -> None:
    trial = claimed(slots)
    x = trial.suggest_float("x", 0, 1)
    assert slots.fail(trial._trial_id, ts.STOPPED)
    assert slots.free() == [0, 1, 2]
    assert claimed(slots).suggest_float("x", 0, 1) == x


def test_a_slot_is_given_up_after_deaths_and_failures_together(slots: TrialSlots) -> None:
    slots.count = 1
    for reason in [ts.DEAD, f"{ts.FAILED}: a", ts.STOPPED, ts.DEAD, f"{ts.FAILED}: b", ts.DEAD]:
        assert slots.done() == 0
        slots.fail(claimed(slots)._trial_id, reason)
    assert slots.claim() is None
    assert slots.done() == 1
    assert (
        slots.trials()[-1].user_attrs[ts.OUTCOME]
        == f"{ts.GIVEN_UP} after {ts.MAX_FAILURES_OF_SLOT} attempts: {ts.DEAD}"
    )


@pytest.mark.parametrize("kind", ["{}/a.journal", "sqlite:///{}/a.db"])
def test_each_slot_is_claimed_by_one_only(kind: str, tmp_path: Path) -> None:
    silence_optuna()
    url = kind.format(tmp_path)
    first = open_storage(url)
    optuna.create_study(storage=first, study_name="s")
    taken: list[int] = []

    def work() -> None:
        storage = open_storage(url)
        slots = TrialSlots(optuna.load_study(study_name="s", storage=storage), 30, {})
        while (trial := slots.claim()) is not None:
            taken.append(trial.user_attrs[SLOT])
        close_storage(storage)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    by_slot = TrialSlots(optuna.load_study(study_name="s", storage=first), 30, {}).by_slot()
    close_storage(first)
    assert sorted(taken) == list(range(30))
    assert [sum(map(ts.fills_slot, by_slot[slot])) for slot in range(30)] == 30 * [1]


def test_processes_are_known_by_more_than_their_number() -> None:
    me = process_id()
    assert is_alive(me)
    assert not is_alive(me | {"pid": -1})
    assert not is_alive(dead_process())
    if sys.platform == "linux":
        assert not is_alive(me | {"born": "1"})
        child = subprocess.Popen([sys.executable, "-c", ""])
        stat = Path(f"/proc/{child.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert not is_alive(me | {"pid": child.pid, "born": process_start_time(child.pid)})  # a zombie
        child.wait()


def test_processes_on_this_machine_are_counted(slots: TrialSlots) -> None:
    assert slots.local_workers() == 1, "this one, before it has a trial"
    claimed(slots)
    claimed(slots, process_id() | {"machine": "another", "pid": 7})
    last = claimed(slots, dead_process())
    assert slots.local_workers() == 1
    last.set_user_attr(WORKER, {**process_id(), "pid": os.getppid(), "born": process_start_time(os.getppid())})
    assert slots.local_workers() == 2
