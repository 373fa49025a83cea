"""What the other ranks do when one is stopped, fails, makes no progress, is busy or ends in good order.

`test_runs.py` has one that is killed, and one that is stuck in its environment.
"""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import pytest

import tightrope as tr
from tightrope import activity
from tightrope.engine.heartbeat import ALL_WAIT_SECONDS, RANK_TIMEOUT, RankActivity, find_stalled

from .launcher import ROOT, Job

LOOP = str(ROOT / "benchmarks" / "scaling" / "loop.py")
LATE = RANK_TIMEOUT + ALL_WAIT_SECONDS + 1


def test_a_stopped_rank_is_missed_after_the_silence() -> None:
    with Job(LOOP, "--seconds=60", "--silence=2") as job:
        job.wait_for(lambda: job.printed.count("attempt 0") == 2)
        pid, began = job.pids()[0], job.send(signal.SIGSTOP, 0)
        job.wait_for(lambda: 1 not in job.pids(), 20)
        assert time.monotonic() - began > 1.5
        (line,) = job.lines
        assert f"rank 0 (pid {pid} on" in line
        assert "has not been heard for" in line


def test_an_error_in_one_rank_is_told_by_the_others() -> None:
    with Job(LOOP, "--seconds=60", "--fails=1") as job:
        assert job.codes(60) == [1, 1]
        assert "ValueError: made up" in job.printed
        assert "RankLost: rank 1" in job.printed
        assert "has failed: ValueError: made up" in job.lines[0]


def test_who_is_busy_is_not_missed_and_who_ends_in_good_order_neither() -> None:
    with Job(LOOP, "--seconds=1", "--silence=0.5", "--busy=3") as job:
        assert job.codes(60) == [0, 0]
        assert job.lines == []
        assert job.printed.count("is done") == 2


# progress, by what each rank reports ------------------------------------------------------------------------------------


works, waits = partial(RankActivity, activity.STEPPING, False), partial(RankActivity, "exchanging messages", True)


STUCK = (
    "has made no progress for 1860 s while stepping its environments, and other ranks wait for it (rank_timeout 1800)"
)
ALL_WAIT = "wait for each other, for 1804 s, as when each runs other code"


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        *((dict.fromkeys(range(5), waits(LATE)) | {stuck: works(RANK_TIMEOUT + 60)}, (stuck, STUCK)) for stuck in (0, 4)),
        ({rank: waits(LATE + rank) for rank in range(3)}, (None, ALL_WAIT)),
        ({0: waits(50 * LATE), 1: works(RANK_TIMEOUT - 1), 2: waits(50 * LATE)}, None),  # slow but working
        ({0: works(9 * LATE), 1: works(9 * LATE), 2: waits(RANK_TIMEOUT - 1)}, None),  # nobody waits for long
        ({0: waits(RANK_TIMEOUT + 1), 1: waits(LATE)}, None),  # all wait, reports of two moments
        ({0: waits(LATE), 1: waits(1)}, None),  # messages still arrive
    ],
)  # fmt: skip
def test_a_rank_is_at_fault_if_it_makes_no_progress_and_another_waits(
    reports: dict[int, RankActivity], found: tuple[int | None, str] | None
) -> None:
    assert find_stalled(reports, RANK_TIMEOUT) == found
    assert find_stalled(reports, float("inf")) is None, "without a limit"


def test_progress_is_any_piece_of_work_begun_or_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(activity, "current", activity.Activity())
    watch = activity.Stopwatch()
    clock[0] += 5
    assert watch.seconds() == 5
    activity.mark()
    assert watch.seconds() == 0
    clock[0] += 5
    activity.begin("learning")
    assert watch.seconds() == 0
    with activity.during("saving a checkpoint"):
        assert activity.current.now == ("saving a checkpoint", False)
    assert activity.current.now == ("learning", False)


@pytest.mark.parametrize("env", ["CartPole-v1", "CliffWalking-v1"])
def test_training_notes_what_it_does_and_every_step_is_progress(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = activity.Activity()
    monkeypatch.setattr(activity, "current", seen)
    begun: list[str] = []
    begin = activity.begin
    monkeypatch.setattr(activity, "begin", lambda what, waits=False: (begun.append(what), begin(what, waits))[1])
    settings = dict(num_envs=4, num_steps=16, num_minibatches=2, update_epochs=1, total_timesteps=128, device="cpu")
    agent = tr.PPO(env, **settings, eval_every=64, eval_episodes=2, max_episode_steps=20)  # type: ignore[arg-type]
    assert seen.now == (activity.OUTSIDE, False)
    before = seen.count
    agent.learn(run_dir=tmp_path / "run", quiet=True)
    assert seen.now == (activity.OUTSIDE, False)
    steps = 128 if env == "CliffWalking-v1" else 32  # Gymnasium's count one by one
    assert seen.count - before > steps
    words = {"making its agent", "training", activity.STEPPING, "learning", "recording a phase"}
    assert {*words, "playing evaluation episodes", "saving a checkpoint"} <= set(begun)
