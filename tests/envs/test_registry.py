"""Ids and what they name: which engine runs an environment, and what is said where it is missing."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch
import yaml
from test_contract import refusal

import tightrope as tr
from tightrope.cli import dispatch
from tightrope.envs import ENVS, CartPole, EasyCart, TensorEnv, register
from tightrope.envs.adapters.gym import GymEnv, checked_make
from tightrope.envs.registry import BACKENDS, Backend, Choice, choose, make
from tightrope.training.own_code import is_import_path
from tightrope.training.plan import plan
from tightrope.training.user_objects import has_id

SMALL = dict(num_envs=2, num_steps=8, total_timesteps=32, hidden_sizes=(8,), num_minibatches=2, device="cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine on which these engines are installed, each with these ids: machine(brax=["a"], gymnasium=["a"])."""
    known: dict[str, list[str]] = {}
    installed: set[str] = set()
    calls: list[tuple[str, Any]] = []

    def module(name: str) -> Any:
        def from_id(*args: Any) -> Any:
            calls.append((name, args))
            return SimpleNamespace(seed=lambda seed: calls.append(("seed", seed)))

        return SimpleNamespace(provides=lambda env_id: env_id in known.get(name, []), from_id=from_id)

    monkeypatch.setattr(Backend, "installed", property(lambda self: self.name in installed))
    monkeypatch.setattr(Backend, "adapter", property(lambda self: module(self.name)))

    def set_up(absent: str = "", **ids: list[str]) -> list[Any]:
        known.update(ids)
        installed.update(set(ids) - set(absent.split()))
        return calls

    return set_up


# the order -----------------------------------------------------------------------------------------------------------


ALL = {name: ["Race-v0", "CartPole-v1"] for name in BACKENDS}
TENSOR, FASTEST = Choice("tensor", "it runs on the device"), "the fastest backend installed that has it"
SLOWER = [*BACKENDS][1:]


@pytest.mark.parametrize(
    ("ids", "absent", "asked", "choice"),
    [
        (ALL, "", ("CartPole-v1",), TENSOR), (ALL, "", ("CartPole-v1", "tensor"), TENSOR),
        (ALL, "", ("Race-v0",), ("brax", FASTEST)),
        *((ALL, "", ("CartPole-v1", name), (name, "set by backend")) for name in BACKENDS),
        # an engine without the id, or that is not installed, is passed over
        *(({key: ["Race-v0"] * (key in SLOWER[i:]) for key in BACKENDS}, "", ("Race-v0",), (name, FASTEST))
          for i, name in enumerate(SLOWER)),
        *((ALL, " ".join([*BACKENDS][:i]), ("Race-v0",), (name, "brax is not installed")) for i, name in enumerate(SLOWER, 1)),
        # one that is missing is mentioned where it would help
        (dict(envpool=["Race-v0"], gymnasium=["Race-v0"]), "envpool", ("Race-v0",), ("gymnasium", "envpool is not installed")),
        (dict(envpool=[], gymnasium=["Race-v0"]), "envpool", ("Race-v0",), ("gymnasium", FASTEST)),
    ],
)  # fmt: skip
def test_the_fastest_engine_that_is_installed_and_has_it(
    machine: Any, ids: Any, absent: str, asked: Any, choice: Any
) -> None:
    assert list(BACKENDS) == ["brax", "ale", "envpool", "gymnasium"]
    machine(absent, **ids)
    assert choose(*asked) == choice


def test_the_plan_says_which_engine_and_why() -> None:
    agent = tr.PPO("Acrobot-v1", backend="gymnasium", num_envs=4, num_steps=8, total_timesteps=64, device="cpu")
    assert isinstance(agent.state.env, GymEnv)
    assert "environments: 4 of Acrobot-v1 by gymnasium (set by backend)" in plan(agent.state, agent.config).lines()


# what is missing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("brax", "brax", "brax"), ("ale", "ale_py", "atari"), ("envpool", "envpool", "envpool")],
)
def test_a_missing_package_gives_the_line_that_installs_it(machine: Any, name: str, package: str, extra: str) -> None:
    machine(absent=name, gymnasium=[], **{name: ["Race-v0"]})
    expected = f"env 'Race-v0' needs {package}, which is not installed: pip install \"tightrope[{extra}]\""
    assert refusal(choose, "Race-v0", name) == expected
    assert refusal(choose, "Race-v0") == expected


def test_a_package_counts_as_installed_where_python_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: asked.append(name))
    assert not any(engine.installed for engine in BACKENDS.values())
    assert asked == ["brax", "ale_py", "envpool", "gymnasium"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    assert all(engine.installed for engine in BACKENDS.values())


def test_ids_of_engines_that_are_not_installed_are_still_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "installed", property(lambda self: self.name == "gymnasium"))
    assert '"tightrope[brax]"' in refusal(choose, "brax/ant")
    assert '"tightrope[brax]"' in refusal(tr.PPO, "brax/ant")
    assert has_id("brax/ant")
    assert has_id("CartPole-v1")
    assert has_id("LunarLander-v3")
    assert not has_id("module:Class")
    assert not has_id("Nowhere-v0")


def hidden(monkeypatch: pytest.MonkeyPatch, package: str, *modules: str) -> None:
    """As if the package were not installed."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in [m for m in sys.modules if m.startswith(modules)]:
        monkeypatch.delitem(sys.modules, module)


def test_gymnasiums_own_extras_are_named_by_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden(monkeypatch, "Box2D", "gymnasium.envs.box2d")
    message = refusal(make, "LunarLander-v3", backend="gymnasium")
    assert message == ("env 'LunarLander-v3' needs a package that is not installed: pip install \"tightrope[box2d]\"")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Box2D is not installed, you can install it by run `pip install swig`", '"tightrope[box2d]"'),
        ('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`', '"tightrope[mujoco]"'),
        ('pygame is not installed, run `pip install "gymnasium[classic-control]"`', '"tightrope[box2d]"'),
        ("flying needs wings,\ninstall them", "flying needs wings, install them"),
    ],
)
def test_what_gymnasium_misses_is_one_line(said: str, hint: str) -> None:
    def make_it() -> Any:
        raise gymnasium.error.DependencyNotInstalled(said)

    message = refusal(checked_make, "Bird-v0", make_it)
    assert message.startswith("env 'Bird-v0' needs a package that is not installed: ")
    assert hint in message


# what is not there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("LunarLnder-v3", "LunarLander-v3"),
        ("CartPoel-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("Hoper-v5", "Hopper-v5"),
        ("acrobot", "Acrobot-v1"),
    ],
)
def test_a_slip_is_put_right(env_id: str, meant: str) -> None:
    assert f"Did you mean {meant}" in refusal(choose, env_id)
    assert "Did you mean" not in refusal(choose, "Nowhere-at-all")
    assert f"unknown env {env_id!r}" in refusal(tr.PPO, env_id)


def test_an_engine_that_lacks_the_id() -> None:
    for backend, env_id in (("gymnasium", "EasyCart-v0"), ("gymnasium", "brax/ant")):
        message = refusal(choose, env_id, backend)
        assert f"backend {backend} has no env {env_id!r}" in message
    assert "unknown tensor env 'LunarLander-v3'" in refusal(choose, "LunarLander-v3", "tensor")
    assert "EasyCart-v0" in refusal(tr.PPO, "EasyCart-v0", backend="gymnasium")


def test_an_engine_that_is_none() -> None:
    message = refusal(choose, "CartPole-v1", "envpol")
    assert "envpol" in message
    assert all(name in message for name in ("auto", "tensor", *BACKENDS))
    assert "envpol" in refusal(tr.PPO, "CartPole-v1", backend="envpol")


# making --------------------------------------------------------------------------------------------------------------


def test_what_was_asked_reaches_the_engine(machine: Any) -> None:
    calls = machine(envpool=["Race-v0"])
    make("Race-v0", 3, "cpu", 7, seed=5, env_kwargs={"laps": 2}, scoring=True)
    (name, (env_id, num_envs, device, options)), seed = calls
    assert (name, env_id, num_envs, device) == ("envpool", "Race-v0", 3, "cpu")
    assert (options.max_episode_steps, options.env_kwargs, options.scoring) == (7, {"laps": 2}, True)
    assert seed == ("seed", 5)
    assert "vectorization_mode" in refusal(make, "Race-v0", vectorization_mode="async"), "it means nothing there"
    assert "not a choice" in refusal(make, "Race-v0", vectorization_mode="threads")


def test_tensors_take_no_arguments_of_an_engine() -> None:
    env = make("CartPole-v1", 3, max_episode_steps=7, seed=5)
    assert (type(env), env.max_episode_steps) == (tr.envs.CartPole, 7)
    assert torch.equal(env.reset(), tr.envs.CartPole(3, seed=5).spawn(3, seed=5).reset())
    assert "env_kwargs 'gravity'" in refusal(make, "CartPole-v1", env_kwargs={"gravity": 3})
    assert "gravity" in refusal(tr.PPO, "CartPole-v1", env_kwargs={"gravity": 3}, device="cpu")


def test_a_saved_run_keeps_to_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "installed", property(lambda self: self.name == "gymnasium"))
    tr.PPO("MountainCarContinuous-v0", **SMALL).save(tmp_path / "run")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["backend"] == "gymnasium"
    monkeypatch.undo()
    assert isinstance(tr.load(tmp_path / "run").state.env, GymEnv)
    tr.PPO("CartPole-v1", **SMALL).save(tmp_path / "tensors")
    assert yaml.safe_load((tmp_path / "tensors" / "config.yaml").read_text())["backend"] == "auto"


def test_a_run_whose_engine_is_not_installed_here_is_loaded_with_another(tmp_path: Path, monkeypatch: Any) -> None:
    agent = tr.PPO("MountainCarContinuous-v0", **SMALL, backend="gymnasium")
    agent.save(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("backend: gymnasium", "backend: envpool"))
    monkeypatch.setattr(Backend, "installed", property(lambda self: self.name == "gymnasium"))
    loaded = tr.load(tmp_path)
    assert isinstance(loaded.state.env, GymEnv)
    assert loaded.evaluate(2) == agent.evaluate(2)


# environments by module:Class ----------------------------------------------------------------------------------------

MODULE = '''
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Guess(gymnasium.Env):
    """One guess: the right one is shown."""

    observation_space, action_space = Discrete(2), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(2))
        return self.right, {}

    def step(self, action):
        return self.right, float(action == self.right), True, False, {}


def easy():
    return Guess()


number = 7
'''
FLAGS = ["--num-envs", "2", "--num-steps", "8", "--total-timesteps", "32", "--num-minibatches", "2", "--hidden-sizes", "8",
         "--quiet"]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module of the user's own, which is where they are."""
    (tmp_path / "guesses.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "guesses", raising=False)
    return tmp_path


@pytest.mark.parametrize("path", ["guesses:Guess", "guesses:easy"])
def test_an_environment_by_its_name(here: Path, path: str) -> None:
    before = list(sys.path)
    agent = tr.PPO(path, **SMALL)
    assert sys.path == before
    assert agent.config.env == path
    assert isinstance(agent.state.env, GymEnv)
    agent.learn(quiet=True)
    agent.save(here / "run")
    imported = sys.modules.pop("guesses")
    assert "env=" in refusal(tr.load, here / "run")
    sys.modules["guesses"] = imported
    module = sys.modules["guesses"]
    assert tr.load(here / "run", env=module.Guess).evaluate(4) == agent.evaluate(4) == agent.evaluate(4, env=path)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("guesses:Gues", "Gues"),
        ("gueses:Guess", "gueses"),
        ("guesses:number", "env 7 is invalid"),
        (":Guess", "module:Class"),
    ],
)
def test_a_name_that_is_none_is_refused(here: Path, path: str, said: str) -> None:
    assert said in refusal(tr.PPO, path)


def test_an_id_with_a_module_is_an_id() -> None:
    assert is_import_path("module:Class")
    assert is_import_path("package.module:Class")
    assert not is_import_path("module:Name-v0")
    assert not is_import_path("CartPole-v1")
    assert not is_import_path("brax/ant")


def test_the_command_line_takes_a_name_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["train", "guesses:Guess", *FLAGS, "--run-dir", "run"]) == 0
    assert "guesses:Guess: greedy return" in capsys.readouterr().out
    assert dispatch(["eval", "run", "--env", "guesses:Guess", "--episodes", "4"]) == 0
    assert "guesses:Guess: mean" in capsys.readouterr().out
    sys.modules.pop("guesses")
    assert "env=" in refusal(dispatch, ["eval", "run"])
    assert "gueses" in refusal(dispatch, ["train", "gueses:Guess", *FLAGS])


# tensor environments by their ids -------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", list(ENVS))
def test_every_id_makes(env_id: str) -> None:
    env = make(env_id, num_envs=3, max_episode_steps=7, seed=5)
    assert type(env) is ENVS[env_id]
    assert isinstance(env, TensorEnv)
    assert (env.num_envs, env.max_episode_steps, env.device.type) == (3, 7, "cpu")
    assert env.generator.initial_seed() == 5
    assert make(env_id).max_episode_steps == ENVS[env_id].time_limit
    assert env.__doc__


class Mine(CartPole):
    """One of a user's own."""


def test_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVS, "Mine-v0", Mine)
    monkeypatch.delitem(ENVS, "Mine-v0")
    register("Mine-v0", Mine)
    assert type(make("Mine-v0", num_envs=2)) is Mine
    register("Mine-v0", Mine)  # again is harmless
    assert "Did you mean Mine-v0" in refusal(make, "Mine-v1")
    assert "'CartPole-v1' is taken by CartPole" in refusal(register, "CartPole-v1", EasyCart)
    assert ENVS["CartPole-v1"] is CartPole
