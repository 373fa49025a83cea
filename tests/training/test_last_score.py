"""The score at the end of a run: where it goes, where it does not, and what a signal does to it."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from run_helpers import rows

import tightrope as tr
from tightrope import cli
from tightrope.logging import Callback
from tightrope.training.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("hears_interrupts")
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, seed=3, device="cpu")


class Diary(Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_phase(self, row: dict[str, Any]) -> None:
        self.heard.append(row["phase"])

    def on_trained(self, state: Any) -> None:
        self.heard.append("over")

    def on_end(self, result: Any) -> None:
        self.heard += ["end"] if result.score is None else [result.score.metrics, "end"]


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    diary = Diary()
    monkeypatch.setattr("tightrope.training.trainer.built_in_callbacks", lambda *_: [diary])
    return diary


@pytest.fixture
def agent() -> tr.PPO:
    return tr.PPO("CartPole-v1", **SMALL)


def test_everyone_hears_it_after_the_last_phase_and_before_the_end(agent: tr.PPO, diary: Diary, tmp_path: Path) -> None:
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert outcome.score == agent.evaluate(5) == tr.load(tmp_path).evaluate(5)
    assert outcome.score is not None
    found = outcome.score.metrics
    assert diary.heard == [1, 2, 3, "over", found, "end"]
    (kept,) = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(kept)["mean"] == outcome.score.mean


def test_it_is_no_row_of_the_metrics_and_a_run_goes_on_as_without(agent: tr.PPO, tmp_path: Path) -> None:
    agent.train(run_dir=tmp_path / "scored", quiet=True, until=64, score_episodes=5)
    tr.load(tmp_path / "scored").train(quiet=True, score_episodes=5)
    tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "plain", quiet=True)
    assert rows(tmp_path / "scored") == rows(tmp_path / "plain")


def test_learn_takes_none(agent: tr.PPO, diary: Diary, tmp_path: Path) -> None:
    agent.learn(run_dir=tmp_path, quiet=True)
    assert diary.heard == [1, 2, 3, "end"]
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_run_that_was_stopped_has_none(
    agent: tr.PPO, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diary, "on_update", lambda state: state.phase == 1 and signal.raise_signal(signal.SIGTERM))
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert (outcome.interrupted, outcome.score, outcome.unscored) == (signal.SIGTERM, None, False)
    assert diary.heard[-1] == "end"
    assert "over" not in diary.heard


def test_nor_has_one_that_could_not_be_saved(
    agent: tr.PPO, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "check_is_there", full)
    outcome = agent.train(run_dir=tmp_path, quiet=True, score_episodes=5)
    assert (outcome.unsaved, outcome.score) == ("No space left on device", None)
    assert "over" not in diary.heard


def test_a_disk_that_does_not_take_it_stops_nobody(
    agent: tr.PPO, diary: Diary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "scores.jsonl").mkdir(parents=True)
    assert agent.train(run_dir=tmp_path / "run", quiet=True, score_episodes=5).score is not None
    assert len(diary.heard) == 6
    assert "warning: the score is not in the report: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_it_off_and_everyone_hears_of_the_end(
    number: signal.Signals, diary: Diary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def pressed(*_: object, **__: object) -> None:
        signal.raise_signal(number)
        pytest.fail("it went on")

    monkeypatch.setattr("tightrope.agent.evaluate_policy", pressed)
    flags = "--num-envs 4 --num-steps 8 --hidden-sizes 8 --total-timesteps 96 --device cpu --quiet --run-dir"
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "CartPole-v1", *flags.split(), str(tmp_path / "run")])
    assert stop.value.code == 128 + number
    assert (
        capsys.readouterr().out == f"stopped during the last evaluation; the trained agent is in {tmp_path / 'run'}\n"
    )
    assert diary.heard == [1, 2, 3, "over", "end"]
    assert tr.load(tmp_path / "run").steps == 96
