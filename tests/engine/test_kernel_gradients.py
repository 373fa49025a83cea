"""When kernels compute the gradient on a device: they are compared with autograd first, and again when the loss has changed."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from gradient_cases import CHOICE, a_batch, a_policy

from tightrope.engine import Optimizer, Runtime, gradients
from tightrope.engine.optimize import autograd
from tightrope.functional import PPOLoss, PPOTerms
from tightrope.models import ActorCritic
from tightrope.types import Batch

WRITTEN_DOWN = PPOLoss.__call__  # the loss that the stand-in for the kernels computes, whatever becomes of PPOLoss


class StandIn:
    """Computes the gradient as the kernels would: always of the loss as it is written today."""

    squares = None

    def __init__(self, policy: ActorCritic, optimizer: Optimizer, precision: str) -> None:
        self.policy, self.optimizer, self.grad = policy, optimizer, optimizer.grad

    def __call__(self, loss: PPOLoss, batch: Batch) -> PPOTerms:
        return autograd(lambda policy, batch: WRITTEN_DOWN(loss, policy, batch), self.policy, batch, self.optimizer)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A runtime for a device, on which the host reads no tensor, with kernels for every PPOLoss."""
    monkeypatch.setattr(gradients, "gradient_class", lambda loss, policy: StandIn if type(loss) is PPOLoss else None)
    return Runtime(on_device=True)


@pytest.fixture
def case() -> tuple[ActorCritic, Batch, Optimizer]:
    policy = a_policy(CHOICE)
    return policy, a_batch(policy), Optimizer(policy)


class OtherLoss(PPOLoss):
    pass


def changed(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    monkeypatch.setattr(PPOLoss, "__call__", call)


def test_another_loss_is_looked_at_anew(runtime, case, capsys):
    policy, batch, optimizer = case
    runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is not None
    runtime.backward(OtherLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is None
    assert capsys.readouterr().err == "", "another loss never had kernels"


def test_the_comparison_leaves_no_trace_in_policy_and_batch(runtime, case):
    policy, batch, optimizer = case
    before = optimizer.flat.clone(), batch.obs.clone()
    runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is not None
    assert torch.equal(optimizer.flat, before[0])
    assert torch.equal(batch.obs, before[1])


def test_a_changed_clip_is_noticed_although_the_first_ratio_is_1(monkeypatch, runtime, case, capsys):
    changed(monkeypatch, lambda self, *given: WRITTEN_DOWN(replace(self, clip_coef=2 * self.clip_coef), *given))
    policy, batch, optimizer = case
    batch.log_prob = policy.distribution(batch.obs).log_prob(batch.action).detach()
    for _ in range(2):
        runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)
        runtime.by_kernels.key = None  # look at it anew
    assert runtime.by_kernels.form is None
    (line,) = capsys.readouterr().err.splitlines()  # printed once
    assert line.startswith("accelerate: PPOLoss uses autograd instead of kernels, which is slower: ")
    assert "disagree" in line


def test_a_term_whose_weight_was_0_is_checked_when_it_has_one(monkeypatch, runtime, case):
    def with_another_term(self, policy, batch):
        total, terms = WRITTEN_DOWN(self, policy, batch)
        return total + self.ent_coef * policy.value(batch.obs).mean(), terms

    changed(monkeypatch, with_another_term)
    policy, batch, optimizer = case
    runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is not None
    runtime.backward(PPOLoss(0.2, 0.5, 0.1, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is None
    runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is not None
    runtime.backward(PPOLoss(0.2, 0.5, torch.zeros(()), False), policy, batch, optimizer)
    assert runtime.by_kernels.form is None, "a schedule that starts at 0 is compared with a weight"


def test_a_loss_with_one_more_term_falls_back_to_autograd(monkeypatch, runtime, case, capsys):
    more = NamedTuple("PPOTerms", [*((name, torch.Tensor) for name in PPOTerms._fields), ("another", torch.Tensor)])

    def with_another_term(self, policy, batch):
        total, terms = WRITTEN_DOWN(self, policy, batch)
        return total, more(*terms, terms.entropy)

    changed(monkeypatch, with_another_term)
    policy, batch, optimizer = case
    assert len(runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)) == len(more._fields)
    assert runtime.by_kernels.form is None
    assert "the loss returns the terms policy_loss, value_loss" in capsys.readouterr().err
    runtime.backward(PPOLoss(0.2, 0.5, 0.1, False), policy, batch, optimizer)
    assert runtime.by_kernels.form is None
    assert capsys.readouterr().err == "", "the reason is printed once"


def test_kernels_that_fail_give_way_to_autograd(monkeypatch, runtime, case, capsys):
    def fail(self, loss, batch):
        raise RuntimeError("does not compile")

    monkeypatch.setattr(StandIn, "__call__", fail)
    policy, batch, optimizer = case
    before = optimizer.flat.clone()
    terms = runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert all(term.isfinite() for term in terms)
    assert runtime.by_kernels.form is None
    assert torch.equal(optimizer.flat, before)
    assert "which is slower: they fail with RuntimeError" in capsys.readouterr().err
