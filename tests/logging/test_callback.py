"""Callbacks: everyone is called in order, may stop training, and fails in the way it has chosen."""

from pathlib import Path
from typing import Any

import pytest
from run_helpers import assert_same_state

import tightrope as tr
from tightrope.logging import CallbackList, RunInfo

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")


class Diary(tr.Callback):
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.heard.append(("start", run.title))

    def on_update(self, state: Any) -> None:
        self.heard.append(("update", state.phase))

    def on_phase(self, row: dict[str, Any]) -> None:
        self.heard.append(("row", row["phase"]))

    def on_evaluation(self, result: Any) -> None:
        self.heard.append(("evaluation", len(result.returns)))

    def on_end(self, result: Any) -> None:
        self.heard.append(("end", (result.steps, result.stopped, result.error)))


class Clumsy(tr.Callback):
    def on_phase(self, row: dict[str, Any]) -> None:
        raise ZeroDivisionError("oh\nno")


def test_everyone_is_told_everything_in_order(tmp_path: Path) -> None:
    diary = Diary()
    tr.PPO("CartPole-v1", **SMALL, eval_every=96, eval_episodes=3).learn(run_dir=tmp_path, callbacks=[diary])
    phases = [(kind, i) for i in (1, 2, 3) for kind in ("update", "row")]
    phases.insert(-1, ("evaluation", 3))
    assert diary.heard == [("start", "CartPole-v1 ppo"), *phases, ("end", (96, None, None))]


def test_one_that_may_fail_is_named_once_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clumsy, diary = Clumsy(), Diary()
    clumsy.may_fail, clumsy.name = True, "a clumsy one"
    assert tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path, quiet=True, callbacks=[clumsy, diary]).steps == 96
    assert diary.heard[-1] == ("end", (96, None, None))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: a clumsy one failed and is disabled: ZeroDivisionError: oh no"


class Shown(tr.Callback):
    def on_video(self, path: Path, step: int) -> None:
        raise ZeroDivisionError("shown")


def test_an_error_about_a_video_is_not_the_video(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL, video_every=1)
    with pytest.raises(ZeroDivisionError, match="shown"):
        agent.learn(run_dir=tmp_path, quiet=True, callbacks=[Shown()])


def test_the_error_of_any_other_ends_training_and_the_run_can_go_on(tmp_path: Path) -> None:
    diary = Diary()
    agent = tr.PPO("CartPole-v1", **SMALL)
    with pytest.raises(ZeroDivisionError, match="oh") as caught:
        agent.learn(run_dir=tmp_path, quiet=True, callbacks=[Clumsy(), diary])
    assert "the state after 32 steps is saved in" in caught.value.__notes__[0]
    assert diary.heard[-2:] == [("row", 1), ("end", (32, None, caught.value))]  # others are told all the same
    assert tr.load(tmp_path).learn(quiet=True).steps == 96


STOPPED: dict[str, Any] = dict(SMALL, eval_every=64, eval_episodes=2, video_every=0)


@pytest.fixture(scope="module")
def whole() -> tr.PPO:
    return tr.PPO("CartPole-v1", **STOPPED).learn(quiet=True)


class StopsIn(tr.Callback):
    def __init__(self, method: str) -> None:
        def stop(*_: Any) -> None:
            raise tr.StopTraining("good enough")

        setattr(self, method, stop)


@pytest.mark.parametrize(
    ("method", "steps"), [("on_start", 0), ("on_update", 32), ("on_phase", 32), ("on_evaluation", 64), ("on_end", 96)]
)
def test_a_callback_stops_training(
    method: str, steps: int, whole: tr.PPO, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = Diary()
    agent = tr.PPO("CartPole-v1", **STOPPED).learn(run_dir=tmp_path, callbacks=[StopsIn(method), diary])
    assert agent.steps == steps
    assert diary.heard[-1] == ("end", (steps, None if method == "on_end" else "good enough", None))
    assert f"stopped after {steps} steps: good enough" in capsys.readouterr().out
    assert_same_state(whole, tr.load(tmp_path).learn(quiet=True))  # from where it was stopped


def test_a_callback_changes_settings() -> None:
    class Halve(tr.Callback):
        def on_phase(self, row: dict[str, Any]) -> None:
            rates.append(row["charts/learning_rate"])
            agent.change(learning_rate=rates[-1] / 2)

    rates: list[float] = []
    agent = tr.PPO("CartPole-v1", **SMALL, learning_rate=8e-3, anneal_lr=False)
    agent.learn(quiet=True, callbacks=[Halve()])
    assert rates == pytest.approx([8e-3, 4e-3, 2e-3])


@pytest.mark.parametrize("wrong", [print, [print], [tr.Callback], Diary(), None])
def test_what_is_no_list_of_callbacks_is_refused(wrong: Any) -> None:
    with pytest.raises(tr.UsageError, match=r"a list of tr\.Callback objects"):
        tr.PPO("CartPole-v1", **SMALL).learn(callbacks=wrong)


def test_one_that_fails_inside_of_another_is_called_no_more() -> None:
    class Filmed(tr.Callback):
        def on_update(self, state: Any) -> None:
            everyone.call("on_video", Path("a.mp4"), 1)

    class Broken(tr.Callback):
        may_fail, calls = True, 0

        def on_video(self, path: Path, step: int) -> None:
            raise OSError

        def on_update(self, state: Any) -> None:
            self.calls += 1

    broken = Broken()
    everyone = CallbackList([Filmed(), broken])
    everyone.call("on_update", None)
    assert everyone.callbacks == everyone.callbacks[:1]
    assert broken.calls == 0
