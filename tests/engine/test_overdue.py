"""Who holds the other ranks up: questions around a ring of ranks, each with an activity and a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import tightrope as tr
from tightrope import activity
from tightrope.engine.overdue import LIMIT, NOBODY, Overdue

WORKS, WAITS = ("stepping its environments", False), ("exchanging messages with the other ranks", True)


class Ring:
    """Ranks that have been at something for so many seconds, as (activity, seconds)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ranks: tuple[tuple[str, bool], float], limit: float = LIMIT):
        self.patch, self.ranks = monkeypatch, ranks
        self.parts = [Overdue(i, f"rank {i}", len(ranks), limit or 1.0) for i in range(len(ranks))]
        for part in self.parts:
            part.set_limit(limit)

    def as_rank(self, rank: int) -> Overdue:
        now, seconds = self.ranks[rank]
        part = self.parts[rank]
        self.patch.setattr(activity.current, "now", now)
        self.patch.setattr(part.stopwatch, "seconds", lambda: seconds)
        return part

    def beat(self) -> int:
        """Every rank asks once; returns how many questions were passed on or asked."""
        asked = 0
        for rank in range(len(self.ranks)):
            question = self.as_rank(rank).question()
            while question is not None:
                asked += 1
                assert asked < 1000, "a question goes round and round"
                rank = (rank + 1) % len(self.ranks)
                question = self.as_rank(rank).answer(question)
        return asked

    @property
    def verdicts(self) -> dict[int, tuple[int, str]]:
        return {part.rank: part.verdict for part in self.parts if part.verdict is not None}


@pytest.mark.parametrize("stuck", [0, 1, 2, 4])
def test_the_one_without_progress_is_found_by_whoever_waits(monkeypatch: pytest.MonkeyPatch, stuck: int) -> None:
    ranks = [(WAITS, LIMIT + 1)] * 5
    ranks[stuck] = (WORKS, LIMIT + 60)
    ring = Ring(monkeypatch, *ranks)
    ring.beat()
    (verdict,) = ring.verdicts.values()
    assert verdict[0] == stuck
    assert verdict[1] == (
        f"rank {stuck} has made no progress for 1860 s while stepping its environments, and other ranks wait for it "
        "(rank_timeout 1800)"
    )


def test_who_is_slow_but_goes_on_is_left_alone_however_long_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch, (WAITS, 50 * LIMIT), (WORKS, LIMIT - 1), (WAITS, 50 * LIMIT))
    for _ in range(10):
        assert 0 < ring.beat() <= 6
    assert ring.verdicts == {}


def test_nobody_is_hurried_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch, (WORKS, 9 * LIMIT), (WORKS, 9 * LIMIT), (WAITS, LIMIT - 1))
    assert ring.beat() == 0
    assert ring.verdicts == {}


def test_ranks_that_all_wait_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch, *[(WAITS, LIMIT + 1)] * 3)
    for _ in range(3):
        ring.beat()
    assert {rank for rank, _ in ring.verdicts.values()} == {NOBODY}
    assert all("all ranks wait for each other" in words for _, words in ring.verdicts.values())


def test_a_limit_of_zero_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch, (WAITS, 1e9), (WORKS, 1e9), limit=0)
    assert ring.beat() == 0
    assert ring.verdicts == {}


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
