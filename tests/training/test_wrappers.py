"""Wrappers and keyword arguments of environments: applied everywhere, saved by name, never imported for a stranger."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

import tightrope as tr
from tightrope.envs import make
from tightrope.errors import UsageError

SMALL: dict[str, Any] = dict(
    num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=32, device="cpu", eval_episodes=2
)
FLAGS = "--num-envs 2 --num-steps 8 --num-minibatches 1 --total-timesteps 32 --eval-episodes 1 --video-every 0 --quiet"
CODE = """
import pathlib
import gymnasium as gym

pathlib.Path("imported").touch()

class Scaled(gym.RewardWrapper):
    def reward(self, reward):
        return 10 * reward

def shifted(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward + 1)

def broken(env):
    raise KeyError("no such thing")

def nothing(env):
    return None

number = 3
"""


class Seen(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Notes every environment that is wrapped, and adds 1 to its reward."""

    made: list[Any] = []  # noqa: RUF012

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.made.append(env)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, float(reward) + 1, *rest)


def tenfold(env: Any) -> Any:
    return gymnasium.wrappers.TransformReward(env, lambda reward: 10 * reward)


@pytest.fixture
def module(own_directory: Path) -> Iterator[str]:
    Path("my_wrappers.py").write_text(CODE)
    yield "my_wrappers"
    sys.modules.pop("my_wrappers", None)


def one_reward(env: Any) -> float:
    env.reset(seed=1)
    return float(env.step(torch.zeros(env.num_envs, dtype=torch.int64)).reward[0])


# making -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_wrappers_are_applied_in_order(mode: str) -> None:
    how: dict[str, Any] = dict(backend="gymnasium", vectorization_mode=mode)
    for wrappers, reward in (((), 1.0), ((Seen, tenfold), 20.0), ((tenfold, Seen), 11.0)):
        env = make("CartPole-v1", 2, **how, wrappers=wrappers)
        assert one_reward(env) == reward
        twin = env.spawn(3, seed=2)
        assert one_reward(twin) == reward, "evaluations play in the same environments"
        twin.close()
        env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("given", ["id", "class", "instance"])
def test_training_evaluation_and_videos_are_in_wrapped_environments(given: str, mode: str, tmp_path: Path) -> None:
    env: Any = {
        "id": "FrozenLake-v1",
        "class": FrozenLakeEnv,
        "instance": gymnasium.make("FrozenLake-v1"),
    }[given]
    Seen.made.clear()
    how: dict[str, Any] = {} if given == "instance" else {"max_episode_steps": 20}
    with tr.PPO(env, **SMALL, **how, vectorization_mode=mode, wrappers=(Seen,)) as agent:
        made = len(Seen.made)
        assert made >= 1
        agent.learn(quiet=True)
        result = agent.evaluate(2, eval_envs=2)
        paid = zip(result.returns, result.lengths, strict=True)
        assert all(total >= length for total, length in paid), "each step is paid 1"
        assert len(Seen.made) > made
        agent.record(tmp_path / "it.mp4")


def test_a_wrapper_may_change_the_spaces() -> None:
    def flat(env: Any) -> Any:
        return gymnasium.wrappers.FlattenObservation(env)

    with tr.PPO("FrozenLake-v1", **SMALL, wrappers=[flat]) as agent:
        assert agent.state.env.observation.shape == (16,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(env="CartPole-v1", wrappers=(tenfold,)), "CartPole-v1 is by tensor: give backend gymnasium"),
        (dict(env=tr.envs.CartPole, wrappers=(tenfold,)), "CartPole-v1 is none: drop them"),
        (dict(env=tr.envs.CartPole(2), wrappers=(tenfold,)), "CartPole-v1 is none: drop them"),
        (dict(env="MountainCar-v0", wrappers=(tenfold,)), "MountainCar-v0 is by tensor: give backend gymnasium"),
        (
            dict(env="MountainCar-v0", wrappers=(tenfold,), backend="gymnasium", train_env="MountainCarShaped-v0"),
            "train_env MountainCarShaped-v0 is none: drop one of them",
        ),
        (dict(env="FrozenLake-v1", wrappers=("clip",)), "wrappers 'clip' is not module:function"),
        (dict(env="FrozenLake-v1", wrappers=(3,)), "wrappers 3 is not module:function"),
        (dict(env="FrozenLake-v1", wrappers=("no_such_module:f",)), "wrappers 'no_such_module:f' cannot be imported"),
        (
            dict(env="FrozenLake-v1", wrappers=("my_wrappers:number",)),
            "'my_wrappers:number' is not a function or class",
        ),
        (dict(env="FrozenLake-v1", wrappers="my_wrappers:broken"), "wrapper 'my_wrappers:broken' fails: KeyError"),
        (dict(env="FrozenLake-v1", wrappers="my_wrappers:nothing"), "returns a NoneType, not a Gymnasium environment"),
    ],
)
def test_wrong_wrappers_are_one_line(settings: dict[str, Any], words: str, module: str) -> None:
    env = settings.pop("env")
    with pytest.raises(UsageError) as caught:
        tr.PPO(env, **SMALL, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# runs -------------------------------------------------------------------------------------------------------------------


def test_a_run_keeps_the_names_and_asks_for_the_functions_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with tr.PPO("FrozenLake-v1", **SMALL, max_episode_steps=9, wrappers=(Seen, tenfold)) as agent:
        agent.learn(run_dir=run, until=16, quiet=True)
    names = yaml.safe_load((run / "config.yaml").read_text())["wrappers"]
    assert [name.partition(":")[2] for name in names] == ["Seen", "tenfold"]
    with pytest.raises(UsageError, match=r"has wrapper .*Seen: pass its wrappers again, tr.load\(path, wrappers="):
        tr.load(run)
    Seen.made.clear()
    with tr.load(run, wrappers=(Seen, tenfold)) as agent:
        agent.learn(quiet=True)
        assert agent.steps == 32
    assert len(Seen.made) >= 2
    assert yaml.safe_load((run / "config.yaml").read_text())["wrappers"] == names
    assert tr.load_policy(run).predict(0) in range(4), "a policy needs no environment"


def test_the_command_line_names_wrappers(module: str, tightrope: Callable[..., Any]) -> None:
    wrappers = "--wrapper my_wrappers:Scaled --wrapper my_wrappers:shifted"
    code, _, complaint = tightrope(f"train FrozenLake-v1 {wrappers} --max-episode-steps 9 {FLAGS} --run-dir run")
    assert (code, complaint) == (0, "")
    saved = yaml.safe_load(Path("run/config.yaml").read_text())
    assert saved["wrappers"] == ["my_wrappers:Scaled", "my_wrappers:shifted"]
    for command in ("eval run --episodes 1", "resume run --total-timesteps 48 --quiet", "record run --out a.mp4"):
        code, _, complaint = tightrope(command)
        assert (code, complaint.count("\n")) == (2, 1)
        assert "the run has wrapper my_wrappers:Scaled" in complaint
        assert tightrope(f"{command} --wrappers my_wrappers:Scaled my_wrappers:shifted").code == 0
    assert "--wrappers MODULE:NAME" in tightrope("train --help").out


@pytest.mark.parametrize("listed", ["my_wrappers:Scaled", "[my_wrappers:Scaled]", "[os:getcwd, my_wrappers:Scaled]"])
def test_a_file_imports_no_wrapper_unless_allowed(listed: str, module: str, tightrope: Callable[..., Any]) -> None:
    Path("my.yaml").write_text(f"env: FrozenLake-v1\nwrappers: {listed}\n")
    code, _, complaint = tightrope(f"train --config my.yaml {FLAGS}")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "names wrappers" in complaint
    assert "--allow-import" in complaint
    assert not Path("imported").exists()
    if not listed.startswith("[os"):
        assert tightrope(f"train --config my.yaml --allow-import my_wrappers {FLAGS} --run-dir run").code == 0
        assert Path("imported").exists()


# keyword arguments --------------------------------------------------------------------------------------------------------


def test_arguments_from_the_command_line_reach_training_evaluation_and_resume(
    tightrope: Any, own_directory: Path
) -> None:
    words = "train FrozenLake-v1 --env-kwargs is_slippery=false map_name=8x8 --max-episode-steps 9"
    assert tightrope(f"{words} {FLAGS} --run-dir run").code == 0
    assert yaml.safe_load(Path("run/config.yaml").read_text())["env_kwargs"] == {
        "is_slippery": False,
        "map_name": "8x8",
    }
    with tr.load("run") as agent:
        for env in (agent.state.env, agent.score_env):
            (one, *_) = env.envs  # type: ignore[attr-defined]
            assert one.unwrapped.spec.kwargs["is_slippery"] is False
            assert one.observation_space.n == 64
    assert tightrope("eval run --episodes 1").code == 0


def test_another_argument_on_resume_is_said_and_another_space_refused(tightrope: Any, own_directory: Path) -> None:
    words = "train FrozenLake-v1 --env-kwargs is_slippery=false --max-episode-steps 9"
    assert tightrope(f"{words} {FLAGS} --run-dir run").code == 0
    said = tightrope("resume run --total-timesteps 48 --env-kwargs is_slippery=true").out
    (line,) = (line for line in said.splitlines() if line.startswith("changed at"))
    assert "env_kwargs {'is_slippery': False} -> {'is_slippery': True}" in line
    assert "the run differs from one that was not changed" in line
    for command in ("resume run --total-timesteps 64", "eval run", "record run --out a.mp4"):
        code, _, complaint = tightrope(f"{command} --env-kwargs map_name=8x8")
        assert (code, complaint.count("\n")) == (2, 1)
        assert "observations Discrete(64), and the run was trained with Discrete(16)" in complaint


def test_a_score_may_be_taken_with_other_arguments(tightrope: Any, own_directory: Path) -> None:
    words = (
        f"train FrozenLake-v1 --env-kwargs is_slippery=false desc=[SG,HH] --max-episode-steps 9 {FLAGS} --run-dir run"
    )
    assert tightrope(words).code == 0
    for shape, most in (("[SG,HH]", 1.0), ("[SH,HG]", 0.0)):  # in the second, every way leads through a hole
        result = tightrope(f"eval run --episodes 16 --stochastic --json --env-kwargs is_slippery=false desc={shape}")
        assert (result.code, json.loads(result.out)["max"]) == (0, most)
    code, _, complaint = tightrope("eval run --env-kwargs slip=1")
    assert (code, complaint.count("\n")) == (2, 1)
    assert "env_kwargs 'slip' is not an argument of FrozenLake-v1" in complaint


@pytest.mark.parametrize("changed", [{"env_kwargs": {"goal_velocity": 0.01}}, {"wrappers": (tenfold,)}])
def test_a_preset_that_trains_on_a_shaped_reward_leaves_a_changed_env_alone(changed: dict[str, Any]) -> None:
    with tr.PPO("MountainCar-v0", **SMALL, backend="gymnasium", **changed) as agent:
        assert agent.config.run.train_env is None
        assert type(agent.state.env) is type(agent.score_env)
        assert agent.config.network.norm_obs, "the other settings of the preset hold"


def test_check_takes_arguments_and_wrappers(module: str, tightrope: Any) -> None:
    result = tightrope("check FrozenLake-v1 --steps 50 --env-kwargs map_name=8x8 --wrapper my_wrappers:Scaled")
    assert result.code == 0
    assert "Discrete(64)" in result.out
    assert "action       Discrete(4)" in result.out
    for words, complaint in (
        ("FrozenLake-v1 --env-kwargs slip=1", "env_kwargs 'slip' is not an argument of FrozenLake-v1"),
        ("CartPole-v1 --env-kwargs force=1", "env_kwargs 'force' is not an argument of CartPole"),
        ("CartPole-v1 --wrapper my_wrappers:Scaled", "CartPole is none: give backend gymnasium"),
        ("FrozenLake-v1 --wrapper my_wrappers:number", "'my_wrappers:number' is not a function or class"),
        ("FrozenLake-v1 --wrapper my_wrappers:broken", "wrapper 'my_wrappers:broken' fails: KeyError"),
    ):
        code, _, said = tightrope(f"check {words} --steps 50")
        assert (code, said.count("\n")) == (2, 1), said
        assert complaint in said


@pytest.mark.parametrize(
    ("env", "given", "words"),
    [
        ("FrozenLake-v1", "slippery=false", "'slippery' is not an argument of FrozenLake-v1. Did you mean is_slippery"),
        ("FrozenLake-v1", "slippery=false", "It takes desc, map_name, is_slippery"),
        ("CartPole-v1", "gravity=3", "env_kwargs 'gravity' is not an argument of CartPole. It takes none"),
        ("MountainCar-v0", "goal_velocity=0.1", "MountainCar-v0 takes it: give backend gymnasium"),
        ("FrozenLake-v1", "slippery", "is not a list of name=value"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_one_line_with_those_accepted(env: str, given: str, words: str, tightrope: Any) -> None:
    code, _, complaint = tightrope(f"train {env} --env-kwargs {given} {FLAGS}")
    assert (code, complaint.count("\n")) == (2, 1)
    assert words in complaint


class Sized(tr.envs.CartPole):
    """A tensor environment with an argument of its own."""

    def __init__(
        self, num_envs: int = 1, device: str = "cpu", max_episode_steps: int | None = None, force: float = 1.0
    ) -> None:
        self.force = force
        super().__init__(num_envs, device, max_episode_steps)


def test_a_tensor_environment_takes_arguments_of_its_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tr.envs.ENVS, "Sized-v0", Sized)
    assert make("Sized-v0", 3, env_kwargs={"force": 2.0}).force == 2.0  # type: ignore[attr-defined]
    for env in (Sized, "Sized-v0"):
        with tr.PPO(env, **SMALL, env_kwargs={"force": 3.0}) as agent:
            assert (agent.state.env.force, agent.score_env.force) == (3.0, 3.0)  # type: ignore[attr-defined]
            assert agent.state.env.spawn(2, seed=1).force == 3.0  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"env_kwargs 'forc' is not an argument of Sized\. Did you mean force"):
        tr.PPO(Sized, **SMALL, env_kwargs={"forc": 3.0})
    with pytest.raises(UsageError, match="env_kwargs 'num_envs' is not an argument of Sized"):
        make("Sized-v0", 3, env_kwargs={"num_envs": 3})
