"""Behaviour cloning with memory: states along demonstrations, what only a memory can imitate, teachers with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import refusal
from torch import Tensor

import tightrope as tr
from tightrope.envs import TensorEnv
from tightrope.training.demonstrations import remember, sequences_of, teacher_of, watched
from tightrope.types import Box, Discrete

SMALL: dict[str, Any] = dict(num_envs=16, num_steps=16, hidden_sizes=(16, 16), num_minibatches=2, device="cpu")


class Cue(TensorEnv):
    """The right arm is shown at the first of six steps; a teacher sees it all the time."""

    observation, action, noise_size, time_limit = Box((2,)), Discrete(2), 1, 6

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([(noise > 0.5).float(), torch.zeros_like(noise)], 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([state[:, 0], state[:, 1] + 1], 1)

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([(2 * state[:, 0] - 1) * (state[:, 1] == 0), state[:, 1] / 6], 1)

    def privileged(self, state: Tensor) -> Tensor:
        return state[:, :1]

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (action == state[:, 0]).float()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    settings = dict(actor_obs=("observation", "privileged"), learning_rate=1e-2, total_timesteps=20_000, seed=1)
    agent = tr.PPO(Cue(num_envs=16), **{**SMALL, **settings}).learn(run_dir=path, quiet=True)
    assert agent.evaluate(100).mean == 6
    return path


def student(**settings: Any) -> Any:
    return tr.PPO(Cue(num_envs=16), **{**SMALL, "memory_size": 8, "norm_obs": True, **settings})


@pytest.mark.parametrize("memory", ["gru", "lstm", "mingru"])
def test_states_are_those_of_acting_step_by_step(memory: str, teacher: Path) -> None:
    agent = student(memory=memory, memory_layers=2)
    state, rows = agent.state, agent.state.policy.memory_rows
    shown = watched(state, agent.config, teacher_of(teacher, state.env), 16 * 40)
    rollout, last = shown.rollout, shown.last_obs
    assert rollout is not None
    assert last is not None
    assert len(rollout.obs) == 48, "whole sequences of num_steps"
    remember(state.policy, rollout, last)
    obs, first, states = rows.split(rollout.obs)
    for env in (0, 7, 15):
        memory_state, action = None, None
        for t in range(48):
            assert float(first[t, env]) == (t % 6 == 0)
            memory_state = None if t % 6 == 0 else memory_state
            expected = torch.zeros(rows.state_size) if memory_state is None else memory_state
            torch.testing.assert_close(states[t, env], expected, rtol=1e-4, atol=1e-5)
            action, memory_state = agent.predict(obs[t, env], memory_state)
            torch.testing.assert_close(
                rollout.final_obs[t, env, -rows.state_size :], memory_state, rtol=1e-4, atol=1e-5
            )
    assert action is not None
    assert not last[:, -rows.state_size :].any(), "48 steps are eight whole episodes"
    cut = sequences_of(rollout.obs, 16)
    assert torch.equal(cut[1], rollout.obs[16:32, 0])
    assert torch.equal(cut[5], rollout.obs[32:48, 1])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_student_with_memory_imitates_what_another_cannot(seed: int, teacher: Path) -> None:
    recalls = student(memory="gru", seed=seed, norm_reward=True)
    result = recalls.imitate(teacher, steps=8000, epochs=5, learning_rate=1e-2)
    assert result.before == pytest.approx(np.log(2), abs=0.1)
    assert result.after < 0.05
    assert result.explained_variance > 0.8
    assert result.rows == 461 * 16, "nine tenths of 512 sequences"
    assert recalls.evaluate(100).mean > 5.8
    assert (recalls.steps, bool(recalls.state.obs[:, -8:].any())) == (0, False)
    forgets = student(seed=seed)
    assert forgets.imitate(teacher, steps=8000, epochs=5, learning_rate=1e-2).after > 0.5
    assert forgets.evaluate(100).mean < 4.5


def test_a_teacher_may_have_a_memory(teacher: Path, tmp_path: Path) -> None:
    first = student(memory="mingru")
    first.imitate(teacher, steps=8000, epochs=5, learning_rate=1e-2)
    first.save(tmp_path / "first")
    for settings in (dict(memory="lstm"), dict(actor_obs=("observation", "privileged"))):
        second = student(seed=2, **settings)
        assert second.imitate(tmp_path / "first", steps=4000, epochs=6, learning_rate=1e-2).after < 0.1
        assert second.evaluate(100).mean > 5.5


def test_reinforce_and_a_baseline_without_values(teacher: Path) -> None:
    agent = tr.VPG(Cue(num_envs=16), memory="gru", memory_size=8, num_envs=16, num_steps=12, device="cpu")
    result = agent.imitate(teacher, steps=2000, epochs=2, learning_rate=1e-2)
    assert result.explained_variance is None
    assert result.after < result.before


def test_a_file_has_no_starts_of_episodes(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", obs=np.zeros((50, 4), "f4"), action=np.zeros(50, int))
    agent = tr.PPO("CartPole-v1", memory="gru", **SMALL)
    assert "memory 'gru' needs to know where episodes start" in refusal(agent.imitate, tmp_path / "rows.npz")


def test_clone_takes_memory_as_a_setting(teacher: Path, tmp_path: Path, run_command: Any, monkeypatch: Any) -> None:
    (tmp_path / "cues.py").write_text("from test_imitation_memory import Cue\n\nclass Mine(Cue):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    words = "--env cues:Mine --memory gru --memory-size 8 --num-envs 16 --num-steps 16 --num-minibatches 2"
    code, out, _ = run_command(
        "clone", teacher, *words.split(), "--steps", 4000, "--epochs", 5, "--clone-rate", "1e-2", "--run-dir", "student"
    )
    assert code == 0
    assert "values explain" in out
    with tr.load("student", env="cues:Mine") as agent:
        assert agent.evaluate(50).mean > 5.8
        agent.learn(512, quiet=True)
