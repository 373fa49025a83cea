"""What trackers share: names of scalars, ours and Stable-Baselines3's, ids of their runs, histograms."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.logging.trackers.tracker import SB3, HistogramSchedule, ParameterCopy, named_scalars, save_id, saved_ids

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")
ROW = {
    "losses/total_loss": 1.745,
    "step": 2048, "phase": 3, "time": 1.5, "losses/policy_loss": -0.25, "losses/value_loss": 4.0, "losses/entropy": 0.5,
    "losses/approx_kl": 0.01, "losses/clipfrac": 0.125, "losses/explained_variance": 0.75, "losses/grad_norm": 2.0,
    "charts/learning_rate": 3e-4, "charts/SPS": 1000.0, "charts/episodic_return": 21.0, "charts/episodic_length": 20.0,
    "eval/episodic_return": 480.0, "eval/episodic_length": 479.0,
}  # fmt: skip


def test_our_names_are_those_of_the_metrics_file() -> None:
    row = {**ROW, "a": math.nan, "b": math.inf}  # which are no points
    assert named_scalars(row, "tightrope") == {k: v for k, v in ROW.items() if k != "step"}


def test_sb3_finds_its_names_and_its_numbers_under_them() -> None:
    expected = {
        "rollout/ep_rew_mean": 21.0,
        "rollout/ep_len_mean": 20.0,
        "train/policy_gradient_loss": -0.25,
        "train/value_loss": 8.0,  # the mean squared error, where ours is half of it
        "train/entropy_loss": -0.5,
        "train/approx_kl": 0.01,
        "train/clip_fraction": 0.125,
        "train/explained_variance": 0.75,
        "train/learning_rate": 3e-4,
        "train/loss": 1.745,
        "time/fps": 1000.0,
        "time/iterations": 3,
        "time/time_elapsed": 1.5,
        "time/total_timesteps": 2048,
        "eval/mean_reward": 480.0,
        "eval/mean_ep_length": 479.0,
        "losses/grad_norm": 2.0,  # they have no word for it
    }
    assert named_scalars(ROW, "sb3") == pytest.approx(expected)


def test_vpg_has_a2c_s_names() -> None:
    row = {"step": 1, "losses/objective": 0.5, "losses/entropy": 0.25, "losses/value_loss": 1.0}
    named = {
        "train/policy_loss": -0.5,
        "train/entropy_loss": -0.25,
        "train/value_loss": 2.0,
        "time/total_timesteps": 1.0,
    }
    assert named_scalars(row, "sb3") == named


def test_the_page_on_trackers_has_every_name() -> None:
    text = (Path(tr.__file__).parents[1] / "docs" / "reports.md").read_text()
    assert [name for pair in SB3.items() for name in (pair[0], pair[1][0]) if f"`{name}`" not in text] == []


def test_ids_are_kept_by_tracker(tmp_path: Path) -> None:
    save_id(tmp_path, "mlflow", "abc123")
    save_id(tmp_path, "wandb", "x-1_y")
    save_id(tmp_path, "mlflow", "def456")
    assert saved_ids(tmp_path) == {"mlflow": "def456", "wandb": "x-1_y"}
    assert [p.name for p in tmp_path.iterdir()] == ["trackers.json"]


def test_without_a_directory_nothing_is_kept() -> None:
    save_id(None, "mlflow", "abc")
    assert saved_ids(None) == {}


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"wandb": 3}', '{"wandb": "../../etc"}', "[" * 100_000, "\x00"])
def test_a_file_of_somebody_else_s_knows_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "trackers.json").write_text(content)
    assert saved_ids(tmp_path) == {}
    save_id(tmp_path, "wandb", "abc")
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "abc"}


def test_every_parameter_is_counted_and_so_is_its_gradient() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    found = ParameterCopy(agent.state).values()
    grads = agent.state.optimizer.grads
    named = dict(agent.policy.named_parameters())
    assert set(found) == {f"{kind}/{name}" for kind in ("parameters", "gradients") for name in named}
    for name, p in named.items():
        for kind, tensor in (("parameters", p.detach()), ("gradients", grads[p])):
            assert np.array_equal(found[f"{kind}/{name}"], tensor.flatten().double().numpy())


def test_a_look_is_a_copy() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    look = ParameterCopy(agent.state)
    before = agent.state.optimizer.flat.clone()
    agent.learn(quiet=True)
    assert not torch.equal(before, agent.state.optimizer.flat)
    assert np.array_equal(look.numbers[0].numpy(), before.numpy())


def test_what_is_not_finite_is_not_counted() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.state.optimizer.grad.fill_(1.0)[:2] = torch.tensor([torch.nan, torch.inf])
    look = ParameterCopy(agent.state)
    name, count = look.layout[0]
    assert look.values()[f"gradients/{name}"].tolist() == [1.0] * (count - 2)


@pytest.mark.parametrize(("phases", "looks"), [(10, 1), (100, 10), (1000, 100), (5000, 100)])
def test_looks_are_neither_too_many_nor_too_close(phases: int, looks: int) -> None:
    watch = HistogramSchedule(6400, 6400 + phases * 64)  # of a resumed run
    due = [phase for phase in range(1, phases + 1) if watch.is_due(6400 + 64 * phase, 100 + phase)]
    assert due[0] == 1
    assert abs(len(due) - looks) <= 1


@pytest.mark.gpu
def test_on_a_device_too_without_waiting_for_it() -> None:
    agent = tr.PPO("CartPole-v1", **{**SMALL, "device": "cuda"}).learn(quiet=True)
    found = ParameterCopy(agent.state).values()
    for name, p in agent.policy.named_parameters():
        assert np.array_equal(found[f"parameters/{name}"], p.detach().flatten().double().cpu().numpy())
