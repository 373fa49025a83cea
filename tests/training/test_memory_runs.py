"""Agents with memory, from the outside: predicting, scoring, filming, saving, exporting, and one line for what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from run_helpers import Plain, refusal
from torch import Tensor, nn

import tightrope as tr
from tightrope.envs.with_memory import EnvWithMemory
from tightrope.errors import UsageError
from tightrope.models.memory import Memory

SMALL: dict[str, Any] = dict(
    memory="gru",
    memory_size=8,
    hidden_sizes=(16,),
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    total_timesteps=128,
    device="cpu",
    defaults="plain",
    eval_every=0,
)


class Decay(Memory):
    """A user's own."""

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.state_size = self.out_features = size
        self.layer = nn.Linear(in_features, size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.8 * state + self.layer(x)
        return state.tanh(), state


class Countdown(Plain):
    """Shows how many steps are left as one of several choices beside a mask."""

    observation_space = gs.Dict({"left": gs.Discrete(6), "action_mask": gs.MultiBinary(2)})  # type: ignore[assignment]

    def shown(self) -> Any:
        return {"left": self.length - self.time, "action_mask": np.array([1, self.time % 2], np.int8)}


def agent(env: Any = "CartPole-v1", **settings: Any) -> tr.PPO:
    return tr.PPO(env, **SMALL | settings)


@pytest.mark.parametrize(
    ("env", "memory"),
    [
        *(("CartPole-v1", memory) for memory in ("gru", "lstm", "mingru")),
        ("Pendulum-v1", "lstm"), ("MaskProbe-v0", "mingru"), ("FrozenLake-v1", "gru"), (Countdown, "gru"),
    ],
    ids=str,
)  # fmt: skip
def test_predicting_with_the_state_plays_the_episodes_of_an_evaluation(env: Any, memory: str, tmp_path: Path) -> None:
    short = dict(max_episode_steps=40, norm_obs=env != "FrozenLake-v1")
    mine = agent(env, memory=memory, memory_layers=2, **short).learn(quiet=True)
    mine.save(tmp_path / "run")
    policy = tr.load_policy(tmp_path / "run")
    same = tr.load(tmp_path / "run", env=Countdown if env is Countdown else None)
    score = mine.evaluate(3, seed=5)
    assert same.evaluate(3, seed=5) == score
    twin = mine.score_env.spawn(3, 5)
    if hasattr(twin, "seed"):
        twin.seed(5)
        obs = twin.reset()
    else:
        obs = twin.reset(seed=5)
    rows = mine.state.policy.memory_rows
    assert rows is not None
    running, total = np.ones(3, bool), np.zeros(3)
    shown = EnvWithMemory(twin, rows)
    table = rows.start(obs)
    state: Any = None
    for _ in range(600):
        with torch.no_grad():
            given = mine.state.policy.act(table)[1]  # type: ignore[operator]
        action, _ = rows.split_action(given, twin.action)
        if not hasattr(twin, "decode"):  # a tensor environment's observations are what predict takes
            guess, state = mine.predict(table[:, : rows.width], state)
            also, _ = policy.predict(table[:, : rows.width], table[:, rows.width + 1 :])
            assert torch.equal(guess, action)
            assert torch.equal(also, action)
        step = shown.step(given)
        total += np.where(running, step.reward.numpy(), 0)
        running &= ~(step.terminated | step.truncated).numpy()
        table = step.obs
        if state is not None:
            state = torch.where((step.terminated | step.truncated)[:, None], 0.0, state)
        if not running.any():
            break
    np.testing.assert_allclose(total, score.returns, rtol=1e-4)


def test_the_forms_of_a_state() -> None:
    mine = agent()
    action, state = mine.predict([0.0, 0.1, 0.02, -0.1])
    assert action in (0, 1)
    assert isinstance(state, np.ndarray)
    assert state.shape == (16,)
    _, later = mine.predict([0.0, 0.1, 0.02, -0.1], state)
    assert not np.allclose(state, later)
    _, batch = mine.predict(torch.zeros(3, 4))
    assert isinstance(batch, Tensor)
    assert batch.shape == (3, 16)
    singles = [mine.predict([0.0, 0.0, 0.0, 0.0], row)[1] for row in batch.numpy()]
    np.testing.assert_allclose(mine.predict(torch.zeros(3, 4), batch)[1], np.stack(singles), atol=1e-6)
    assert "state has shape (3,): give (1, 16)" in refusal(mine.predict, [0.0] * 4, [0.0, 1.0, 2.0])
    assert "state 'x' is not numbers: give (1, 16)" in refusal(mine.predict, [0.0] * 4, "x")
    assert "state has numbers that are not finite" in refusal(mine.predict, [0.0] * 4, [float("nan")] * 16)
    assert "give deterministic=True by name" in refusal(mine.predict, [0.0] * 4, True)
    assert "this policy has no memory" in refusal(agent(memory=None).predict, [0.0] * 4, np.zeros(16))


@pytest.mark.parametrize(
    ("env", "memory"), [("CartPole-v1", "gru"), ("Pendulum-v1", "lstm"), (Countdown, "mingru")], ids=str
)
def test_an_exported_policy_agrees_over_an_episode(env: Any, memory: str, tmp_path: Path, onnxruntime: Any) -> None:
    mine = agent(env, memory=memory, memory_layers=2).learn(quiet=True)
    exported = mine.export(tmp_path / "policy.onnx")
    assert exported.inputs[-1] == "state"
    assert exported.outputs[-1] == "next_state"
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    rows = mine.state.policy.memory_rows
    assert rows is not None
    state, theirs = None, np.zeros((1, rows.state_size), np.float32)
    generator = np.random.default_rng(0)
    for step in range(8):
        if env is Countdown:
            obs: Any = {"left": step % 6, "action_mask": np.array([1, step % 2], np.int8)}
            given = {"left": np.array([obs["left"]]), "action_mask": obs["action_mask"][None]}
        else:
            obs = generator.normal(size=mine.score_env.observation.shape).astype(np.float32)
            given = {"obs": obs[None]}
        action, state = mine.predict(obs, state)
        answers = dict(
            zip(exported.outputs, session.run(list(exported.outputs), {**given, "state": theirs}), strict=True)
        )
        theirs = answers["next_state"]
        np.testing.assert_allclose(theirs[0], state, atol=1e-5)
        np.testing.assert_allclose(answers["action"][0], action, atol=1e-4)
    assert np.abs(theirs).max() > 1e-3


def test_videos_reports_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tightrope.cli import exit_code

    words = ["train", "CartPoleNoVelocity-v0", "--memory", "mingru", "--memory-size", "8", "--total-timesteps", "16384"]
    assert exit_code([*words, "--run-dir", str(tmp_path / "run"), "--eval-episodes", "2", "--device", "cpu"]) == 0
    assert "plain PyTorch" not in capsys.readouterr().out  # it was recorded
    assert exit_code(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    with tr.load(tmp_path / "run") as mine:
        assert mine.config.network.memory == "mingru"
        film = mine.record(tmp_path / "film.mp4", episodes=1)
        assert film.frames > 5
        assert "memory_size 9 cannot replace 8" in refusal(tr.load, tmp_path / "run", memory_size=9)


def test_a_users_own_memory(tmp_path: Path) -> None:
    mine = agent(memory=Decay).learn(quiet=True, run_dir=tmp_path / "run")
    assert mine.config.network.memory == f"{__name__}:Decay"
    assert mine.state.policy.recordings.refusal is None
    again = tr.load(tmp_path / "run")
    assert again.predict([0.0] * 4)[0] == mine.predict([0.0] * 4)[0]
    assert agent(memory=f"{__name__}:Decay").config == agent(memory=Decay).config


def test_what_does_not_work_is_said_in_one_line() -> None:
    for settings, words in (
        (dict(memory="rnn"), "memory 'rnn' is unknown: give gru, lstm, mingru, module:Class of your own, or none"),
        (dict(memory="nowhere:Class"), "memory 'nowhere:Class' cannot be imported"),
        (dict(memory="math:pi"), "memory math:pi is not a class of nn.Module"),
        (dict(memory=nn.Linear(2, 2)), "memory Linear is an object: give its class"),
        (dict(memory=nn.Linear), "memory Linear cannot be made and called"),
        (dict(memory_size=0), "memory_size 0 is too small"),
        (dict(num_envs=6, num_steps=8, num_minibatches=4), "num_minibatches 4 does not divide num_envs (with memory"),
        (dict(lstm_hidden_size=8), "here it is called memory_size"),
        (dict(n_lstm_layers=8), "here it is called memory_layers"),
    ):
        assert words in refusal(agent, **settings), words  # type: ignore[arg-type]
    assert "give an env id and memory='lstm'" in refusal(tr.PPO, "MlpLstmPolicy", "CartPole-v1")


def test_the_command_that_probes_refuses_an_unknown_memory(capsys: pytest.CaptureFixture[str]) -> None:
    from tightrope.cli import exit_code

    assert exit_code(["probe", "--memory", "rnn"]) == 2
    assert "memory 'rnn' is unknown" in capsys.readouterr().err


class Stubborn(Plain):
    """An environment like any other."""


def test_defaults_with_memory_suit_any_number_of_environments() -> None:
    for count in (6, 10, 7):
        mine = tr.PPO(Plain, memory="gru", num_envs=count, device="cpu")
        assert count % mine.config.algorithm.minibatches_per_epoch == 0
        assert mine.config.algorithm.num_steps >= 64


class Forgetful(Decay):
    """Its unroll does not start anew where an episode does."""

    def unroll(self, x: torch.Tensor, state: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        return super().unroll(x, state, torch.zeros_like(first))


def test_an_unroll_that_is_not_its_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="memory Forgetful unrolls other features than its steps give"):
        tr.PPO("CartPole-v1", memory=Forgetful, num_envs=4, num_steps=8, num_minibatches=2, device="cpu")


def test_a_memory_of_ones_own_is_named_on_the_command_line(tmp_path: Path, run_command: Any, monkeypatch: Any) -> None:
    source = """
import torch
from tightrope.models.memory import Memory


class Mean(Memory):
    def __init__(self, in_features, size):
        super().__init__()
        self.state_size = self.out_features = size
        self.layer = torch.nn.Linear(in_features, size)

    def step(self, x, state):
        state = 0.9 * state + 0.1 * self.layer(x)
        return state.tanh(), state
"""
    (tmp_path / "memory_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    run, name = tmp_path / "run", "memory_of_mine:Mean"
    words = ["--num-envs", 4, "--num-steps", 8, "--num-minibatches", 2, "--total-timesteps", 64, "--eval-episodes", 0]
    done = run_command("train", "CartPole-v1", "--memory", name, *words, "--run-dir", run, "--device", "cpu")
    assert done.code == 0, done.err

    del sys.modules["memory_of_mine"]  # as in another process
    refused = run_command("eval", run, "--episodes", 2)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"give --memory {name}" in refused.err
    assert run_command("eval", run, "--episodes", 2, "--memory", name).code == 0
    del sys.modules["memory_of_mine"]
    assert run_command("resume", run, "--total-timesteps", 128, "--memory", name, "--quiet").code == 0
