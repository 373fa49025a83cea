"""The target that the report measures a run by: where it comes from, and that it reaches the page."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from torch import Tensor

import tightrope as tr
from tightrope.training.config import configure
from tightrope.training.plan import target_of
from tightrope.training.reports import gathered, write_report


@pytest.mark.parametrize(
    ("env", "settings", "value"),
    [
        ("CartPole-v1", {}, 495.0), ("LunarLander-v3", {}, 200.0), ("LunarLanderContinuous-v3", {}, 200.0),
        ("BipedalWalker-v3", {}, 300.0), ("Acrobot-v1", {}, -90.0), ("Pendulum-v1", {}, -200.0),
        ("Reacher-v5", {}, -4.715),  # by our preset alone
        ("MountainCar-v0", {}, -110.0), ("Hopper-v5", {}, 2816.05),  # whose preset does not reach what Gymnasium asks for
        ("Blackjack-v1", {}, None), ("SpinCart-v0", {}, None), ("ALE/Pong-v5", {}, None), ("my_module:MyEnv", {}, None),
        ("CartPole-v1", {"max_episode_steps": 200}, None),
        ("FrozenLake-v1", {"env_kwargs": {"is_slippery": False}}, None),
    ],
)  # fmt: skip
def test_what_is_known_of_a_task(env: str, settings: dict[str, Any], value: float | None) -> None:
    target = target_of(configure(env, "ppo", settings))
    assert (None if target is None else target.value) == value


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: gymnasium.make("FrozenLake-v1"), 0.7),
        (lambda: gymnasium.make("FrozenLake-v1", is_slippery=False), None),
        (lambda: gymnasium.make("FrozenLake-v1", max_episode_steps=7), None),
        (lambda: gymnasium.wrappers.TransformReward(gymnasium.make("FrozenLake-v1"), lambda r: 9 * r), None),
    ],
)
def test_an_environment_that_was_given_is_what_its_spec_says(make: Any, value: float | None) -> None:
    agent = tr.PPO(make, num_envs=2)
    target = target_of(agent.config, agent.state.env)
    assert (None if target is None else target.value) == value


class Heavier(tr.envs.CartPole):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs() / 2.4


class Judged(Heavier):
    solved_at = 400.0


@pytest.mark.parametrize(
    ("env", "settings", "value"),
    [
        (tr.envs.CartPole, {}, 495.0), (Judged, {}, 400.0), (lambda: tr.envs.CartPole(2, max_episode_steps=200), {}, None),
        (Heavier, {}, None),  # another reward: what the parent class asks for means nothing
    ],
)  # fmt: skip
def test_a_class_says_itself_what_counts_as_solved(env: Any, settings: dict[str, Any], value: float | None) -> None:
    agent = tr.PPO(env if isinstance(env, type) else env(), **settings)
    target = target_of(agent.config, agent.state.env)
    assert (None if target is None else target.value) == value


def test_the_spec_of_another_library_says_nothing() -> None:
    agent = tr.PPO("Probe1-v0", device="cpu")
    vars(agent.state.env)["engine"] = SimpleNamespace(spec=SimpleNamespace(task="Breakout"))  # as EnvPool has it
    assert target_of(configure("not/registered-v5", "ppo"), agent.state.env) is None


def test_the_target_reaches_the_page(tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", device="cpu", num_envs=4, num_steps=8, total_timesteps=640, video_every=0)
    agent.learn(run_dir=tmp_path / "r", quiet=True)
    record = gathered(tmp_path / "r")
    assert record.info.target is not None
    assert record.info.target.value == 495
    assert "solved from 495" in (tmp_path / "r" / "report.html").read_text()
    assert "Good." not in write_report([tmp_path / "r"], tmp_path / "again.html").read_text()


@pytest.mark.parametrize("told", ['"x"', "[]", '{"value": "475"}', '{"value": true}', '{"value": NaN, "source": 3}'])
def test_a_file_that_says_nonsense_is_no_target(told: str, tmp_path: Path) -> None:
    agent = tr.PPO("CartPole-v1", device="cpu", num_envs=4, num_steps=8, total_timesteps=64, video_every=0)
    agent.learn(run_dir=tmp_path, quiet=True)
    about = json.loads((tmp_path / "about.json").read_text())
    del about["target"]
    (tmp_path / "about.json").write_text(json.dumps(about)[:-1] + f', "target": {told}}}')
    target = gathered(tmp_path).info.target
    assert target is None or target.value == 495
