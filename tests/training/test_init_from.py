"""A run that starts from another one: what is taken, what is new, and that it needs the other run only once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helpers import forge_tensors, refusal, start_command
from torch import Tensor

import tightrope as tr
from tightrope.types import Box

SMALL: dict[str, Any] = dict(
    num_envs=4, num_steps=16, num_minibatches=2, total_timesteps=640, device="cpu", eval_every=0
)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with a critic and statistics."""
    path = tmp_path_factory.mktemp("first") / "run"
    tr.PPO("CartPole-v1", seed=1, norm_obs=True, norm_reward=True, hidden_sizes=(16, 16), **SMALL).learn(
        run_dir=path, quiet=True
    )
    return path


def made(first: Path | str, env: Any = "CartPole-v1", **settings: Any) -> tr.PPO:
    usual = dict(seed=2, norm_obs=True, hidden_sizes=(16, 16))
    return tr.PPO(env, init_from=str(first), **{**SMALL, **usual, **settings})


def saved(first: Path) -> dict[str, Tensor]:
    return tr.load_policy(first).network.state_dict()


def outcomes(agent: tr.Agent) -> dict[str, str]:
    """What the lines say, by module."""
    return dict(line.strip().split(": ", 1) for line in agent.taken_over[1:])


def test_networks_and_statistics_are_taken_and_the_rest_is_new(first: Path) -> None:
    agent, before = made(first, norm_reward=True, learning_rate=0.5), saved(first)
    for name, tensor in agent.state.policy.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert int(before["normalizer.count"]) == int(before["reward_scaler.count"]) == 640
    assert agent.taken_over[0] == f"init_from {first}: ppo on CartPole-v1 after 640 steps"
    assert set(outcomes(agent).values()) == {"taken"}
    assert [*outcomes(agent)] == ["actor", "head", "critic", "value_head", "normalizer", "reward_scaler"]
    state = agent.state
    assert (state.steps, state.phase, state.seconds) == (0, 0, 0.0)
    assert not state.optimizer.first_moment.any()
    assert not state.optimizer.step_count.any()
    assert torch.equal(state.optimizer.flat, torch.cat([p.detach().flatten() for p in state.policy.parameters()]))
    fresh = tr.PPO("CartPole-v1", seed=2, norm_obs=True, hidden_sizes=(16, 16), **SMALL)
    assert torch.equal(state.obs, fresh.state.obs), "environments begin as without it"
    agent.learn(quiet=True)
    assert agent.steps == 640


def test_a_trained_policy_goes_on_where_it_was(first: Path) -> None:
    again = made(first)
    for obs in torch.randn(20, 4):
        assert again.predict(obs.numpy()) == tr.load_policy(first).predict(obs.numpy())


class Wider(tr.envs.CartPole):
    """Shows more numbers."""

    observation = Box((6,))

    def observe(self, state: Tensor) -> Tensor:
        return torch.cat([state, state[:, :2]], 1)


def test_another_observation_keeps_the_deeper_layers(first: Path) -> None:
    agent, before = made(first, Wider(num_envs=4)), saved(first)
    now, found = agent.state.policy.state_dict(), outcomes(agent)
    assert found["actor"] == found["critic"] == "taken but for 1.weight (16 x 6 here, 16 x 4 there)"
    assert found["normalizer"] == "new, mean (6 here, 4 there), variance (6 here, 4 there)"
    assert int(now["normalizer.count"]) == 0, "a count without its mean"
    assert torch.equal(now["actor.3.weight"], before["actor.3.weight"])
    assert now["actor.1.weight"].shape == (16, 6)
    agent.learn(quiet=True)


def test_another_head_is_new(first: Path) -> None:
    agent, before = made(first, "Pendulum-v1"), saved(first)
    found = outcomes(agent)
    assert found["head"].startswith("new, log_std (not there), mean.weight (not there)")
    assert torch.equal(agent.state.policy.state_dict()["critic.3.weight"], before["critic.3.weight"])


def test_a_critic_that_sees_more_starts_from_one_that_does_not(first: Path) -> None:
    class Seeing(tr.envs.CartPole):
        def privileged(self, state: Tensor) -> Tensor:
            return state[:, :1] ** 2

    agent, before = made(first, Seeing(num_envs=4)), saved(first)
    assert outcomes(agent)["actor"] == "taken"
    assert outcomes(agent)["critic"] == "taken but for 1.weight (16 x 5 here, 16 x 4 there)"
    assert torch.equal(agent.state.policy.state_dict()["actor.trunk.1.weight"], before["actor.1.weight"])


def test_other_algorithms_and_trunks(first: Path, tmp_path: Path) -> None:
    before = saved(first)
    common = {name: value for name, value in SMALL.items() if name != "num_minibatches"}
    vpg = tr.VPG("CartPole-v1", init_from=first, hidden_sizes=(16, 16), **common)
    assert torch.equal(vpg.state.policy.state_dict()["actor.1.weight"], before["actor.1.weight"])
    assert outcomes(vpg)["not used"] == "critic, normalizer, value_head"
    shared = made(first, share_trunk=True)
    assert torch.equal(shared.state.policy.state_dict()["critic.1.weight"], before["actor.1.weight"])
    assert "critic" not in outcomes(shared)
    shared.save(tmp_path / "shared")
    apart = made(tmp_path / "shared")
    assert outcomes(apart)["critic"] == "taken"
    vpg.save(tmp_path / "vpg")
    assert outcomes(made(tmp_path / "vpg"))["critic"] == "new, the other run has none"
    assert outcomes(made(tmp_path / "vpg"))["reward_scaler"] == "taken"
    plain = tr.PPO("CartPole-v1", hidden_sizes=(16, 16), **SMALL)
    plain.save(tmp_path / "untrained")
    assert outcomes(made(tmp_path / "untrained"))["reward_scaler"] == "new, the other run has none"


def test_it_resumes_exactly_without_the_first_run(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(first, other)
    whole = made(other).learn(quiet=True)
    made(other).learn(run_dir=tmp_path / "run", until=320, quiet=True)
    shutil.rmtree(other)
    again = tr.load(tmp_path / "run")
    assert again.config.run.init_from == str(other)
    assert again.taken_over == []
    assert again.steps == 320
    again.learn(quiet=True)
    assert torch.equal(whole.state.optimizer.flat, again.state.optimizer.flat)
    assert torch.equal(whole.state.optimizer.second_moment, again.state.optimizer.second_moment)
    assert torch.equal(whole.state.policy.normalizer.mean, again.state.policy.normalizer.mean)  # type: ignore[union-attr]
    assert "init_from" in (tmp_path / "run" / "config.yaml").read_text()
    assert "init_from elsewhere cannot replace" in refusal(tr.load, tmp_path / "run", init_from="elsewhere")


def test_a_run_that_was_killed_in_its_first_phase_does_not_need_the_first_run(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(first, other)
    whole = made(other).learn(quiet=True)

    class Killed(tr.Callback):
        def on_update(self, state: Any) -> None:
            shutil.copytree(tmp_path / "run", tmp_path / "as it was")
            raise tr.StopTraining("killed")

    made(other).learn(run_dir=tmp_path / "run", quiet=True, callbacks=[Killed()])
    shutil.rmtree(other)
    again = tr.load(tmp_path / "as it was")
    assert again.steps == 0
    assert torch.equal(whole.state.optimizer.flat, again.learn(quiet=True).state.optimizer.flat)


def test_the_command_says_what_it_took_and_resumes(first: Path, tmp_path: Path) -> None:
    run, flags = tmp_path / "run", [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()]
    words = ["train", "CartPole-v1", "--run-dir", str(run), "--init-from", str(first), "--hidden-sizes", "16", "16"]
    done = start_command(*words, *flags, "--eval-episodes", "0", "--video-every", "0")
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    lines = out.splitlines()
    at = lines.index(f"init_from {first}: ppo on CartPole-v1 after 640 steps")
    assert lines[at + 1 : at + 3] == ["  actor: taken", "  head: taken"]
    again = tr.load(run, total_timesteps=1280)
    assert again.learn(quiet=True).steps == 1280


def test_a_checkpoint_may_be_named(first: Path) -> None:
    (checkpoint,) = (first / "checkpoints").glob("*-steps-640")
    assert set(outcomes(made(checkpoint, norm_reward=True)).values()) == {"taken"}


def test_wrong_runs_are_one_line(first: Path, tmp_path: Path) -> None:
    message = refusal(made, tmp_path / "none")
    assert message.startswith(f"init_from: {tmp_path / 'none'} is not a run: there is no such directory")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("env: CartPole-v1\nalgo: ppo\n")
    assert "has no checkpoint yet" in refusal(made, tmp_path / "begun")
    message = refusal(made, first, hidden_sizes=(8,))
    assert message.startswith(
        f"init_from {first} has no weights that fit: actor: new, 1.weight (8 x 4 here, 16 x 4 there)"
    )
    assert "init_from cannot be changed" in refusal(made(first).change, init_from="other")


def test_what_is_not_finite_is_refused(first: Path, tmp_path: Path) -> None:
    shutil.copytree(first, tmp_path / "bad")

    forge_tensors(
        tmp_path / "bad", "model.safetensors", **{"policy.actor.3.weight": np.full((16, 16), np.nan, np.float32)}
    )
    assert "is not finite in actor.3.weight" in refusal(made, tmp_path / "bad")
