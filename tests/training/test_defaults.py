"""Defaults by the kind of environment, where there is no preset."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import Plain

import tightrope as tr
from tightrope.training import presets
from tightrope.training.config import configure
from tightrope.training.presets import kind_settings
from tightrope.types import Box, Discrete


class Drift(tr.envs.TensorEnv):
    """A number that the action moves."""

    observation, action, noise_size, time_limit = Box((1,)), Discrete(2), 1, 20

    def initial(self, noise: torch.Tensor) -> torch.Tensor:
        return noise - 0.5

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return state + 0.1 * (2.0 * action[:, None] - 1.0)

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return -next_state[:, 0].abs()


def test_an_environment_without_a_preset_gets_the_defaults_of_its_kind() -> None:
    taxi = tr.PPO("Taxi-v4", device="cpu").config
    assert (taxi.run.defaults, taxi.algorithm.learning_rate, taxi.algorithm.update_epochs) == ("states", 1e-3, 10)
    assert (taxi.algorithm.num_envs, taxi.algorithm.num_steps, taxi.algorithm.num_minibatches) == (8, 512, 32)
    short = tr.PPO("Taxi-v4", device="cpu", total_timesteps=400_000).config.algorithm
    assert (short.num_steps, short.num_minibatches) == (128, 8)  # so that there are 100 phases at least
    vector = tr.PPO(lambda: gymnasium.make("CartPole-v1"), device="cpu").config
    assert (vector.run.defaults, vector.algorithm.num_steps, vector.algorithm.num_minibatches) == ("discrete", 128, 8)
    walker = tr.PPO("BipedalWalkerHardcore-v3", device="cpu").config
    assert (walker.run.defaults, walker.algorithm.ent_coef, walker.network.norm_obs) == ("continuous", 0.0, True)
    plain = tr.PPO("Taxi-v4", device="cpu", defaults="plain").config
    assert (plain.run.defaults, plain.algorithm) == ("plain", tr.algorithms.ppo.PPOConfig())
    preset = tr.PPO("CartPole-v1", device="cpu").config
    assert (preset.run.defaults, preset.algorithm.learning_rate) == ("auto", 0.015)


def test_a_rollout_of_vpg_is_as_long_as_an_episode() -> None:
    def of(env: Any, **given: Any) -> tuple[int, int, bool]:
        algorithm = tr.VPG(env, device="cpu", **given).config.algorithm
        return algorithm.num_envs, algorithm.num_steps, algorithm.anneal_lr

    assert of("Pendulum-v1") == of(tr.envs.Pendulum) == (32, 200, True)
    assert of("Taxi-v4") == of(lambda: gymnasium.make("Taxi-v4")) == of(gymnasium.make("Taxi-v4")) == (32, 200, True)
    assert of("MountainCarContinuous-v0")[1] == 500  # of 999
    assert of("CliffWalking-v1")[1] == 500  # which has no limit
    assert of("CliffWalking-v1", max_episode_steps=100)[1] == 100
    assert of("Pendulum-v1", num_steps=50)[1] == 50


def test_sizes_of_the_defaults_follow_those_that_are_given() -> None:
    def sizes(**given: Any) -> tuple[int, int, int, int]:
        algorithm = tr.PPO(lambda: gymnasium.make("CartPole-v1"), device="cpu", **given).config.algorithm
        return algorithm.num_envs, algorithm.num_steps, algorithm.num_minibatches, algorithm.total_timesteps

    assert sizes(num_envs=16) == (16, 64, 8, 500_000)  # the same batch
    assert sizes(num_envs=1) == (1, 1024, 8, 500_000)
    assert sizes(num_envs=3, num_steps=5) == (3, 5, 1, 500_000)
    assert sizes(num_steps=100) == (8, 100, 5, 500_000)  # the largest number that divides 800 into 128 or more
    assert sizes(num_minibatches=2, learning_rate=0.1) == (8, 128, 2, 500_000)
    assert kind_settings("discrete", "ppo", {"num_envs": 4096})["total_timesteps"] == 100 * 4096 * 16


@pytest.mark.parametrize("algo", ["ppo", "vpg"])
@pytest.mark.parametrize("kind", ["discrete", "states", "continuous", "images"])
@given(num_envs=st.integers(1, 5000), num_steps=st.one_of(st.none(), st.integers(1, 3000)))
def test_defaults_of_a_kind_are_valid_at_every_size(algo: str, kind: str, num_envs: int, num_steps: int | None) -> None:
    sizes = {"num_envs": num_envs} if num_steps is None else {"num_envs": num_envs, "num_steps": num_steps}
    config = configure("anything", algo, sizes, {"defaults": kind})
    assert config.algorithm.phases >= 1
    assert configure("anything", algo, config.to_flat_dict(), with_preset=False) == config


def test_looking_at_an_environment_leaves_nothing_behind() -> None:
    made: list[Any] = []

    class Counted(Plain):
        length = 1

        def __init__(self) -> None:
            self.number, self.closed = float(np.random.rand()), False
            made.append(self)

        def close(self) -> None:
            self.closed = True

    before = np.random.get_state()[1].tolist()
    agent = tr.PPO(Counted, num_envs=2, device="cpu")
    assert np.random.get_state()[1].tolist() == before
    assert [env.closed for env in made] == [False, False]  # those that were looked at are those that are trained on
    assert agent.config.run.defaults == "discrete"
    with pytest.raises(tr.UsageError, match="num_minibatches"):
        tr.PPO(Counted, num_envs=2, num_minibatches=-1, device="cpu")
    assert [env.closed for env in made] == [False, False, True, True]
    vector = gymnasium.vector.SyncVectorEnv([Counted] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    tr.PPO(vector, device="cpu").learn(1024, quiet=True)  # a user's own is looked at where it is, and stays open


def test_the_plan_says_which_defaults_were_taken(capsys: pytest.CaptureFixture[str]) -> None:
    agent = tr.PPO("Taxi-v4", device="cpu", learning_rate=2e-3, total_timesteps=1024)
    agent.learn()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("settings: ")]
    assert "settings: defaults for discrete observations and actions: num_envs 8, num_steps 128, " in line
    assert "update_epochs 10" in line
    assert "learning_rate" not in line  # which was given


def test_a_tensor_environment_without_a_preset_runs_many_side_by_side() -> None:
    algorithm = tr.PPO(Drift, device="cpu").config.algorithm
    assert (algorithm.num_envs, algorithm.num_steps, algorithm.num_minibatches) == (64, 16, 8)
    assert tr.PPO(Drift(num_envs=3), device="cpu").config.algorithm.num_envs == 3


class Simulator(Plain):
    """Holds a port, of which there may be only so many."""

    length = 1

    def __init__(self, port: int) -> None:
        self.port, self.closed = port, 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("settings", [{}, {"defaults": "discrete"}, {"defaults": "plain"}], ids=str)
@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_a_factory_is_called_as_often_as_there_are_environments(algo: Any, settings: dict[str, Any]) -> None:
    ports = iter(range(3))
    agent = algo(lambda: Simulator(next(ports)), num_envs=3, device="cpu", **settings)
    assert [env.port for env in agent.state.env.envs] == [0, 1, 2]
    made: list[Simulator] = []
    agent.evaluate(2, env=lambda: made.append(Simulator(len(made))) or made[-1])
    agent.evaluate(40, env=lambda: made.append(Simulator(len(made))) or made[-1])  # 16 at once, in three rounds of 14
    assert [env.closed for env in made] == [1] * 16


def test_a_factory_of_vectors_is_called_once() -> None:
    sizes: list[int] = []

    def vector(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        sizes.append(num_envs)
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        return gymnasium.vector.SyncVectorEnv([lambda: Simulator(0)] * num_envs, autoreset_mode=mode)

    tr.PPO(vector, num_envs=3, device="cpu").evaluate(4, env=vector)
    assert sizes == [3, 4]


@pytest.mark.parametrize(("algo", "env"), [(tr.PPO, Drift), (tr.VPG, Drift), (tr.PPO, "Taxi-v4"), (tr.VPG, "Taxi-v4")])
def test_naming_the_kind_that_is_found_changes_nothing(algo: Any, env: Any) -> None:
    kind = "states" if env == "Taxi-v4" else "discrete"
    assert algo(env, device="cpu", defaults=kind).config == algo(env, device="cpu").config


@pytest.mark.parametrize(
    ("settings", "count", "sizes"),
    [
        ({"device": "cpu"}, 16, (8, 128, 4, 2.5e-4, "fp32")), ({"device": "cuda"}, 16, (128, 32, 8, 5e-4, "tf32")),
        ({"device": "cuda"}, 64, (128, 32, 8, 5e-4, "tf32")), ({"device": "cuda:1"}, 6, (32, 128, 8, 5e-4, "tf32")),
        ({"device": "cuda"}, 1, (8, 512, 8, 5e-4, "tf32")),
        ({"device": "cuda", "num_envs": 16}, 16, (16, 128, 4, 2.5e-4, "fp32")),
        ({"device": "cuda", "learning_rate": 1e-4, "precision": "fp32"}, 16, (128, 32, 8, 1e-4, "fp32")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("game", ["ALE/Pong-v5", "BreakoutNoFrameskip-v4"])
def test_atari_uses_the_machine(
    game: str, settings: dict[str, Any], count: int, sizes: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "cores", lambda: count)
    config = configure(game, "ppo", settings)
    algorithm = config.algorithm
    assert sizes == (
        algorithm.num_envs, algorithm.num_steps, algorithm.num_minibatches, algorithm.learning_rate, config.run.precision
    )  # fmt: skip
