"""From device scalars to named numbers."""

import math
import re

import pytest
import torch

from tightrope.algorithms import PPOMetrics, VPGMetrics
from tightrope.engine.metrics import PARTS, Reading
from tightrope.functional import PPOTerms, VPGTerms

ppo = PPOMetrics(
    terms=PPOTerms(*torch.arange(5.0)),
    grad_norm=torch.tensor(5.0),
    learning_rate=torch.tensor(6.0),
    explained_variance=torch.tensor(7.0),
    reward=torch.tensor(0.5),
    episodes=torch.tensor([4.0, 100.0, 80.0]),
    health=torch.zeros(1 + len(PARTS)),
)
vpg = VPGMetrics(
    terms=VPGTerms(*torch.arange(4.0)),
    grad_norm=torch.tensor(5.0),
    learning_rate=torch.tensor(6.0),
    lifespan_mean=torch.tensor(7.0),
    lifespan_std=torch.tensor(8.0),
    lifespan_max=torch.tensor(9.0),
    steps=torch.tensor(123),
    solved=torch.tensor(True),
    reward=torch.tensor(0.5),
    episodes=torch.tensor([4.0, 100.0, 80.0]),
    health=torch.zeros(1 + len(PARTS)),
)


def test_every_number_of_ppo_has_its_tag() -> None:
    assert Reading(ppo).row() == {
        "losses/policy_loss": 0,
        "losses/value_loss": 1,
        "losses/entropy": 2,
        "losses/approx_kl": 3,
        "losses/clipfrac": 4,
        "losses/grad_norm": 5,
        "charts/learning_rate": 6,
        "losses/explained_variance": 7,
        "charts/reward": 0.5,
        "charts/episodes": 4,
        "charts/episodic_return": 25,
        "charts/episodic_length": 20,
    }


def test_every_number_of_vpg_has_its_tag() -> None:
    row = Reading(vpg).row()
    expected = {
        "losses/objective": 0,
        "losses/entropy": 2,
        "losses/importance_weight": 3,
        "losses/grad_norm": 5,
        "charts/learning_rate": 6,
        "charts/lifespan_mean": 7,
        "charts/lifespan_std": 8,
        "charts/lifespan_max": 9,
        "charts/solved": 1,
        "charts/episodic_return": 25,
        "charts/episodic_length": 20,
    }
    assert {k: row[k] for k in expected} == expected
    assert all(type(v) is float for v in row.values())


@pytest.mark.parametrize("metrics", [ppo, vpg], ids=["ppo", "vpg"])
def test_no_number_is_lost(metrics: PPOMetrics | VPGMetrics) -> None:
    apart = {"terms", "steps", "episodes", "health"}  # taken apart, the row's step, three numbers, and no number
    names = set(metrics._fields) - apart | set(metrics.terms._fields)
    row = Reading(metrics).row()
    assert len(row) == len(names) + 3
    assert all(re.fullmatch(r"(charts|losses)/\w+", tag) for tag in row)


def test_a_phase_in_which_nothing_finished_has_no_return() -> None:
    row = Reading(ppo._replace(episodes=torch.zeros(3))).row()
    assert row["charts/episodes"] == 0
    assert "charts/episodic_return" not in row
    assert "charts/episodic_length" not in row


def test_what_is_not_a_number_stays_so() -> None:
    assert math.isnan(Reading(ppo._replace(grad_norm=torch.tensor(float("nan")))).row()["losses/grad_norm"])


def test_health_is_no_number_of_the_row_but_can_be_asked_for() -> None:
    bad = torch.zeros(1 + len(PARTS)).index_fill(0, torch.tensor([1 + PARTS.index("reward")]), float("inf"))
    assert Reading(ppo._replace(health=bad)).row() == Reading(ppo).row()
    assert Reading(ppo).unhealthy() == []
    assert Reading(vpg._replace(health=bad)).unhealthy() == ["reward"]


def test_the_mean_value_is_over_the_steps_that_were_learned_from() -> None:
    two_ranks = torch.zeros(2, 1 + len(PARTS))
    two_ranks[:, 0], two_ranks[:, 1 + PARTS.index("value")] = torch.tensor([10.0, 30.0]), torch.tensor([50.0, 30.0])
    assert Reading(ppo._replace(health=two_ranks)).row()["losses/value_mean"] == 2
    assert "losses/value_mean" not in Reading(ppo).row()


def test_numbers_are_read_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append("tolist") or tolist(self))
    for name in ("item", "__float__", "__bool__", "__int__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, n=name, f=original: reads.append(n) or f(self))
    Reading(ppo).row()
    assert reads == ["tolist"]
