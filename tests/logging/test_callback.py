"""Who watches a run: everyone is told everything, and nobody can stop it."""

from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.logging import Callback, RunInfo

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")


class Diary(Callback):
    name = "a diary"

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_start(self, run: RunInfo) -> None:
        self.heard.append(("start", run.title))

    def on_update(self, state: Any) -> None:
        self.heard.append(("update", state.phase))

    def on_phase(self, row: dict[str, Any]) -> None:
        self.heard.append(("row", row["phase"]))

    def on_end(self, result: Any) -> None:
        self.heard.append(("end", result.steps))


class Clumsy(Callback):
    name = "a clumsy one"
    may_fail = True

    def on_phase(self, row: dict[str, Any]) -> None:
        raise ZeroDivisionError("oh\nno")


def test_everyone_is_told_everything_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = Diary()
    monkeypatch.setattr("tightrope.runs.train.built_in_callbacks", lambda *_: [diary])
    tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path)
    phases = [(kind, i) for i in (1, 2, 3) for kind in ("update", "row")]
    assert diary.heard == [("start", "CartPole-v1 ppo"), *phases, ("end", 96)]


def test_who_fails_says_so_once_and_nobody_else_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diary = Diary()
    monkeypatch.setattr("tightrope.runs.train.built_in_callbacks", lambda *_: [Clumsy(), diary])
    assert tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path).steps == 96
    assert diary.heard[-1] == ("end", 96)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: a clumsy one failed and is left out from here on: ZeroDivisionError: oh no"
