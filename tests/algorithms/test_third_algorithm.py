"""An algorithm is one file and one line: advantage actor-critic, written here, does all that PPO and VPG do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope import agent as agents
from tightrope.algorithms import ALGORITHMS, Algorithm
from tightrope.algorithms.common import OnPolicyConfig, divides, training_loop
from tightrope.cli import main
from tightrope.engine import Noise, State, health, run_as, under_guard
from tightrope.functional import entropy_bonus, gae, policy_gradient, successor_values, value_loss
from tightrope.tools.bench import measure
from tightrope.tools.probe import PROBES, Probe, run_probe
from tightrope.types import Batch

# the page ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Settings of A2C."""

    epoch_settings: ClassVar[tuple[str, ...]] = ("update_epochs", "num_minibatches")
    update_epochs: int = 1
    """Passes over each rollout."""
    num_minibatches: int = 16
    """Minibatches that a rollout is cut into."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation."""

    def check(self) -> None:
        divides(self, "num_minibatches", "the batch num_envs x num_steps", self.batch_size)


class A2CTerms(NamedTuple):
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor


class A2CMetrics(NamedTuple):
    terms: A2CTerms
    grad_norm: Tensor
    learning_rate: Tensor
    episodes: Tensor
    health: Tensor


@dataclass(frozen=True)
class A2CLoss:
    """-(log pi(a|s) A + c2 S) + c1 L^VF"""

    vf_coef: float
    ent_coef: float

    def __call__(self, policy: Any, batch: Batch) -> tuple[Tensor, A2CTerms]:
        distribution, value = policy(batch.obs)
        log_prob, ones = distribution.log_prob(batch.action), torch.ones_like(batch.advantage)
        objective = policy_gradient(log_prob, batch.advantage, ones, ones > 0)
        critic_loss, entropy = value_loss(value, batch.target), entropy_bonus(distribution.entropy())
        total = -(objective + self.ent_coef * entropy) + self.vf_coef * critic_loss
        return total, A2CTerms(-objective.detach(), critic_loss.detach(), entropy.detach())


@under_guard
def a2c(state: State, config: A2CConfig) -> Iterator[A2CMetrics]:
    return training_loop(state, config, phase)


@run_as("phase")
def phase(state: State, config: A2CConfig, noise: Noise) -> A2CMetrics:
    obs, _ = state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
    state.obs.copy_(obs)
    episodes = state.runtime.all_reduce_sum(state.env.finished_episodes())
    return learn(state, config, noise.shuffle, episodes)


@run_as("part")
@torch.no_grad()
def estimate(state: State, config: A2CConfig) -> Batch:
    policy, rollout = state.policy, state.rollout
    final_value = state.runtime.final_values(policy, rollout)
    next_value = successor_values(rollout.value, policy.value(state.obs), rollout.done, final_value)
    ends, decays = (rollout.terminated, rollout.done), (config.gamma, config.gae_lambda)
    advantage = gae(rollout.reward, rollout.value, next_value, *ends, *decays)
    return rollout.batch(advantage, target=advantage + rollout.value)


@run_as("part")
def learn(state: State, config: A2CConfig, shuffle: Tensor, episodes: Tensor) -> A2CMetrics:
    policy, optimizer, runtime = state.policy, state.optimizer, state.runtime
    batch, loss, rows = estimate(state, config), A2CLoss(config.vf_coef, config.ent_coef), []
    for minibatch in batch.minibatches(config.num_minibatches, batch.order(shuffle)):
        minibatch.advantage = runtime.standardized(minibatch.advantage)
        terms = runtime.backward(loss, policy, minibatch, optimizer)
        rows.append(torch.stack([*terms, runtime.step(optimizer, config.max_grad_norm)]))
    runtime.update_statistics(policy, state.rollout.obs, state.rollout.valid)
    *means, grad_norm = torch.stack(rows).mean(0)
    terms = A2CTerms(*means)
    found = health(state, state.rollout.valid, terms, grad_norm)
    return A2CMetrics(terms, grad_norm, optimizer.learning_rate.clone(), episodes, found)


# what it does -----------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = dict(num_envs=16, num_steps=64, num_minibatches=4, learning_rate=7e-4, seed=1, device="cpu")
FLAGS = "--num-envs 4 --num-steps 16 --num-minibatches 2 --total-timesteps 640 --device cpu"


@pytest.fixture(autouse=True)
def the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in algorithms/__init__.py."""
    monkeypatch.setitem(ALGORITHMS, "a2c", Algorithm(A2CConfig, a2c))
    monkeypatch.setattr(agents, "AGENTS", dict(agents.AGENTS))


def new_agent(**settings: Any) -> tr.Agent:
    return agents.agent_class("a2c")("CartPole-v1", **{**SMALL, **settings})


def command(words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    return int(stop.value.code or 0)


def test_it_trains_and_is_evaluated() -> None:
    agent = new_agent(total_timesteps=100_000)
    before = agent.evaluate(episodes=20).mean
    assert agent.learn(quiet=True).evaluate(episodes=20).mean > max(250, 2 * before)


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = new_agent(total_timesteps=16 * 64 * 6).learn(quiet=True)
    new_agent(total_timesteps=16 * 64 * 6).learn(until=16 * 64 * 2, run_dir=tmp_path, quiet=True)
    resumed = tr.load(tmp_path).learn(quiet=True)
    assert type(resumed).__name__ == "A2C"
    assert torch.equal(resumed.state.optimizer.flat, whole.state.optimizer.flat)


# without the one of continuous actions: sixteen unclipped steps on one rollout are too rough for a Gaussian
@pytest.mark.parametrize("probe", [p for p in PROBES if p.numbers is None], ids=lambda probe: probe.env)
def test_it_passes_the_probes(probe: Probe) -> None:
    finding = run_probe(probe, "a2c", seed=1)
    assert finding.passed, finding.error


def test_it_is_benched() -> None:
    found = measure("CartPole-v1", "a2c", SMALL, seconds=0.1)
    assert set(found.split) == {"environment", "policy", "advantages", "learning", "rest"}


@pytest.mark.usefixtures("onnxruntime")
def test_it_exports(tmp_path: Path) -> None:
    assert new_agent().export(tmp_path / "policy.onnx").path.exists()


def test_commands_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    assert command(f"train CartPole-v1 --algo a2c --run-dir run {FLAGS}") == 0
    assert command("eval run --episodes 2") == 0
    assert command(f"sweep CartPole-v1 --algo a2c --trials 1 --seeds-per-trial 1 {FLAGS}") == 0
    assert "1 of 1 done" in capsys.readouterr().out
    assert command("train --algo a2c --help") == 0
    assert "Minibatches that a rollout is cut into." in capsys.readouterr().out
