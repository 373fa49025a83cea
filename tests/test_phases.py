"""Training from outside: a loop over agent.phases() is learn(), and may be left at any time."""

import json
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import PythonProcess
from run_helpers import refusal

import tightrope as tr

ROOT = Path(tr.__file__).parents[1]
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=5 * 32, device="cpu", seed=3)


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def same(a: tr.Agent, b: tr.Agent) -> bool:
    return torch.equal(a.state.optimizer.flat, b.state.optimizer.flat)


@pytest.mark.parametrize("kind", [tr.PPO, tr.VPG])
def test_it_is_learn(kind: type[tr.Agent], tmp_path: Path) -> None:
    agent, whole = kind("CartPole-v1", **SMALL), kind("CartPole-v1", **SMALL).learn(quiet=True)
    rows = []
    for row in agent.phases(run_dir=tmp_path):
        assert row["step"] == agent.steps
        assert agent.evaluate(2).mean > 0
        np.random.rand(3), torch.rand(3)  # of the caller's own streams
        rows.append(row)
    assert same(agent, whole)
    assert rows == rows_of(tmp_path)
    assert list(agent.phases()) == []  # nothing is left to do


def test_the_callers_random_numbers_are_its_own() -> None:
    torch.manual_seed(5)
    expected = torch.rand(5)
    torch.manual_seed(5)
    drawn = [torch.rand(1) for _ in tr.PPO("CartPole-v1", **SMALL).phases()]
    assert torch.equal(torch.cat(drawn), expected)


@pytest.mark.parametrize("leave", ["break", "raise", "close", "drop"])
def test_who_leaves_early_leaves_a_run_that_goes_on(leave: str, tmp_path: Path) -> None:
    whole, agent = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True), tr.PPO("CartPole-v1", **SMALL)
    if leave in ("close", "drop"):
        rows = agent.phases(run_dir=tmp_path)
        next(rows), next(rows)
        rows.close() if leave == "close" else None  # type: ignore[attr-defined]
        del rows
    else:
        with pytest.raises(ZeroDivisionError) if leave == "raise" else nullcontext():
            for row in agent.phases(run_dir=tmp_path):
                if row["phase"] == 2:
                    if leave == "break":
                        break
                    raise ZeroDivisionError
    assert agent.steps == 64
    assert len(rows_of(tmp_path)) == 2
    assert "stopped" in (tmp_path / "report.html").read_text()
    assert same(tr.load(tmp_path).learn(quiet=True), whole)
    assert same(agent, tr.load(tmp_path, checkpoint="0001-steps-64"))


def test_a_program_that_fails_in_the_loop_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    code = (
        f"import tightrope as tr\nfor row in tr.PPO('CartPole-v1', **{SMALL!r}).phases(run_dir='run'):\n"
        "    if row['phase'] == 2:\n        raise ZeroDivisionError\n"
    )
    _, err = PythonProcess("-c", code, cwd=tmp_path).communicate()
    assert err.rstrip().endswith("ZeroDivisionError")
    whole = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    assert same(tr.load(tmp_path / "run").learn(quiet=True), whole)


def test_settings_change_between_phases_and_are_kept(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", **SMALL, learning_rate=1e-2, anneal_lr=False)
    rates = []
    for row in agent.phases(run_dir=tmp_path):
        rates.append(row["charts/learning_rate"])
        if row["phase"] == 2:
            agent.change(learning_rate=1e-3, ent_coef=0.5, update_epochs=2)
        if row["phase"] == 4:
            agent.change(gamma=0.5)
            break
    assert rates == pytest.approx([1e-2, 1e-2, 1e-3, 1e-3])
    shutil.copytree(tmp_path, tmp_path / "copy")
    again = tr.load(tmp_path / "copy")
    assert (again.config.algorithm.ent_coef, again.config.algorithm.gamma) == (0.5, 0.5)
    assert "gamma: 0.5" in (tmp_path / "config.yaml").read_text()
    assert same(again.learn(quiet=True), agent.learn(quiet=True))


def test_a_changed_setting_is_the_one_that_trains() -> None:
    agent, other = (tr.PPO("CartPole-v1", **SMALL, ent_coef=coef) for coef in (0.0, 0.3))
    agent.change(ent_coef=0.3)
    assert same(agent.learn(quiet=True), other.learn(quiet=True))


def test_what_the_agent_was_made_with_cannot_change_and_wrong_settings_are_refused() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    for name in ("num_envs", "num_steps", "total_timesteps", "hidden_sizes", "seed", "log"):
        assert f"{name} cannot be changed" in refusal(agent.change, **{name: 7})
    assert "Did you mean ent_coef" in refusal(agent.change, ent_coeff=1)
    assert "gamma 2" in refusal(agent.change, gamma=2)


def test_one_training_at_a_time() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    for _ in agent.phases():
        assert "is being trained already" in refusal(agent.learn)
        break
    assert agent.learn(quiet=True).steps == 160


def test_until_and_callbacks_end_the_loop(tmp_path: Path) -> None:
    class Stop(tr.Callback):
        def on_phase(self, row: dict[str, Any]) -> None:
            if row["phase"] == 4:
                raise tr.StopTraining

    agent = tr.PPO("CartPole-v1", **SMALL)
    assert [row["phase"] for row in agent.phases(until=64, run_dir=tmp_path)] == [1, 2]
    assert [row["phase"] for row in agent.phases(callbacks=[Stop()])] == [3, 4]


@pytest.mark.parametrize("where", ["in the loop", "in a phase"])
def test_ctrl_c_leaves_a_run_that_goes_on(where: str, tmp_path: Path) -> None:
    class Press(tr.Callback):
        def on_update(self, state: Any) -> None:
            if state.phase == 2 and where == "in a phase":
                signal.raise_signal(signal.SIGINT)

    def loop() -> None:
        for row in agent.phases(run_dir=tmp_path, callbacks=[Press()]):
            assert row["phase"] <= 2
            if row["phase"] == 2 and where == "in the loop":
                signal.raise_signal(signal.SIGINT)

    agent = tr.PPO("CartPole-v1", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        loop()
    assert agent.steps == 64
    assert tr.load(tmp_path).learn(quiet=True).steps == 160
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
