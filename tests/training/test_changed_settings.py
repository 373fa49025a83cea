"""Settings that change when a run resumes or while it trains: said in one line, kept with the step, used from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.training.checkpoint_reader import find
from tightrope.training.reports import gathered
from tightrope.training.schedules import Change, change_lines, changes_between, read_changes, resumed_with

SMALL: dict[str, Any] = dict(
    num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=96, hidden_sizes=(4,), device="cpu", max_episode_steps=9,
    learning_rate=1e-3, anneal_lr=False, anneal_clip=False, eval_episodes=0, video_every=0, threads=1,
)  # fmt: skip
Command = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of six phases that stopped after two."""
    tr.PPO("CartPole-v1", **SMALL).learn(run_dir=tmp_path / "run", until=32, quiet=True)
    return tmp_path / "run"


def saved(run: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((run / "config.yaml").read_text()))


def changed_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("changed at")]


def test_changes_take_effect_are_said_once_and_stay(run: Path, run_command: Command) -> None:
    code, out, _ = run_command("resume", run, "--learning-rate", "1e-4", "--gamma", "0.9", "--ent-coef", "0.5")
    assert code == 0
    (line,) = changed_lines(out)
    assert line.startswith("changed at 32 steps: learning_rate 0.001 -> 0.0001, gamma 0.99 -> 0.9, ent_coef ")
    assert line.endswith("-> 0.5; from here on the run differs from one that was not changed")
    first = {"step": 32, "setting": "learning_rate", "from": 0.001, "to": 0.0001}
    assert saved(run)["changes"][0] == first
    assert find(run).manifest["config"]["changes"][0] == first, "the checkpoint has the history too"
    code, out, _ = run_command("resume", run, "--total-timesteps", "112")
    assert changed_lines(out) == ["changed at 96 steps: total_timesteps 96 -> 112"], "nothing varies: still exact"
    with tr.load(run) as agent:
        assert agent.config.algorithm.learning_rate == 1e-4
        assert [(change.step, change.setting) for change in agent.config.changes] == [
            (32, "learning_rate"), (32, "gamma"), (32, "ent_coef"), (96, "total_timesteps"),
        ]  # fmt: skip


def test_a_run_resumed_without_changes_has_no_history_and_equals_the_uninterrupted_one(run: Path) -> None:
    whole = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    again = tr.load(run, learning_rate=1e-3, keep_checkpoints=5).learn(quiet=True)
    assert torch.equal(whole.state.optimizer.flat, again.state.optimizer.flat)
    assert [entry["setting"] for entry in saved(run)["changes"]] == ["keep_checkpoints"]
    assert again.config.algorithm == whole.config.algorithm


def test_a_change_in_python_is_the_same_as_by_a_flag(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tr.load(run, learning_rate=5e-4, update_epochs=2, num_minibatches=1, target_kl=0.1) as agent:
        agent.learn()
        assert float(agent.state.optimizer.learning_rate) == pytest.approx(5e-4)
    (line,) = changed_lines(capsys.readouterr().out)
    assert "learning_rate 0.001 -> 0.0005" in line
    assert "target_kl None -> 0.1" in line
    with tr.load(run) as agent:
        assert agent.config.algorithm.update_epochs == 2  # type: ignore[attr-defined]


def test_changes_while_training_are_kept_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    agent = tr.PPO("CartPole-v1", **SMALL)
    for row in agent.phases(run_dir=run):
        if row["step"] == 48:
            agent.change(ent_coef="linear(0.1, 0)", learning_rate=2e-3)
    agent.learn(128, quiet=True)
    found = [(c["step"], c["setting"], c["to"]) for c in saved(run)["changes"]]
    assert found == [(48, "learning_rate", 0.002), (48, "ent_coef", "linear(0.1, 0)"), (96, "total_timesteps", 128)]
    assert [(c.step, c.setting) for c in agent.config.changes] == [entry[:2] for entry in found]


def test_the_report_and_a_new_run_read_the_history(run: Path, run_command: Command, tmp_path: Path) -> None:
    run_command("resume", run, "--learning-rate", "1e-4", "--quiet")
    assert "changed at 32 steps: learning_rate 0.001 -> 0.0001" in gathered(run).info.plan
    assert "changed at 32 steps" in (run / "report.html").read_text()
    new = tmp_path / "new"
    assert run_command("train", "--config", run / "config.yaml", "--run-dir", new, "--quiet").code == 0
    assert "changes" not in saved(new), "a new run has no history"
    assert saved(new)["learning_rate"] == 1e-4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--num-envs 4", "num_envs 4 cannot replace 2 in a trained run: drop it, or train a new run"),
        ("--num-steps 4", "num_steps 4 cannot replace 8"),
        ("--hidden-sizes 8", "hidden_sizes [8] cannot replace [4]"),
        ("--algo vpg", "algo cannot be changed: this run is ppo on CartPole-v1"),
        ("--env Pendulum-v1", "a run continues on its own environment, CartPole-v1"),
        ("--learning-rate linear(1)", "neither a number nor a schedule"),
        ("--learning-rate linear(1,0) --anneal-lr", "anneal_lr is for a number: drop anneal_lr"),
    ],
)
def test_what_cannot_change_is_one_line(flags: str, words: str, run: Path, run_command: Command) -> None:
    before = saved(run)
    code, out, complaint = run_command("resume", run, *flags.split())
    assert (code, out, complaint.count("\n")) == (2, "", 1)
    assert words in complaint
    assert saved(run) == before


def test_a_baseline_cannot_change(tmp_path: Path) -> None:
    settings = {name: value for name, value in SMALL.items() if name not in ("num_minibatches", "anneal_clip")}
    tr.VPG("CartPole-v1", **settings).learn(run_dir=tmp_path / "run", until=32, quiet=True)
    with pytest.raises(UsageError, match="baseline critic cannot replace timestep in a trained run"):
        tr.load(tmp_path / "run", baseline="critic")


def test_changed_settings_of_train_resume(run: Path, run_command: Command) -> None:
    words = ["train", "CartPole-v1", "--run-dir", run, "--resume", "--learning-rate", "1e-4"]
    code, out, _ = run_command(*words)
    assert code == 0
    assert len(changed_lines(out)) == 1
    assert saved(run)["learning_rate"] == 1e-4


# the history itself -----------------------------------------------------------------------------------------------------


def test_the_history_of_a_stranger_is_read_with_care() -> None:
    good = {"step": 3, "setting": "gamma", "from": 0.9, "to": 0.99}
    assert read_changes([good, {"step": "3"}, 7, {"step": True, "setting": "x"}, None]) == (
        Change(3, "gamma", 0.9, 0.99),
    )
    for wrong in (None, 3, "text", {"step": 3}):
        assert read_changes(wrong) == ()
    assert change_lines([Change(3, "a\nb", 1, 2), Change(3, "c", 1, 2), Change(5, "d", None, "x")]) == [
        "changed at 3 steps: a\\nb 1 -> 2, c 1 -> 2", "changed at 5 steps: d None -> x",
    ]  # fmt: skip


def test_settings_of_the_machine_are_no_change() -> None:
    before = {"device": "cuda", "threads": 4, "gamma": 0.9}
    assert changes_between(before, {"device": "cpu", "threads": 1, "gamma": 0.9}, 3) == ()


def test_only_what_changes_numbers_ends_exactness() -> None:
    length = [Change(8, "total_timesteps", 1, 2)]
    assert resumed_with([], True) == []
    assert resumed_with([Change(8, "log", [], ["wandb"])], True) == ["changed at 8 steps: log [] -> ['wandb']"]
    assert "differs" not in resumed_with(length, varies=False)[0]
    assert "differs" in resumed_with(length, varies=True)[0]
    assert "differs" in resumed_with([Change(8, "gamma", 1, 2)], False)[0]
