"""Behaviour cloning: the loss against its definition, teachers that see more, files, and starting from a student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from run_helpers import refusal, start_command
from safetensors.numpy import save_file
from torch import Tensor

import tightrope as tr
from tightrope.engine import Optimizer, Runtime
from tightrope.envs import TensorEnv
from tightrope.functional import ImitationLoss
from tightrope.models import NetworkConfig, actor_critic
from tightrope.training.demonstrations import rows_of, teacher_of, watched
from tightrope.types import Batch, Box, Discrete, Rollout, Spec

SMALL: dict[str, Any] = dict(num_envs=16, num_steps=16, hidden_sizes=(16, 16), device="cpu")


# the loss ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Discrete(3), Box((2,), -1.0, 1.0)], ids=str)
def test_the_loss_is_the_negative_log_likelihood_and_half_the_squared_error(action: Spec) -> None:
    torch.manual_seed(0)
    policy = actor_critic(Box((4,)), action, NetworkConfig(hidden_sizes=(8,)))
    optimizer, obs = Optimizer(policy), torch.randn(32, 4)
    with torch.no_grad():
        taken = policy.distribution(obs).sample(policy.head.noise((32,), torch.Generator().manual_seed(1)))
    target, zeros = torch.randn(32), torch.zeros(32)
    batch = Batch(obs, taken, zeros, zeros, zeros, target)
    terms = Runtime().backward(ImitationLoss(0.7), policy, batch, optimizer)
    distribution, value = policy(obs)
    total = sum(-distribution.log_prob(taken)[i] + 0.7 * 0.5 * (value[i] - target[i]) ** 2 for i in range(32)) / 32
    expected = torch.autograd.grad(total, [*policy.parameters()])
    for parameter, wanted in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(optimizer.grads[parameter], wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(terms.negative_log_likelihood + 0.7 * terms.value_loss, total.detach())
    total, terms = ImitationLoss(0.0)(policy, batch)
    assert float(terms.value_loss) == 0
    assert torch.autograd.grad(total, policy.value_head.weight, allow_unused=True)[0] is None  # type: ignore[union-attr]


def test_rows_follow_one_environment_after_the_other_without_invalid_ones() -> None:
    rollout = Rollout.allocate(3, tr.envs.CartPole(2))
    rollout.valid[1, 0] = False
    column = torch.arange(6).view(3, 2)
    assert rows_of(rollout, column).tolist() == [0, 4, 1, 3, 5]


# teachers ------------------------------------------------------------------------------------------------------------------


class Signs(TensorEnv):
    """The right arm is shown on a sign that only a teacher sees, and half of the time on a weather vane too."""

    observation, action, noise_size = Box((2,)), Discrete(2), 2

    def initial(self, noise: Tensor) -> Tensor:
        return (noise > 0.5).float()

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([state[:, 0] * state[:, 1], state[:, 1]], 1)

    def privileged(self, state: Tensor) -> Tensor:
        return state[:, :1]

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (action == state[:, 0]).float()

    def terminated(self, state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0], dtype=torch.bool)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sees everything, and is always right."""
    path = tmp_path_factory.mktemp("teacher") / "run"
    settings = dict(actor_obs=("observation", "privileged"), learning_rate=1e-2, total_timesteps=20_000, seed=1)
    agent = tr.PPO(Signs(num_envs=16), **{**SMALL, **settings}).learn(run_dir=path, quiet=True)
    assert agent.evaluate(100).mean == 1
    return path


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_student_that_sees_less_learns_what_can_be_seen(teacher: Path, seed: int) -> None:
    """Where the vane shows the arm the student is sure, elsewhere it gives each arm its frequency: that is the maximum."""
    student = tr.PPO(Signs(num_envs=16), norm_obs=True, seed=seed, **SMALL)
    result = student.imitate(teacher, steps=20_000, epochs=10)
    with torch.no_grad():
        rows = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        right = student.state.policy.distribution(rows).probs[:, 1]  # type: ignore[union-attr]
    assert right.tolist() == pytest.approx([0, 1, 0.5], abs=0.05)
    assert result.before == pytest.approx(np.log(2), abs=0.1)
    assert result.after == pytest.approx(np.log(2) / 2, abs=0.05)
    assert result.rows == 18_000
    assert student.evaluate(400).mean == pytest.approx(0.75, abs=0.1)


def test_only_networks_and_statistics_change(teacher: Path) -> None:
    student = tr.PPO(Signs(num_envs=16), norm_obs=True, norm_reward=True, seed=4, **SMALL)
    fresh = tr.PPO(Signs(num_envs=16), norm_obs=True, norm_reward=True, seed=4, **SMALL)
    student.imitate(teacher, steps=2000, epochs=1)
    state, other = student.state, fresh.state
    assert not torch.equal(state.optimizer.flat, other.optimizer.flat)
    assert int(state.policy.normalizer.count) == int(state.policy.reward_scaler.count) == 2000  # type: ignore[union-attr]
    for name in ("first_moment", "second_moment", "step_count"):
        assert not getattr(state.optimizer, name).any(), name
    assert (state.steps, state.phase) == (0, 0)
    assert torch.equal(state.obs, other.obs)
    assert torch.equal(state.env.state_dict()["generator"], other.env.state_dict()["generator"])
    again = tr.PPO(Signs(num_envs=16), norm_obs=True, norm_reward=True, seed=4, **SMALL)
    again.imitate(tr.load_policy(teacher), steps=2000, epochs=1)
    assert torch.equal(state.optimizer.flat, again.state.optimizer.flat), "a seed gives one student"


def test_values_are_those_of_the_teacher() -> None:
    """A pendulum's teacher: the student's values explain returns that it has not seen, and its spread is the teacher's."""
    settings = dict(num_envs=64, num_steps=64, device="cpu", norm_reward=True)
    master = tr.PPO("Pendulum-v1", seed=1, **settings)
    master.state.policy.head.log_std.data.fill_(-1.0)
    student = tr.PPO("Pendulum-v1", seed=2, **settings)
    result = student.imitate(master, steps=20_000)
    assert result.explained_variance is not None
    assert result.explained_variance > 0.9
    assert float(student.state.policy.head.log_std.detach()) == pytest.approx(-1, abs=0.1)
    assert "values explain 0.9" in str(result) or "values explain 1.0" in str(result)


def test_a_student_without_a_critic(teacher: Path) -> None:
    settings = dict(num_envs=16, num_steps=8, device="cpu", hidden_sizes=(16, 16))
    result = tr.VPG(Signs(num_envs=16), **settings).imitate(teacher, steps=2000, epochs=2)
    assert result.explained_variance is None
    assert result.after < result.before


def test_a_saved_student_starts_a_run(teacher: Path, tmp_path: Path) -> None:
    student = tr.PPO(Signs(num_envs=16), seed=5, **SMALL)
    student.imitate(teacher, steps=2000, epochs=2)
    student.save(tmp_path / "student")
    run = tr.PPO(Signs(num_envs=16), init_from=tmp_path / "student", seed=6, total_timesteps=512, **SMALL)
    assert torch.equal(run.state.optimizer.flat, student.state.optimizer.flat)
    assert run.learn(quiet=True).steps == 512
    assert tr.load(tmp_path / "student", env=Signs(num_envs=16), total_timesteps=512).learn(quiet=True).steps == 512


def test_a_teacher_acts_in_fresh_copies_as_in_training(teacher: Path) -> None:
    student = tr.PPO(Signs(num_envs=16), **SMALL)
    before = student.state.env.state_dict()["generator"]
    shown = watched(student.state, student.config, teacher_of(teacher, student.state.env), 1000)
    assert shown.obs.shape == (1008, 3), "whole rows of environments"
    assert torch.equal(before, student.state.env.state_dict()["generator"])
    assert shown.rollout is not None
    assert (shown.action == shown.obs[:, 2]).float().mean() > 0.95


# files ---------------------------------------------------------------------------------------------------------------------


class Doors(gymnasium.Env[Any, Any]):
    """A Dict observation and choices that count from 1."""

    observation_space = gs.Dict({"door": gs.Discrete(2, start=3), "light": gs.Box(-1, 1, (1,), np.float32)})
    action_space = gs.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.door = int(self.np_random.integers(2))
        return {"door": 3 + self.door, "light": np.zeros(1, np.float32)}, {}

    def step(self, action: Any) -> Any:
        reward = float(action - 1 == self.door)
        return {"door": 3 + self.door, "light": np.zeros(1, np.float32)}, reward, True, False, {}


def write(path: Path, **arrays: np.ndarray) -> Path:
    named = {name.replace("__", "/"): array for name, array in arrays.items()}
    if path.suffix == ".npz":
        np.savez(path, **named)
    else:
        save_file(named, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_is_imitated(suffix: str, tmp_path: Path) -> None:
    door = np.random.default_rng(0).integers(2, size=2000)
    light = np.zeros((2000, 1), np.float32)
    path = write(tmp_path / f"doors{suffix}", obs__door=door + 3, obs__light=light, action=door + 1)
    student = tr.PPO(Doors, num_envs=4, num_steps=16, num_minibatches=2, hidden_sizes=(16,), device="cpu")
    result = student.imitate(path, epochs=10)
    assert result.after < 0.2
    assert result.explained_variance is None
    assert student.evaluate(20).mean == 1
    seeing = dict(actor_obs=("door",), num_envs=4, num_steps=16, num_minibatches=2, device="cpu")
    part = write(tmp_path / f"part{suffix}", obs__door=door + 3, action=door + 1)
    assert tr.PPO(Doors, **seeing).imitate(part, epochs=10).after < 0.2
    student.close()


def test_continuous_actions_of_a_file_are_in_the_units_of_the_environment(tmp_path: Path) -> None:
    obs = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    path = write(tmp_path / "torque.npz", obs=obs, action=np.clip(obs[:, :1], -1, 1) + 0.5)
    student = tr.PPO("Pendulum-v1", num_envs=4, num_steps=16, num_minibatches=2, device="cpu")
    student.imitate(path, epochs=20)
    for shown in (-0.5, 0.0, 0.5):
        assert student.predict(np.array([shown, 0.0, 0.0], np.float32)) == pytest.approx(shown + 0.5, abs=0.15)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (dict(obs=np.zeros((50, 4), "f4")), "has obs: give arrays called obs and action"),
        (dict(obs=np.zeros((50, 3), "f4"), action=np.zeros(50, int)), "does not fit: give (4,)"),
        (dict(obs=np.zeros((50, 4), "f4"), action=np.zeros(49, int)), "50 observations and 49 actions"),
        (dict(obs=np.zeros((5, 4), "f4"), action=np.zeros(5, int)), "at least 20"),
        (dict(obs=np.zeros((50, 4), "f4"), action=np.full(50, 2)), "actions that are not in Discrete(2)"),
        (dict(obs=np.zeros((50, 4), "f4"), action=np.full(50, 0.5)), "actions that are not in Discrete(2)"),
        (dict(obs=np.zeros((50, 4), "f4"), action=np.zeros((50, 1))), "actions of shape (50, 1)"),
        (dict(obs=np.full((50, 4), np.nan, "f4"), action=np.zeros(50, int)), "not finite"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    student = tr.PPO("CartPole-v1", **SMALL)
    path = write(tmp_path / "wrong.npz", **arrays)
    assert words in refusal(student.imitate, path)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", obs=np.array([{}], dtype=object), action=np.zeros(1))
    student = tr.PPO("CartPole-v1", **SMALL)
    assert "cannot be read" in refusal(student.imitate, tmp_path / "pickled.npz")
    (tmp_path / "noise.npz").write_bytes(b"nothing of the kind")
    assert "cannot be read" in refusal(student.imitate, tmp_path / "noise.npz")
    (tmp_path / "noise.safetensors").write_bytes(b"nothing of the kind")
    assert "cannot be read" in refusal(student.imitate, tmp_path / "noise.safetensors")
    assert "cannot be read" in refusal(student.imitate, tmp_path / "none.npz")


# mistakes and the command --------------------------------------------------------------------------------------------------


def test_wrong_requests_are_one_line(teacher: Path, tmp_path: Path) -> None:
    student = tr.PPO(Signs(num_envs=16), total_timesteps=512, **SMALL)
    assert "is not a run" in refusal(student.imitate, tmp_path / "none")
    assert "teacher '7' is invalid" in refusal(student.imitate, 7)
    assert "epochs 0 is not positive" in refusal(student.imitate, teacher, epochs=0)
    assert "steps 1,000,000,000,000 do not fit into memory" in refusal(student.imitate, teacher, steps=10**12)
    for name, number in (("steps", "many"), ("steps", 1.5), ("steps", None), ("steps", float("inf")), ("steps", True),
                         ("epochs", 2.5), ("epochs", [1]), ("learning_rate", "fast"), ("learning_rate", float("nan")),
                         ("learning_rate", None)):  # fmt: skip
        assert f"{name} {number!r} is not a" in refusal(student.imitate, teacher, **{name: number})
    assert "the teacher has observations of Composite((3,))" in refusal(tr.PPO("CartPole-v1", **SMALL).imitate, teacher)
    student.learn(quiet=True)
    assert "has been trained for 512 steps" in refusal(student.imitate, teacher)


def test_the_command_saves_a_run(tmp_path: Path) -> None:
    tr.PPO("CartPole-v1", seed=1, total_timesteps=1024, **SMALL).learn(run_dir=tmp_path / "teacher", quiet=True)
    words = [
        "clone",
        str(tmp_path / "teacher"),
        "--run-dir",
        str(tmp_path / "student"),
        "--steps",
        "2000",
        "--epochs",
        "2",
    ]
    process = start_command(*words, "--hidden-sizes", "16", "16", "--eval-episodes", "5", "--device", "cpu")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "negative log-likelihood" in out
    assert "CartPole-v1: greedy return mean" in out
    assert f"tightrope resume {tmp_path / 'student'}` trains it further" in out
    assert tr.load_policy(tmp_path / "student").steps == 0
    process = start_command("clone", str(tmp_path / "none.npz"))
    assert "give --env" in process.communicate(timeout=120)[1]
    assert process.returncode == 2
