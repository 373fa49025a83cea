"""Code of a user's own: followed when the user gives it or has imported it, never because a file says so."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import forge_config, refusal

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.saved import check_arguments
from tightrope.training.commands import resume_command
from tightrope.training.own_code import imported, needs_import, short_name
from tightrope.training.user_objects import already_here, check_command

SMALL: dict[str, Any] = dict(
    num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=64, hidden_sizes=(4,), device="cpu"
)
SIZES = "--num-envs 2 --num-steps 8 --num-minibatches 2 --total-timesteps 16 --device cpu"
CODE = """
import gymnasium, numpy, torch, tightrope as tr

class Plain(tr.envs.CartPole):
    pass

class Shaped(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return -torch.ones_like(state[:, 0])

class WithArguments(tr.envs.CartPole):
    def __init__(self, num_envs=1, device="cpu", max_episode_steps=None, pull=9.8):
        super().__init__(num_envs, device, max_episode_steps)
        self.pull = pull

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return numpy.zeros(4, "f4"), {}

    def step(self, action):
        self.t += 1
        return numpy.zeros(4, "f4"), 1.0, self.t > 4, False, {}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 6)

    def forward(self, obs):
        return self.layer(obs).tanh()

class Sized(Net):
    def __init__(self, size):
        super().__init__()

if "TheirWalk-v0" not in gymnasium.registry:
    gymnasium.register("TheirWalk-v0", lambda: Walk())
"""


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ids: None) -> Iterator[Any]:
    """A module of a user's own in the working directory, imported."""
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("theirs")
    sys.modules.pop("theirs", None)


def refused(*args: Any, **settings: Any) -> str:
    return refusal(tr.load, *args, **settings)


@pytest.mark.parametrize("name", ["Plain", "WithArguments", "Walk"])
def test_an_environment_is_named_by_its_path_and_given_again(theirs: Any, name: str, run_command: Any) -> None:
    env = getattr(theirs, name)
    trained = tr.PPO(env, **SMALL).learn(until=16, run_dir="run", quiet=True)
    assert trained.config.env == f"theirs:{name}"
    assert tr.load("run", env=env).steps == 16
    sys.modules.pop("theirs")
    assert f"pass it, tr.load(path, env=...) or --env theirs:{name}" in refused("run")
    assert "theirs" not in sys.modules
    for words in (["eval", "run"], ["resume", "run"]):
        code, _, err = run_command(*words)
        assert (code, err.count("\n")) == (2, 1)
        assert f"--env theirs:{name}" in err
        assert "theirs" not in sys.modules
    assert run_command("eval", "run", "--env", f"theirs:{name}", "--episodes", "2")[0] == 0
    sys.modules.pop("theirs")
    assert run_command("resume", "run", "--env", f"theirs:{name}", "--quiet")[0] == 0
    assert tr.load("run", env=env).steps == 64


def test_what_has_been_imported_needs_no_giving(theirs: Any) -> None:
    tr.PPO(theirs.Plain, **SMALL, network=theirs.Net()).learn(until=16, run_dir="run", quiet=True)
    agent = tr.load("run")
    assert type(agent.state.env) is theirs.Plain
    assert agent.config.network.network == "theirs:Net"
    assert tr.load("run").learn(quiet=True).steps == 64


def test_what_is_made_with_arguments_must_be_given(theirs: Any) -> None:
    assert already_here("theirs:Plain") is theirs.Plain
    assert already_here("theirs:Net") is theirs.Net
    assert (
        already_here("theirs:WithArguments") is already_here("theirs:Sized") is already_here("theirs:gymnasium") is None
    )
    tr.PPO(theirs.WithArguments(2, pull=1.6), **{**SMALL, "num_envs": 2}).save("run")
    assert "theirs:WithArguments: pass it" in refused("run")
    assert tr.load("run", env=theirs.WithArguments(2, pull=3.7)).state.env.pull == pytest.approx(3.7)


def test_a_network_is_named_by_its_path_and_given_again(theirs: Any, run_command: Any) -> None:
    for given in (theirs.Net(), theirs.Net, "theirs:Net"):
        agent = tr.PPO("CartPole-v1", **SMALL, network=given)
        assert agent.config.network.network == "theirs:Net"
    agent.learn(until=16, run_dir="run", quiet=True)
    sys.modules.pop("theirs")
    assert "pass it, tr.load(path, network=...) or, for a class, --network theirs:Net" in refused("run")
    assert "theirs" not in sys.modules
    assert tr.load("run", network=theirs.Net()).steps == tr.load("run", network=theirs.Net).steps == 16
    assert run_command("resume", "run", "--network", "theirs:Net", "--quiet")[0] == 0


def test_an_environment_is_no_network_and_the_other_way_round(theirs: Any) -> None:
    tr.PPO("CartPole-v1", **SMALL).save("run")
    for change in ({"env": "theirs:Net"}, {"network": "theirs:Plain"}):
        forge_config(Path("run"), **change)
        assert "pass it" in refused("run")


def test_an_id_of_gymnasiums_that_names_a_module(theirs: Any, run_command: Any) -> None:
    tr.PPO("theirs:TheirWalk-v0", **SMALL).learn(until=16, run_dir="run", quiet=True)
    assert tr.load("run").steps == 16
    sys.modules.pop("theirs")
    assert needs_import("theirs:TheirWalk-v0")
    assert "--env theirs:TheirWalk-v0" in refused("run")
    assert "theirs" not in sys.modules
    assert run_command("eval", "run", "--env", "theirs:TheirWalk-v0", "--episodes", "2")[0] == 0
    sys.modules.pop("theirs")
    assert run_command("resume", "run", "--env", "theirs:TheirWalk-v0", "--quiet")[0] == 0


def test_a_training_env_that_names_a_module(theirs: Any, run_command: Any) -> None:
    sys.modules.pop("theirs", None)
    named = ["theirs:TheirWalk-v0", "--train-env", "theirs:TheirWalk-v0"]
    assert run_command("train", *named, "--run-dir", "run", "--quiet", *SIZES.split())[0] == 0
    sys.modules.pop("theirs")
    assert "theirs:TheirWalk-v0" in refused("run")
    assert "theirs" not in sys.modules


@pytest.mark.parametrize("scored", ["CartPole-v1", "theirs:Plain"])
def test_a_training_env_of_ones_own_is_named_by_its_path_and_given_again(
    theirs: Any, scored: str, run_command: Any
) -> None:
    own = ["--env", scored] if ":" in scored else []
    trained = ["--train-env", "theirs:Shaped"]
    assert run_command("train", scored, *trained, "--run-dir", "run", "--quiet", *SIZES.split())[0] == 0
    sys.modules.pop("theirs")
    env = theirs.Plain if own else None
    assert "--train-env theirs:Shaped" in refused("run", env=env)
    assert "theirs" not in sys.modules
    assert run_command("eval", "run", *own, *trained, "--episodes", "2")[0] == 0
    agent = tr.load("run", env=env, train_env="theirs:Shaped")
    assert resume_command(Path("run"), agent.config) == shlex.join(["tightrope", "resume", "run", *own, *trained])
    assert type(agent.state.env).__name__ == "Shaped"
    assert type(agent.score_env) is (env or tr.envs.CartPole)
    assert agent.learn(32, quiet=True).evaluate(2).mean >= 0 > agent.state.rollout.reward.max()
    shaped = type(agent.state.env)
    assert tr.PPO(scored, train_env=shaped, **SMALL).config.run.train_env == "theirs:Shaped"
    assert type(tr.load("run", env=env, train_env=shaped).state.env) is shaped
    assert "theirs:numpy is not a class" in refusal(tr.PPO, scored, train_env="theirs:numpy", **SMALL)


class Local(tr.envs.CartPole):
    pass


@pytest.mark.parametrize(("module", "name"), [("__main__", "Mine"), (__name__, "notebook.<locals>.Mine")])
def test_a_class_that_no_file_can_find(module: str, name: str, tmp_path: Path) -> None:
    mine = type("Mine", (Local,), {"__module__": module, "__qualname__": name})
    net = type("Net", (torch.nn.Flatten,), {"__module__": module, "__qualname__": name.replace("Mine", "Net")})
    tr.PPO(mine, **SMALL).save(tmp_path / "run")
    assert "in a script, notebook or function" in refused(tmp_path / "run")
    assert "tr.load(path, env=...)" in refused(tmp_path / "run")
    assert type(tr.load(tmp_path / "run", env=mine).state.env) is mine
    tr.PPO("CartPole-v1", **SMALL, network=net()).save(tmp_path / "other")
    assert "tr.load(path, network=...)" in refused(tmp_path / "other")
    assert tr.load(tmp_path / "other", network=net()).steps == 0


NAMES_OF_FILES = [
    ("xml_file", "ant"), ("model_path", "x"), ("texture", "~root"), ("texture", ".bashrc"), ("texture", "secret.txt"),
    ("texture", "a/b"), ("texture", "C:x"), ("texture", "here"), ("texture", ["a", {"b": "secret.txt"}]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NAMES_OF_FILES)
def test_arguments_of_a_saved_run_name_no_files(name: str, value: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").touch()
    with pytest.raises(UsageError, match=f"env_kwargs {name}="):
        check_arguments({name: value})


def test_other_arguments_are_served() -> None:
    check_arguments(
        {"map_name": "4x4", "obs_type": "ram", "version": "v1.5", "gravity": -9.8, "direction": "left", "x": None}
    )


@pytest.mark.parametrize(
    ("env", "name", "command"),
    [
        ("CartPole-v1", "CartPole-v1", "`tightrope check CartPole-v1`"),
        ("ALE/Breakout-v5", "ALE/Breakout-v5", "`tightrope check ALE/Breakout-v5`"),
        ("robots:Walk-v0", "robots:Walk-v0", "`tightrope check robots:Walk-v0`"),  # an id as Gymnasium has it
        ("robots:Arm", "Arm", "`tightrope check robots:Arm`"),
        ("__main__:Arm", "Arm", "tightrope.envs.checker.check(Arm).lines()"),
        ("robots:train.<locals>.Arm", "Arm", "tightrope.envs.checker.check(Arm).lines()"),
        ("robots:<lambda>", "<lambda>", "tightrope.envs.checker.check(the factory).lines()"),
    ],
)
def test_what_an_environment_is_called_and_how_it_is_checked(env: str, name: str, command: str) -> None:
    assert (short_name(env), check_command(env)) == (name, command)
    if "main" in env or "<" in env:
        hidden = "is defined in a script, notebook or function, where a command cannot import it: move it"
        assert hidden in refusal(imported, env)
