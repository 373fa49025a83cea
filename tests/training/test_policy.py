"""A policy without its environment: spaces from the checkpoint, the same actions, nothing imported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from forks import PythonProcess
from run_helpers import Spaces, forge, forge_config, manifest_of, newest, refusal
from torch import Tensor, nn

import tightrope as tr
from tightrope.envs.adapters.space_members import space_from_json, space_to_json, stacked
from tightrope.envs.step_arrays import MAX_SPACE_SIZE
from tightrope.files import canonical
from tightrope.training.checkpoint_reader import with_hash

TINY: dict[str, Any] = dict(
    num_envs=2, num_steps=4, num_minibatches=1, update_epochs=1, total_timesteps=16, hidden_sizes=(8,), device="cpu"
)
DATA = Path(__file__).parents[1] / "data" / "schema1-ppo"

OBSERVATIONS: dict[str, gs.Space[Any]] = {
    "vector": gs.Box(-1, 1, (3,)),
    "float64": gs.Box(-np.inf, np.inf, (3,), np.float64),
    "uneven": gs.Box(np.array([-1, 0, -np.inf], np.float32), np.array([1, 5, 2], np.float32)),
    "scalar": gs.Box(-1, 1, ()),
    "picture": gs.Box(0, 255, (40, 40, 3), np.uint8),
    "grey picture": gs.Box(0, 255, (40, 44), np.uint8),
    "small picture": gs.Box(0, 255, (5, 5, 3), np.uint8),
    "whole numbers": gs.Box(-5, 2**20, (2,), np.int64),
    "choice": gs.Discrete(5, start=-2),
    "choices": gs.MultiDiscrete([3, 4], start=[1, -1]),
    "bits": gs.MultiBinary(4),
    "dict": gs.Dict({"b": gs.Box(-1, 1, (2,)), "a": gs.Discrete(3), "in": gs.Dict({"c": gs.MultiBinary(2)})}),
    "tuple": gs.Tuple((gs.Box(-1, 1, (2,)), gs.Discrete(3, start=7))),
    "pair with a dict": gs.Tuple((gs.Box(-1, 1, (2,)), gs.Dict({"c": gs.Discrete(2)}))),
    "dict of a picture": gs.Dict({"eye": gs.Box(0, 255, (40, 40, 3), np.uint8), "arm": gs.Box(-1, 1, (2,))}),
}
ACTIONS: dict[str, gs.Space[Any]] = {
    "discrete": gs.Discrete(3),
    "from 5": gs.Discrete(3, start=5),
    "multi": gs.MultiDiscrete([2, 3]),
    "bits": gs.MultiBinary(3),
    "box": gs.Box(np.array([-2, 0], np.float32), np.array([3, 1], np.float32)),
    "box64": gs.Box(-0.1, 0.1, (2, 2), np.float64),
}
CASES = [(shown, "discrete") for shown in OBSERVATIONS] + [("vector", taken) for taken in ACTIONS]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs).tanh()


def saved(path: Path, shown: str = "vector", taken: str = "discrete", **settings: Any) -> tr.Agent:
    spaces = OBSERVATIONS[shown], ACTIONS[taken]
    agent = tr.PPO(lambda: Spaces(*spaces), **TINY, **settings).learn(quiet=True)
    agent.save(path)
    return agent


def equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(np.array_equal(one, other))


@pytest.fixture(scope="module")
def of_a_vector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vector") / "run"
    saved(path)
    return path


@pytest.mark.parametrize(("shown", "taken"), CASES)
def test_it_acts_as_the_agent_does(shown: str, taken: str, tmp_path: Path) -> None:
    agent = saved(tmp_path / "run", shown, taken)
    policy = tr.load_policy(tmp_path / "run")
    assert (policy.observation_space, policy.action_space) == (OBSERVATIONS[shown], ACTIONS[taken])
    singles = [OBSERVATIONS[shown].sample() for _ in range(3)]
    for obs in singles:
        assert equal(policy.predict(obs), agent.predict(obs))
        assert ACTIONS[taken].contains(policy.predict(obs, deterministic=False))
        assert equal(policy.predict((obs, {})), agent.predict(obs)), "what a reset returns is not understood"
    batch = stacked(OBSERVATIONS[shown], singles)
    assert equal(policy.predict(batch), agent.predict(batch))
    np.testing.assert_allclose(policy.predict(batch), [policy.predict(one) for one in singles], rtol=1e-4, atol=1e-5)


def test_of_an_environment_of_tensors(tmp_path: Path) -> None:
    agent = tr.PPO("Pendulum-v1", **{**TINY, "norm_obs": True}).learn(quiet=True)
    agent.save(tmp_path / "run")
    policy = tr.load_policy(tmp_path / "run", device=torch.device("cpu"))
    obs = torch.randn(5, 3)
    assert torch.equal(policy.predict(obs), agent.predict(obs))
    assert equal(policy.predict([0.1, 0.2, 0.3]), agent.predict([0.1, 0.2, 0.3]))
    assert policy.observation_space.shape == (3,)
    assert (policy.steps, repr(policy)) == (16, "Policy('Pendulum-v1', ppo, steps=16)")


def test_a_network_of_ones_own_and_one_without_a_critic(tmp_path: Path) -> None:
    obs = np.zeros(4, np.float32)
    agent = tr.VPG("CartPole-v1", num_envs=2, num_steps=8, total_timesteps=64, baseline="none", device="cpu")
    agent.learn(quiet=True).save(tmp_path / "vpg")
    assert tr.load_policy(tmp_path / "vpg").predict(obs) == agent.predict(obs)
    agent = tr.PPO("CartPole-v1", **TINY, network=Net).learn(quiet=True)
    agent.save(tmp_path / "run")
    assert tr.load_policy(tmp_path / "run").predict(obs) == agent.predict(obs)
    assert tr.load_policy(tmp_path / "run", network=Net()).predict(obs) == agent.predict(obs)
    tr.PPO("CartPole-v1", **TINY, network=lambda: Net()).save(tmp_path / "other")
    with pytest.raises(tr.UsageError, match="network"):
        tr.load_policy(tmp_path / "other")


def test_a_checkpoint_from_before_spaces_were_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tr.load_policy(DATA)
    obs = np.full(policy.observation_space.shape, 0.1, np.float32)
    assert equal(policy.predict(obs), tr.load(DATA).predict(obs))
    assert capsys.readouterr().err == "", "an environment of tensors has no other spaces"
    agent = saved(tmp_path / "run", "vector")
    path = newest(tmp_path / "run")
    manifest = {key: value for key, value in manifest_of(path).items() if key not in ("spaces", "sha256")}
    (path / "manifest.json").write_bytes(canonical(with_hash(manifest)))
    (path.parent / "latest").unlink()
    obs = OBSERVATIONS["vector"].sample()
    assert tr.load_policy(tmp_path / "run").predict(obs) == agent.predict(obs)
    assert "without the environment's own spaces" in capsys.readouterr().err


def test_neither_the_environment_nor_its_package_is_imported(tmp_path: Path) -> None:
    (tmp_path / "strangers.py").write_text("raise SystemExit('imported')")
    agent = saved(tmp_path / "run", "dict")
    forge_config(tmp_path / "run", env="strangers:Env")
    code = f"""
import sys, tightrope as tr
policy = tr.load_policy({str(tmp_path / "run")!r})
print(policy.predict(dict(b=[0.1, 0.2], a=1, **{{'in': dict(c=[0, 1])}})), 'strangers' in sys.modules)
"""
    variables = {"PYTHONPATH": os.pathsep.join([str(Path(tr.__file__).parents[1]), str(tmp_path)])}
    done = PythonProcess("-c", code, variables=variables, cwd=tmp_path).done()
    obs = {"b": np.array([0.1, 0.2], np.float32), "a": 1, "in": {"c": np.array([0, 1], np.int8)}}
    assert (done.stderr, done.stdout.split()) == ("", [str(agent.predict(obs)), "False"])


@pytest.mark.parametrize("what", ["learn", "evaluate", "record", "show", "save"])
def test_what_needs_the_environment_says_so_in_one_line(what: str, of_a_vector: Path) -> None:
    policy = tr.load_policy(of_a_vector)
    assert refusal(getattr(policy, what), "x.mp4").startswith(f"{what} needs the environment")


@pytest.mark.parametrize("obs", [[0.1, 0.2], "left", None, {"a": 1}, [[0.1], [0.2, 0.3]]])
def test_an_observation_that_does_not_fit_is_one_line(obs: Any, of_a_vector: Path, run_of_tensors: Path) -> None:
    for path in (of_a_vector, run_of_tensors):
        refusal(tr.load_policy(path).predict, obs)


def test_a_choice_outside_its_space_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "run", "choice")
    assert "9" in refusal(tr.load_policy(tmp_path / "run").predict, 9)


def test_it_can_be_exported(tmp_path: Path, onnxruntime: Any) -> None:
    saved(tmp_path / "run", "dict", "from 5")
    written_file = tr.load_policy(tmp_path / "run").export(tmp_path / "policy.onnx")
    assert written_file.max_error < 1e-3
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    assert {output.name for output in session.get_outputs()} >= {"action", "logits", "value"}


WIDEST = gs.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)


# strangers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [*OBSERVATIONS.values(), *ACTIONS.values(), WIDEST], ids=repr)
def test_a_space_is_read_as_it_was_written(space: gs.Space[Any]) -> None:
    assert space_from_json(space_to_json(space)) == space


HUGE = {"space": "Box", "shape": [10**6, 10**6], "dtype": "float32", "low": 0, "high": 1}
BOX = {"space": "Box", "shape": [3], "dtype": "float32", "low": -1, "high": 1}


@pytest.mark.parametrize(
    "words",
    [
        None, 3, "Box", [], {}, {"space": "os"}, {"space": ["Box"]}, HUGE,
        {**BOX, "shape": [-3]}, {**BOX, "shape": "3"}, {**BOX, "shape": [3.0]}, {**BOX, "dtype": "object"},
        {**BOX, "dtype": ["float32"]}, {**BOX, "low": "x"}, {**BOX, "low": [1, 2]}, {**BOX, "low": 5}, {**BOX, "low": True},
        {**BOX, "shape": [1] * 100},
        {"space": "Discrete", "shape": [], "dtype": "int64", "n": 0, "start": 0},
        {"space": "Discrete", "shape": [], "dtype": "int64", "n": 2**70, "start": 0},
        {"space": "Discrete", "shape": [], "dtype": "int64", "n": 10**12, "start": 0},
        {"space": "Discrete", "shape": [], "dtype": "int64", "n": "5", "start": 0},
        {"space": "MultiDiscrete", "shape": [2], "dtype": "int64", "n": [1], "start": [0, 0]},
        {"space": "MultiDiscrete", "shape": [2], "dtype": "int64", "n": [10**9, 10**9], "start": [0, 0]},
        {"space": "Dict", "entries": 3}, {"space": "Dict", "entries": []}, {"space": "Dict", "entries": [["a"]]},
        {"space": "Dict", "entries": [[None, BOX]]}, {"space": "Tuple", "entries": [[0, HUGE]]},
        {"space": "Tuple", "entries": [[i, {**BOX, "shape": [MAX_SPACE_SIZE // 2]}] for i in range(3)]},
        {"space": "Dict", "entries": [["a", BOX], ["a", BOX]]}, BOX | {"shape": [4]}, BOX | {"shape": [10**6]},
    ],
    ids=lambda words: str(words)[:60],
)  # fmt: skip
def test_spaces_that_a_stranger_has_written_are_refused_in_one_line(
    words: Any, of_a_vector: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(of_a_vector, tmp_path / "run"))
    manifest = manifest_of(newest(run))
    for place in ("observation", "action"):
        forge(run, spaces={**manifest["spaces"], place: words})
        refusal(tr.load_policy, run)


@pytest.mark.parametrize("spaces", [3, "x", [], {}, None])
@pytest.mark.parametrize(
    "spec",
    [
        None, 3, {}, {"kind": "os"}, {"kind": "Box", "shape": [10**9], "low": "0", "high": "1", "dtype": "torch.float32"},
        {"kind": "Box", "shape": [3], "low": "0", "high": "1", "dtype": "torch.load"},
        {"kind": "Box", "shape": [3], "low": None, "high": "1", "dtype": "torch.float32"},
        {"kind": "Discrete", "n": 10**12}, {"kind": "MultiDiscrete", "n": [10**9, 10**9]}, {"kind": "MultiDiscrete", "n": []},
        {"kind": "Composite", "parts": []}, {"kind": "Composite", "parts": [["a", {"kind": "Composite", "parts": []}]]},
    ],
    ids=lambda words: str(words)[:60],
)  # fmt: skip
def test_descriptions_that_a_stranger_has_written_are_refused_in_one_line(
    spec: Any, spaces: Any, run_of_tensors: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(run_of_tensors, tmp_path / "run")
    forge(run, spaces=spaces, observation=spec)
    refusal(tr.load_policy, run)


@pytest.fixture(scope="module")
def run_of_tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "run"
    tr.PPO("CartPole-v1", **TINY).save(path)
    return path


DICT = gs.Dict({"speed": gs.Box(-1, 1, (2,)), "eye": gs.Box(0, 255, (40, 40, 3), np.uint8), "gear": gs.Discrete(3)})
PARTS = {"speed": np.zeros(2), "eye": np.zeros((40, 40, 3), np.uint8), "gear": 1}


@pytest.fixture(scope="module")
def of_a_dict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    tr.PPO(lambda: Spaces(DICT, gs.Discrete(2)), **TINY).save(path)
    return path


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ({"speed": np.zeros(2), "eye": PARTS["eye"]}, "it has no 'gear', only ['speed', 'eye']"),
        ({**PARTS, "speed": np.zeros(3)}, "it['speed'] has shape (3,), not (2,) or (B, 2)"),
        ({**PARTS, "eye": np.zeros((3, 40, 40))}, "it['eye'] has shape (3, 40, 40), not (40, 40, 3) or (B, 40, 40, 3)"),
        ({**PARTS, "speed": [[0.0], [0.0, 1.0]]}, "it['speed'] has rows of unequal length"),
        (np.zeros(2), "it is a ndarray, not a dict with ['eye', 'gear', 'speed']"),
        ({**PARTS, "speed": np.zeros((4, 2))}, "an observation does not fit: give one member of Dict("),
    ],
)  # fmt: skip
def test_an_observation_that_does_not_fit_is_told_why(obs: Any, words: str, of_a_dict: Path) -> None:
    policy = tr.load_policy(of_a_dict)
    assert policy.predict(PARTS) in (0, 1)
    assert words in refusal(policy.predict, obs)


def test_a_policy_is_used_like_an_agent(of_a_dict: Path) -> None:
    with tr.load_policy(of_a_dict) as policy:
        assert policy.predict(PARTS) in (0, 1)
    policy.close()
    for name, words in {
        "act": "here it is called policy.predict(obs)",
        "state_dict": "here it is called policy.network.state_dict()",
        "load": "here it is called tr.load_policy(path)",
        "render": "agent.record(path), or agent.show() in a notebook; an agent, with its environment, comes from tr.load(path)",
        "nonsense": "Policy has no 'nonsense'",
    }.items():
        with pytest.raises(AttributeError) as error:
            getattr(policy, name)
        assert words in str(error.value)
    assert "state=None where an episode starts" in refusal(policy.predict, PARTS, episode_start=None)
    assert "this policy has no memory: drop it" in refusal(policy.predict, PARTS, state=[0.0])
    assert "give deterministic=False by name" in refusal(policy.predict, PARTS, False)
    assert "called deterministic, the other way round" in refusal(policy.predict, PARTS, stochastic=True)
    assert "It takes obs, state, deterministic" in refusal(policy.predict, PARTS, nonsense=True)
