"""Who works on which trial: what happens to it when a process dies at any moment, sleeps too long, or comes twice."""

import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tightrope.runs.sweep.places import (
    ASIDE,
    BEAT,
    DEAD,
    GIVEN_UP,
    MOST_DEATHS,
    OUTCOME,
    PLACE,
    STOPPED,
    WORKER,
    Places,
    by_place,
    fills,
    lives,
    whoami,
)  # fmt: skip
from tightrope.runs.sweep.storage import open_storage
from tightrope.runs.sweep.study import quiet_optuna

FAR = {"machine": "another", "host": "far", "pid": 1, "born": "1"}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    quiet_optuna()
    study = optuna.create_study(storage=open_storage(str(tmp_path / "a.journal")), direction="maximize")
    found = Places(study, 3, {"x": 0.5}, beat_seconds=0.01, grace_seconds=0.1, patience=(0.0, 0.0))
    found.fill()
    return found


def numbers(places: Places, state: TrialState) -> list[int]:
    return [trial.number for trial in places.trials() if trial.state == state]


def dead_process() -> dict[str, object]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return whoami() | {"pid": child.pid}


def finish(places: Places, value: float = 1.0) -> None:
    trial = places.take()
    assert trial is not None
    trial.suggest_float("x", 0, 1)
    places.study.tell(trial, value)


def test_there_are_as_many_trials_as_asked_for(places: Places) -> None:
    places.fill()
    assert numbers(places, TrialState.WAITING) == [0, 1, 2]
    for done in range(3):
        assert places.done() == done
        finish(places)
    assert places.take() is None
    assert places.done() == 3
    assert places.trials()[0].params == {"x": 0.5}


def test_more_can_be_asked_for_later_and_fewer_too(places: Places) -> None:
    places.count = 4
    places.fill()
    assert len(numbers(places, TrialState.WAITING)) == 4
    places.count = 2
    finish(places)
    finish(places)
    assert places.take() is None
    assert places.done() == 2


def test_a_trial_of_a_dead_process_is_done_again_with_the_same_settings(places: Places) -> None:
    trial = places.take()
    assert trial is not None
    drawn = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    assert places.bury() == []  # we live
    trial.set_user_attr(WORKER, dead_process())
    assert places.bury() == [trial.number]
    assert places.bury() == []
    old = places.trials()[trial.number]
    assert (old.state, old.user_attrs[OUTCOME]) == (TrialState.FAIL, DEAD)
    assert numbers(places, TrialState.WAITING) == [1, 2, 3]
    finish(places)
    finish(places)
    again = places.take()
    assert again is not None
    assert again.user_attrs[PLACE] == old.user_attrs[PLACE]
    assert (again.suggest_float("x", 0, 1), again.suggest_float("y", 0, 1)) == drawn


def test_elsewhere_a_process_is_dead_once_it_gives_no_sign(places: Places) -> None:
    trial = places.take()
    assert trial is not None
    trial.set_user_attr(WORKER, FAR)
    with places.alive(trial):
        began = time.monotonic()
        while time.monotonic() - began < 0.4:
            assert places.bury() == []
            time.sleep(0.02)
    assert places.trials()[0].user_attrs[BEAT][1] > 1
    assert places.bury() == []
    time.sleep(0.15)
    assert places.bury() == [0]


def test_one_that_was_only_asleep_is_told_so_and_doubles_nothing(places: Places) -> None:
    trial = places.take()
    assert trial is not None
    trial.set_user_attr(WORKER, dead_process())
    places.bury()
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.report(1.0, 1)
    places.study.tell(trial, 5.0, skip_if_finished=True)
    places.give_back(trial)
    assert numbers(places, TrialState.COMPLETE) == []
    assert [sum(map(fills, at)) for at in by_place(places.trials()).values()] == [1, 1, 1]


def test_a_place_left_empty_by_one_who_died_while_failing_a_trial_is_filled(places: Places) -> None:
    trial = places.take()
    assert trial is not None
    places.end(trial, DEAD)  # and then nothing more
    assert places.empty() == [0]
    places.fill_forgotten()  # sees it
    time.sleep(0.01)
    places.fill_forgotten()
    assert places.empty() == []
    assert len(numbers(places, TrialState.WAITING)) == 3


def test_of_two_trials_at_one_place_the_later_stands_aside(places: Places) -> None:
    places.study.enqueue_trial({}, user_attrs={PLACE: 1})
    for _ in range(3):
        finish(places)
    assert places.take() is None
    assert places.done() == 3
    assert [t.user_attrs.get(OUTCOME) for t in places.trials()] == [None, None, None, ASIDE]


def test_a_trial_that_is_given_back_waits_again(places: Places) -> None:
    trial = places.take()
    assert trial is not None
    x = trial.suggest_float("x", 0, 1)
    places.give_back(trial)
    assert places.trials()[0].user_attrs[OUTCOME] == STOPPED
    assert places.trials()[3].params == {"x": x}
    assert numbers(places, TrialState.WAITING) == [1, 2, 3]


def test_what_kills_every_process_is_given_up(places: Places) -> None:
    places.count = 1
    for _ in range(MOST_DEATHS):
        assert places.done() == 0
        trial = places.take()
        assert trial is not None
        trial.set_user_attr(WORKER, dead_process())
        places.bury()
    assert places.take() is None
    assert places.done() == 1
    assert places.trials()[-1].user_attrs[OUTCOME] == f"{GIVEN_UP} after {MOST_DEATHS} attempts: {DEAD}"


def test_processes_are_known_by_more_than_their_number() -> None:
    me = whoami()
    assert lives(me)
    assert not lives(me | {"pid": -1})
    assert not lives(dead_process())
    if sys.platform == "linux":
        assert not lives(me | {"born": "1"})
        child = subprocess.Popen([sys.executable, "-c", ""])
        stat = Path(f"/proc/{child.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert not lives(me | {"pid": child.pid})  # gone, though its parent has not looked
        child.wait()
    assert lives(me | {"pid": os.getpid()})
