"""A run that was stopped and resumed is the run that was never stopped, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import PythonProcess
from run_helpers import AGENTS, assert_same_state, rows, start_command
from torch import Tensor

import tightrope as tr
from tightrope.training.checkpoint_reader import find
from tightrope.training.saving import restore

PHASES, BATCH = 6, 24
TINY: dict[str, Any] = dict(
    num_envs=3, num_steps=8, total_timesteps=PHASES * BATCH, hidden_sizes=(8,), max_episode_steps=7
)
TINY |= dict(device="cpu", video_every=0)
EVALUATED: dict[str, Any] = dict(eval_every=2 * BATCH, eval_episodes=2, keep_checkpoints=9)
OF_PPO: dict[str, Any] = dict(num_minibatches=2, update_epochs=2)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill leaves behind is not looked at here, and waiting would take most of the time."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def new(algo: str, env: Any, **settings: Any) -> tr.Agent:
    given = {**TINY, **(OF_PPO if algo == "ppo" else {}), **settings}
    given["total_timesteps"] = PHASES * given["num_envs"] * given["num_steps"]
    return AGENTS[algo](env, **given)


def assert_same_run(one: tr.Agent, other: tr.Agent) -> None:
    """Every tensor, every row of metrics, every evaluation, the best checkpoint."""
    assert_same_state(one, other)
    assert one.run_dir is not None
    assert other.run_dir is not None
    assert rows(one.run_dir) == rows(other.run_dir)
    phases = [row["phase"] for row in rows(one.run_dir)]
    assert phases == [*range(1, one.state.phase + 1)], "a gap or a double"
    if one.config.run.eval_every:
        best, others = find(one.run_dir, "best").manifest, find(other.run_dir, "best").manifest
        assert [best[k] for k in ("steps", "score")] == [others[k] for k in ("steps", "score")]
        assert any("eval/episodic_return" in row for row in rows(one.run_dir))


def whole(tmp_path: Path, algo: str, env: Any, **settings: Any) -> tr.Agent:
    return new(algo, env, **settings).learn(run_dir=tmp_path / "whole", quiet=True)


def in_pieces(
    tmp_path: Path, stops: tuple[int, ...], algo: str, env: Any, again: Any = None, film: bool = False, **settings: Any
) -> tr.Agent:
    """The same run, left after these phases and taken up from its directory; `again` is the env to load it with."""
    agent, run = new(algo, env, **settings), tmp_path / "pieces"
    for stop in stops:
        agent.learn(until=stop * agent.config.algorithm.batch_size, run_dir=run, quiet=True)
        if film:
            agent.record(tmp_path / "between.mp4", episodes=1)
            agent.evaluate(2)
            agent.predict(agent.state.obs, deterministic=False)
        agent = tr.load(run, env=again)
    return agent.learn(quiet=True)


# environments and settings --------------------------------------------------------------------------------------------


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "CartPole-v1", dict(norm_reward=True, anneal_clip=True, anneal_lr=True, target_kl=1e-4)),
    ("ppo", "CartPole-v1", dict(share_trunk=True, norm_obs=True, clip_vloss=True, max_grad_norm=None)),
    ("ppo", "Pendulum-v1", dict(log_std="state", norm_obs=True, norm_reward=True)),
    ("ppo", "CartDoublePendulum-v0", dict(share_trunk=True, anneal_lr=True, norm_adv=False)),
    ("vpg", "CartPole-v1", dict(baseline="critic", full_reset=False, anneal_lr=True)),
    ("vpg", "CartPole-v1", dict(baseline="critic", share_trunk=True, normalize_returns=True, norm_obs=True)),
    ("ppo", "CartPole-v1", dict(memory="gru", norm_obs=True, num_envs=4, memory_size=8)),
    ("ppo", "Pendulum-v1", dict(memory="lstm", memory_layers=2, num_envs=4, memory_size=8, share_trunk=True)),
    ("vpg", "CartPole-v1", dict(memory="mingru", baseline="critic", full_reset=False, memory_size=8)),
    ("vpg", "Pendulum-v1", dict(rollout_uses=2, use_importance_weights=True, log_std="state")),
    ("ppo", "MaskProbe-v0", dict(norm_obs=True)),
    ("vpg", "PrivilegedProbe-v0", dict(baseline="critic", norm_obs=True)),
    ("ppo", "HybridProbe-v0", dict(norm_obs=True, ent_coef=0.01)),
]


@pytest.mark.parametrize(
    ("algo", "env", "settings", "stops"),
    [
        *(
            (algo, env, dict(EVALUATED, norm_obs=True), (2,))
            for env, algo in zip(tr.envs.ENVS, cycle(AGENTS), strict=False)
        ),
        *((algo, env, settings | EVALUATED, (1, 4)) for algo, env, settings in VARIANTS),
    ],
    ids=str,
)
def test_every_environment_and_setting_resumes_exactly(
    algo: str, env: str, settings: dict[str, Any], stops: tuple[int, ...], tmp_path: Path
) -> None:
    assert_same_run(whole(tmp_path, algo, env, **settings), in_pieces(tmp_path, stops, algo, env, **settings))


def test_wherever_it_stops_and_whatever_is_asked_in_between(tmp_path: Path) -> None:
    settings = dict(EVALUATED, norm_obs=True, norm_reward=True, save_seconds=0)
    one = whole(tmp_path, "ppo", "CartPole-v1", **settings)
    for stop in range(1, PHASES + 1):
        assert_same_run(one, in_pieces(tmp_path / str(stop), (stop,), "ppo", "CartPole-v1", film=True, **settings))


def test_rollouts_of_different_lengths(tmp_path: Path) -> None:
    settings = dict(dead_fraction=0.3, num_steps=40, max_episode_steps=None, norm_obs=True)
    one = whole(tmp_path, "vpg", "CartPole-v1", **settings)
    assert one.state.phase > PHASES, "no rollout ended early"
    assert_same_run(one, in_pieces(tmp_path, (1, 2, 4), "vpg", "CartPole-v1", **settings))


def test_a_run_that_ends_when_it_is_solved(tmp_path: Path) -> None:
    settings = dict(stop_when_solved=True, num_envs=4, num_steps=14, max_episode_steps=None, learning_rate=0.1)
    one = whole(tmp_path, "vpg", "CartPole-v1", **settings)
    assert one.state.solved
    assert 2 < one.state.phase < PHASES, "stops nowhere in between"
    two = in_pieces(tmp_path, (1, 2, PHASES), "vpg", "CartPole-v1", **settings)
    assert_same_run(one, two)


def test_a_run_that_has_as_many_steps_as_asked_for_takes_no_more(tmp_path: Path) -> None:
    agent = new("ppo", "CartPole-v1").learn(until=BATCH, run_dir=tmp_path, quiet=True)
    agent.learn(until=BATCH, quiet=True)
    assert tr.load(tmp_path).learn(until=BATCH, quiet=True).steps == BATCH


# code of one's own ----------------------------------------------------------------------------------------------------


class Keeping(tr.envs.CartPole):
    """Changes attributes of every kind as it is stepped, some in place, some by replacing them."""

    def __init__(self, num_envs: int = 1, device: Any = "cpu", max_episode_steps: int | None = None) -> None:
        super().__init__(num_envs, device, max_episode_steps)
        self.wind, self.drift = torch.zeros(()), torch.zeros(())
        self.calls, self.level, self.flipped = 0, 0.5, False
        self.history = np.zeros(3)
        self.rngs = None  # made in the first step
        self.numpy_rng, self.torch_rng = np.random.default_rng(3), torch.Generator().manual_seed(4)
        self.old_rng, self.python_rng = np.random.RandomState(5), random.Random(6)
        self.gravity = torch.tensor(9.8)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        self.calls += 1
        self.flipped = not self.flipped
        self.level *= 0.99
        self.history[self.calls % 3] += float(self.numpy_rng.normal())
        self.wind.mul_(0.9).add_(torch.randn((), generator=self.torch_rng))
        self.drift = self.drift + self.old_rng.randn() * 0.01
        self.late = torch.tensor(self.python_rng.gauss(0, 1))
        push = self.wind + self.drift + self.late + self.level * self.history.sum() + self.flipped + self.calls
        return super().advance(state, action) + 1e-3 * push


class Drawing(tr.envs.CartPole):
    """Draws from the process's streams, in its equations and at its start."""

    def initial(self, noise: Tensor) -> Tensor:
        return super().initial(noise) + 0.01 * torch.rand(4) + 0.01 * random.gauss(0, 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return (
            super().advance(state, action) + 0.01 * random.random() + 0.01 * np.random.randn() + 0.01 * torch.randn(4)
        )


class Noisy(torch.nn.Module):
    """Draws as it looks, and when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 8)
        self.scale = 0.1 * np.random.rand() + 0.1 * random.random()

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.layer(obs)) + self.scale * torch.randn(len(obs), 8) + 0.01 * random.random()


@pytest.mark.parametrize("env", [Keeping, Drawing])
@pytest.mark.parametrize("algo", AGENTS)
def test_what_an_environment_keeps_and_draws_is_part_of_the_run(
    algo: str, env: type[tr.envs.TensorEnv], tmp_path: Path
) -> None:
    one = whole(tmp_path, algo, env, **EVALUATED)
    assert_same_run(one, in_pieces(tmp_path, (1, 3, 5), algo, env, again=env, film=True, **EVALUATED))


def test_what_a_network_draws_is_part_of_the_run(tmp_path: Path) -> None:
    settings = dict(EVALUATED, network=f"{__name__}:Noisy")
    one = whole(tmp_path, "ppo", "CartPole-v1", **settings)
    assert_same_run(one, in_pieces(tmp_path, (1, 3), "ppo", "CartPole-v1", film=True, **settings))


@pytest.mark.parametrize("env", [Keeping, Drawing])
def test_asking_in_between_disturbs_nothing(env: type[tr.envs.TensorEnv], tmp_path: Path) -> None:
    """Neither evaluations as it trains nor whatever is asked of the agent between two parts."""
    quiet, asked = new("ppo", env).learn(run_dir=tmp_path / "quiet", quiet=True), new("ppo", env, **EVALUATED)
    for stop in (1, 3, 6):
        asked.learn(until=stop * BATCH, run_dir=tmp_path / "asked", quiet=True)
        asked.record(tmp_path / "film.mp4", episodes=2, stochastic=True)
        asked.show()
        asked.evaluate(2)
        asked.predict(asked.state.obs)
        asked.save(tmp_path / "copy")
    assert_same_state(quiet, asked, but=("run.seconds", "run.best_score"))
    found = [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in rows(tmp_path / "asked")]
    assert found == rows(tmp_path / "quiet")


def test_the_callers_streams_are_left_alone(tmp_path: Path) -> None:
    def standing() -> list[Any]:
        numpy = np.random.get_state(legacy=False)
        return [random.getstate(), str(numpy["state"]), numpy["has_gauss"], torch.get_rng_state().tolist()]

    before = standing()
    agent = new("ppo", Drawing, network=f"{__name__}:Noisy", **EVALUATED)
    agent.learn(until=BATCH, run_dir=tmp_path / "run", quiet=True)
    agent.evaluate(2)
    agent.record(tmp_path / "film.mp4", episodes=1)
    agent.save(tmp_path / "copy")
    tr.load(tmp_path / "run").learn(quiet=True)
    assert standing() == before


def test_the_callers_streams_do_not_matter(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        agent = new("ppo", Drawing, network=f"{__name__}:Noisy", **EVALUATED)
        runs.append(agent.learn(run_dir=tmp_path / str(seed), quiet=True))
    assert_same_run(*runs)


def test_what_was_given_once_and_for_all_is_the_users_to_change(tmp_path: Path) -> None:
    new("ppo", Keeping).learn(until=BATCH, run_dir=tmp_path, quiet=True)
    moon = Keeping(3, max_episode_steps=7)
    moon.gravity = torch.tensor(1.6)
    env = tr.load(tmp_path, env=moon).state.env
    assert isinstance(env, Keeping)
    assert float(env.gravity) == pytest.approx(1.6)
    assert env.calls > 0
    assert float(env.wind) != 0


# in processes of their own --------------------------------------------------------------------------------------------


def started(tmp_path: Path, *words: str) -> PythonProcess:
    paths = [Path(tr.__file__).parents[1], Path(__file__).parent, Path(__file__).parents[1]]
    return start_command(*words, cwd=tmp_path, variables={"PYTHONPATH": os.pathsep.join(map(str, paths))})


def output_of(process: PythonProcess, code: int = 0) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out


def test_stopped_by_a_signal_and_resumed_on_the_command_line(tmp_path: Path) -> None:
    settings = dict(TINY, **OF_PPO, norm_obs=True, norm_reward=True, total_timesteps=150 * BATCH)
    settings |= dict(EVALUATED, eval_every=30 * BATCH)
    one = tr.PPO("CartPole-v1", **settings).learn(run_dir=tmp_path / "whole", quiet=True)
    flags = [str(x) for k, v in settings.items() for x in (f"--{k}", *(v if isinstance(v, tuple) else [v]))]
    process = started(tmp_path, "train", "CartPole-v1", "--run-dir", "pieces", *flags)
    try:
        metrics, deadline = tmp_path / "pieces" / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 3):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        last = output_of(process, 143).splitlines()[-1]
    finally:
        process.kill()
    stopped = rows(tmp_path / "pieces")
    assert 3 < len(stopped) < 150
    assert last == f"stopped after {stopped[-1]['step']:,} steps; `tightrope resume pieces` continues"
    said = output_of(started(tmp_path, "resume", "pieces"))
    assert "resuming from" in said
    assert said.count("greedy return") == 1
    assert_same_run(one, tr.load(tmp_path / "pieces"))


class Windy(Keeping, Drawing):
    """Keeps attributes and draws from the process's streams."""


def test_code_of_ones_own_in_another_process(tmp_path: Path) -> None:
    settings = dict(EVALUATED, network=f"{__name__}:Noisy")
    new("ppo", Windy, **settings).learn(until=2 * BATCH, run_dir=tmp_path / "pieces", quiet=True)
    given = ["--env", f"{__name__}:Windy", "--network", f"{__name__}:Noisy"]
    resumed = started(tmp_path, "resume", "pieces", *given, "--quiet")
    one = whole(tmp_path, "ppo", Windy, **settings)
    output_of(resumed)
    assert_same_run(one, tr.load(tmp_path / "pieces", env=Windy))


def test_a_checkpoint_that_is_pruned_while_it_is_loaded_can_still_be_read(tmp_path: Path) -> None:
    agent = new("ppo", "CartPole-v1").learn(run_dir=tmp_path / "run", quiet=True)
    found = find(tmp_path / "run")
    shutil.rmtree(found.path)
    restored = new("ppo", "CartPole-v1")
    restore(restored.state, found)
    assert torch.equal(restored.state.optimizer.flat, agent.state.optimizer.flat)
