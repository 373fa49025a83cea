"""Names of directories, and words of environments, that would do something to a terminal or are no text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

import tightrope as tr
from tightrope.cli import training
from tightrope.engine import distributed
from tightrope.envs.adapters import gym

pytestmark = pytest.mark.usefixtures("own_directory")
Command = Callable[..., Any]
ESCAPES = "d\x1b]0;owned\x07\x1b[31m"
NO_TEXT = os.fsdecode(b"d\xff\xfe")
SMALL = "--num-envs 4 --num-steps 8 --num-minibatches 1 --total-timesteps 160 --eval-episodes 1 --device cpu"

ENV = """
import gymnasium, numpy

class Rude(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    time = 0

    def reset(self, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.time += 1
        if self.time > 20:
            raise RuntimeError("\\x1b]0;owned\\x07\\x1b[31m\\nmore")
        return numpy.zeros(2, numpy.float32), 1.0, False, False, {}
"""


@pytest.mark.parametrize("name", [ESCAPES, NO_TEXT])
def test_a_sweep_in_such_a_directory(name: str, tightrope: Command) -> None:
    done = tightrope(f"sweep CartPole-v1 --trials 1 {SMALL} --evaluations 1 --seeds-per-trial 1 --sweep-dir", name)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err
    assert (Path(name) / "best.yaml").exists()


def test_seeds_in_such_a_directory(monkeypatch: pytest.MonkeyPatch, tightrope: Command) -> None:
    monkeypatch.setattr(training.SeedPool, "run", lambda pool: [setattr(one, "code", 0) for one in pool.seeds])
    monkeypatch.setattr(training, "compare", lambda seeds, folder: (folder / "comparison.html", "the words"))
    done = tightrope(f"train CartPole-v1 {SMALL} --seeds 1-2 --run-dir", ESCAPES)
    assert done.code == 0, done.err
    assert "the words" in done.out
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("command", ["train", "check"])
def test_what_an_environment_raises(command: str, tightrope: Command) -> None:
    Path(f"rude_{command}.py").write_text(ENV)
    done = tightrope(command, f"rude_{command}:Rude", f"{SMALL} --run-dir run" if command == "train" else "")
    assert done.code == 1
    assert "\\x1b[31m" in done.out + done.err
    assert "\x1b" not in done.out + done.err


@pytest.mark.parametrize("error", [tr.EnvError, tr.NotFinite, tr.UsageError])
def test_errors_that_quote_somebody_are_one_plain_line(error: type[Exception]) -> None:
    assert str(error("\x1b[31mred\nand more")) == "\\x1b[31mred\\nand more"


def test_a_phase_that_is_not_finite_in_such_a_directory() -> None:
    class Sick(tr.envs.CartPole):
        def reward(self, state, action, next_state):  # type: ignore[no-untyped-def]
            return super().reward(state, action, next_state).where(next_state[:, 2].abs() < 0.1, float("nan"))

    agent = tr.PPO(Sick(num_envs=4), num_steps=16, num_minibatches=2, total_timesteps=6400)
    with pytest.raises(tr.NotFinite, match=r"is not finite.*d\\udcff\\udcfe"):
        agent.learn(run_dir=NO_TEXT, quiet=True)


def test_ranks_that_are_restarted_find_such_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_world", distributed.World(restarts=1, store=HashStore()))
    distributed.keep_for_restart("run_dir", NO_TEXT)
    assert distributed.kept_for_restart("run_dir") == NO_TEXT


def test_processes_that_the_system_refuses_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object, **rest: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(gym, "Workers", refused)
    with pytest.raises(tr.UsageError, match=r"vectorization_mode 'async' cannot .*Read-only file system.*/dev/shm"):
        tr.PPO("CliffWalking-v1", num_envs=4, vectorization_mode="async")
