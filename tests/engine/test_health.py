"""The flag of a phase: trips on whatever is not finite and was learned from, and on nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from run_helpers import AGENTS
from torch import Tensor

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine import Runtime
from tightrope.engine.metrics import Reading, finite_sum, health, unhealthy
from tightrope.functional import PPOTerms, VPGTerms, terms_to_check
from tightrope.training.presets import PRESETS

NAN, INF = float("nan"), float("inf")
SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=96, seed=3, device="cpu")


def agent_of(algo: str = "ppo", env: str = "Pendulum-v1", **settings: Any) -> tr.Agent:
    return AGENTS[algo](env, **{**SMALL, **settings})


def bad_parts(agent: tr.Agent, terms: Any = None, grad_norm: float = 0.0, learned: Tensor | None = None) -> list[str]:
    learned = agent.state.rollout.valid if learned is None else learned
    terms = PPOTerms(*torch.zeros(5)) if terms is None else terms
    return unhealthy(health(agent.state, learned, terms, torch.tensor(grad_norm))[0, 1:].tolist())


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("part", "where"),
    [
        ("observation", "rollout.obs"),
        ("observation", "obs"),
        ("reward", "rollout.reward"),
        ("value", "rollout.value"),
        ("parameter", "optimizer.flat"),
        ("statistics", "policy.normalizer.variance"),
        ("statistics", "policy.reward_scaler.variance"),
    ],
)
def test_one_bad_entry_anywhere_shows_in_its_part_alone(part: str, where: str, bad: float) -> None:
    agent = agent_of(norm_obs=True)
    assert bad_parts(agent) == []  # which takes as many numbers as there are PARTS
    tensor: Any = agent.state
    for name in where.split("."):
        tensor = getattr(tensor, name)
    tensor.view(-1)[-1] = bad
    assert bad_parts(agent) == [part]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_losses_and_gradients_count_and_what_only_describes_does_not(bad: float) -> None:
    agent = agent_of()
    for kind in (PPOTerms, VPGTerms):
        terms = kind(*torch.zeros(len(kind._fields)))
        assert set(kind.diagnostics()) <= set(kind._fields)
        for name in kind._fields:
            expected = [] if name in ("approx_kl", "clip_fraction", "importance_weight") else ["loss"]
            assert bad_parts(agent, terms._replace(**{name: torch.tensor(bad)})) == expected, name
    assert bad_parts(agent, grad_norm=bad) == ["gradient"]


class MoreTerms(NamedTuple):
    """A loss's terms with a diagnostic before a loss."""

    note: Tensor
    added_loss: Tensor

    @staticmethod
    def diagnostics() -> frozenset[str]:
        return frozenset({"note"})


class PlainTerms(NamedTuple):
    """Terms that declare no diagnostics."""

    only: Tensor


def test_a_new_loss_term_is_checked_wherever_it_stands() -> None:
    agent, zero, bad = agent_of(), torch.tensor(0.0), torch.tensor(NAN)
    assert bad_parts(agent, MoreTerms(zero, bad)) == ["loss"]
    assert bad_parts(agent, MoreTerms(bad, zero)) == []
    assert bad_parts(agent, PlainTerms(bad)) == ["loss"]
    assert [*terms_to_check(MoreTerms(zero, bad))] == ["added_loss"]


def test_rows_that_were_not_learned_from_do_not_count() -> None:
    agent = agent_of()
    rollout = agent.state.rollout
    learned = torch.ones(8, 4, dtype=torch.bool)
    learned[5, 2] = learned[7, 1] = False
    for column in (rollout.obs, rollout.reward, rollout.value):
        column[5, 2] = NAN
    agent.state.obs[1] = INF  # shown after a step that does not count
    assert bad_parts(agent, learned=learned) == []
    rollout.valid.copy_(learned)
    rollout.skips = True
    assert bad_parts(agent) == []
    assert bad_parts(agent, learned=torch.ones_like(learned)) == ["observation", "reward", "value"]
    learned[5, 2] = True
    assert bad_parts(agent, learned=learned) == ["observation", "reward", "value"]


def test_large_numbers_are_numbers() -> None:
    agent = agent_of()
    agent.state.rollout.obs.fill_(1e30)
    agent.state.rollout.reward.fill_(-1e30)
    assert bad_parts(agent) == []


def test_whole_numbers_are_finite_and_half_ones_do_not_overflow() -> None:
    assert finite_sum(torch.full((64, 84, 84), 255, dtype=torch.uint8), None) == 0
    assert torch.isfinite(finite_sum(torch.full((100,), 6e4, dtype=torch.float16), None))


@pytest.mark.parametrize(("env", "algo"), sorted(key for key in PRESETS if key[0] in tr.envs.ENVS))
def test_the_presets_are_healthy(env: str, algo: str) -> None:
    size = dict(num_envs=64, num_minibatches=4) if algo == "ppo" else dict(num_envs=8)
    agent = agent_of(algo, env, **{"hidden_sizes": (16,), "num_steps": 16, "total_timesteps": 64 * 16 * 4, **size})
    for metrics in ALGORITHMS[algo].loop(agent.state, agent.config.algorithm):
        reading = Reading(metrics)
        assert reading.unhealthy() == []
        assert not any("health" in tag for tag in reading.row())


def test_a_constant_target_and_no_finished_episode_are_no_alarm() -> None:
    agent = agent_of("ppo", "Probe1-v0", num_steps=2)
    for metrics in ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm):
        assert (
            Reading(metrics._replace(explained_variance=torch.tensor(NAN), reward=torch.tensor(NAN))).unhealthy() == []
        )


def test_a_step_that_the_kl_limit_forbade_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device terms of later minibatches are still computed, under a mask; they may be anything."""
    original, count = Runtime.backward, iter(range(1000))

    def overflowing(*args: Any) -> Any:
        terms = original(*args)
        return terms._replace(approx_kl=torch.tensor(INF), policy_loss=torch.tensor(INF)) if next(count) else terms

    monkeypatch.setattr(Runtime, "backward", overflowing)
    monkeypatch.setattr(Runtime, "halted", lambda self, stopped: False)
    agent = agent_of(target_kl=0.1)
    metrics = next(ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm))
    assert Reading(metrics).unhealthy() == []
    assert torch.isfinite(metrics.terms.approx_kl)
