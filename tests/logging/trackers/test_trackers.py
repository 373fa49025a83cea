"""Trackers as training sees them: asked for by name, changing no number, stopping nothing."""

import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import assert_same_state

import tightrope as tr
from tightrope import cli
from tightrope.logging import trackers
from tightrope.logging.trackers import delivery
from tightrope.logging.trackers.tracker import Ending, Tracker, TrackerOptions, model_files, newest_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=6 * 32, device="cpu")


class Diary(Tracker):
    """A tracker in memory."""

    name, package = "a diary", "torch"
    kept: "Diary | None" = None

    def __init__(self, options: TrackerOptions) -> None:
        super().__init__(options)
        Diary.kept = self
        self.told: list[Any] = []

    def open(self) -> None:
        self.told.append("open")

    def scalars(self, numbers: dict[str, float], step: int, phase: float, seconds: float) -> None:
        self.told.append((numbers, step) if phase == math.inf else phase)

    def histograms(self, values: Any, step: int, phase: int) -> None:
        self.told.append(("histograms", phase))

    def video(self, path: Path, step: int) -> None:
        self.told.append(path)

    def close(self, ending: Ending, model: Path | None) -> None:
        self.told += [ending, model]


class Stuck(Diary):
    def open(self) -> None:
        threading.Event().wait(60)


class Broken(Diary):
    def scalars(self, *_: Any) -> None:
        raise ConnectionError("gone")


def use(monkeypatch: pytest.MonkeyPatch, tracker: type[Tracker]) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", tracker)


def told() -> list[Any]:
    assert Diary.kept is not None
    return Diary.kept.told


def test_a_tracker_is_told_everything_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Diary)
    agent = tr.PPO("CartPole-v1", **SMALL, log=["tensorboard"])
    score = agent.train(run_dir=tmp_path, quiet=True, score_episodes=3).score
    assert score is not None
    model = tmp_path / "checkpoints" / "0001-steps-192"
    assert told() == ["open", 1, 2, 3, 4, 5, 6, (score.metrics, 192), "finished", model]


def test_what_is_kept_of_a_run_can_be_loaded(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "run", quiet=True)
    checkpoint = newest_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    for name, file in model_files(checkpoint).items():
        copy = tmp_path / "model" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert tr.load(tmp_path / "model").evaluate(5) == agent.evaluate(5)


def test_asked_for_twice_it_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Diary)
    tr.PPO("CartPole-v1", **SMALL, log=["tensorboard", "tensorboard"]).learn(quiet=True)
    assert told().count("open") == 1
    assert told()[-2:] == ["finished", None]


def test_it_knows_how_a_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Diary)
    agent = tr.PPO("CartPole-v1", **SMALL, log=["tensorboard"], watch=True)
    agent.learn(quiet=True, until=64)
    assert told()[-2] == "stopped"
    assert ("histograms", 1) in told()

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("a broken env")

    monkeypatch.setattr(agent.state.env, "advance", breaks)
    with pytest.raises(RuntimeError, match="a broken env"):
        agent.learn(quiet=True)
    assert told()[-2] == "failed"


@pytest.mark.parametrize(
    ("tracker", "says"), [(Broken, "ConnectionError: gone\n"), (Stuck, "TimeoutError: no answer for 1 s")]
)
def test_one_that_breaks_or_hangs_is_named_once_and_stops_nothing(
    tracker: type[Tracker], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, tracker)
    monkeypatch.setattr(delivery, "DELIVERY_SECONDS", 0.5)
    began = time.monotonic()
    assert tr.PPO("CartPole-v1", **SMALL, log=["tensorboard"]).learn(quiet=True).steps == 192
    assert time.monotonic() - began < 10
    (line,) = capsys.readouterr().err.splitlines(keepends=True)
    assert line.startswith(f"warning: a diary failed and is disabled: {says}")


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
def test_numbers_are_the_same_to_the_last_bit_with_and_without(tmp_path: Path, algo: str) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    cls = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]

    def trained(name: str, **settings: Any) -> tr.Agent:
        return cls("CartPole-v1", **{**SMALL, **settings}).learn(run_dir=tmp_path / name, quiet=True)

    assert_same_state(trained("a"), trained("b", log=["tensorboard"], watch=True, tags="sb3"))


# mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_what_is_not_installed_is_said_before_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "CartPole-v1", "--log", name, "--run-dir", str(tmp_path / "run")])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert line == f'tightrope: log {name} needs a package that is not installed: pip install "tightrope[{name}]"\n'
    assert not (tmp_path / "run").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imaginary").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Diary, "package", "imaginary")
    use(monkeypatch, Diary)
    with pytest.raises(tr.UsageError, match="not installed"):
        trackers.check_trackers(("tensorboard",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(log=["tensorbord"]), "log 'tensorbord' is not a choice: give one of tensorboard, wandb, mlflow"),
        (dict(watch=True), "watch needs a tracker"),
        (dict(tags="rllib"), "tags 'rllib' is not a choice: give one of tightrope, sb3"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tr.UsageError, match=message):
        tr.PPO("CartPole-v1", **SMALL, **settings)


def test_trackers_can_be_taken_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Diary)
    tr.PPO("CartPole-v1", **SMALL, log=["tensorboard"]).learn(run_dir=tmp_path, quiet=True, until=64)
    Diary.kept = None
    with pytest.raises(SystemExit) as stop:
        cli.main(["resume", str(tmp_path), "--log", "none", "--quiet"])
    assert stop.value.code == 0
    assert Diary.kept is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"checkpoint": "../../etc"}', b'{"checkpoint": 3}'])
def test_a_pointer_that_points_nowhere_is_no_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").write_bytes(content)
    assert newest_checkpoint(tmp_path) is None
