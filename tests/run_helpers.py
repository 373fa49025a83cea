"""What tests of runs share: starting and advancing them, comparing their states and metrics, forging their checkpoints."""

import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from forks import PythonProcess
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine.metrics import Reading
from tightrope.models.memory import Memory

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "reliability"))

from forgery import forge, forge_config, forge_tensors, manifest_of, newest

__all__ = ["forge", "forge_config", "forge_tensors", "manifest_of", "newest"]
AGENTS: dict[str, type[tr.Agent]] = {"ppo": tr.PPO, "vpg": tr.VPG}


def loaded(path: Path) -> ModuleType:
    """A Python file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def skip_file_without(package: str) -> None:
    """Leave out the tests of a file where a package is not installed. It is not imported yet: every worker reads all files."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def start_command(*words: str, **options: Any) -> PythonProcess:
    """`tightrope` with some words, in a process of its own."""
    return PythonProcess("-m", "tightrope", *words, **options)


def refusal(call: Any, *args: Any, **given: Any) -> str:
    """The one line that a wrong request is answered with."""
    with pytest.raises(tr.UsageError) as error:
        call(*args, **given)
    message = str(error.value)
    assert message
    assert "\n" not in message
    return message


class Plain(gymnasium.Env[Any, Any]):
    """Shows zeros, pays 1 a step, and ends after `length` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)
    length, time = 5, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.shown(), 1.0, self.time >= self.length, False, {}

    def shown(self) -> Any:
        return np.zeros(self.observation_space.shape or (), np.float32)


class Spaces(Plain):
    """Shows random members of a space, and takes only members of another."""

    def __init__(self, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return super().step(action)

    def shown(self) -> Any:
        return self.observation_space.sample()


def advance(agent: tr.Agent, phases: int) -> list[dict[str, float]]:
    """The metrics of the next phases."""
    loop = ALGORITHMS[agent.algo].loop(agent.state, agent.config.algorithm)
    return [Reading(metrics).row() for metrics in islice(loop, phases)]


def state_after(phases: int, agent: tr.Agent) -> dict[str, Tensor]:
    advance(agent, phases)
    return agent.state.state_dict()


def assert_same_state(one: Any, other: Any, but: tuple[str, ...] = ("run.seconds",)) -> None:
    """Two agents, or two states of them, are equal bit for bit."""
    mine, theirs = (x.state.state_dict() if isinstance(x, tr.Agent) else x for x in (one, other))
    assert mine.keys() == theirs.keys()
    for name in mine.keys() - {*but}:
        assert mine[name].dtype == theirs[name].dtype, name
        assert torch.equal(mine[name], theirs[name]), name


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics file, if there is one yet, without what the clock says."""
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "charts/SPS")} for line in lines]


class Spoiled(tr.envs.Pendulum):
    """Four pendulums, one of which gives a bad number at a known step of its life."""

    pure = False  # what they do depends on the clock
    what, at, value = "reward", 19, float("nan")

    def spoil(self, x: Tensor, entry: tuple[int, ...] = ()) -> Tensor:
        if len(x) < 4:
            return x
        x, where = x.clone(), (3, *entry)
        x[where] = torch.where(self.clock[3] == self.at, torch.full_like(x[where], self.value), x[where])
        return x

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        reward = super().reward(state, action, next_state)
        return self.spoil(reward) if self.what == "reward" else reward

    def observe(self, state: Tensor) -> Tensor:
        obs = super().observe(state)
        return self.spoil(obs, (1,)) if self.what == "observation" else obs


class Decaying(Memory):
    """A user's memory: a decaying mean of its input, unrolled by the base class."""

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.state_size = self.out_features = size
        self.layer = nn.Linear(in_features, size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.9 * state + 0.4 * self.layer(x)
        return state.tanh(), state
