"""The gradient written out for devices against autograd, over every case it claims, and nothing beyond them."""

import itertools
import sys
from typing import NamedTuple

import pytest
import torch
from gradient_cases import CHOICE, TORQUE, a_batch, a_policy
from torch import nn

from tightrope.engine import Optimizer, Runtime
from tightrope.engine.closed_form import ClosedForm, has_closed_form
from tightrope.engine.optimize import autograd
from tightrope.functional import PPOLoss, PPOTerms, VPGLoss, clipped_surrogate
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.types import Batch, Box, Discrete, MultiDiscrete

CASES = list(
    itertools.product((CHOICE, TORQUE), ((16, 8), (16,)), ("tanh", "relu"), (False, True), (False, True), (False, True))
)


@pytest.fixture
def runtime() -> Runtime:
    """A runtime for a device, on which the host reads no tensor."""
    return Runtime(on_device=True)


@pytest.fixture
def case() -> tuple[ActorCritic, Batch, Optimizer]:
    policy = a_policy(CHOICE)
    return policy, a_batch(policy), Optimizer(policy)


@pytest.mark.parametrize(("action", "sizes", "activation", "share", "norm", "clip_vloss"), CASES)
def test_the_gradient_and_the_terms_are_those_of_autograd(action, sizes, activation, share, norm, clip_vloss):
    config = dict(hidden_sizes=sizes, activation=activation, share_trunk=share, norm_obs=norm)
    policy = a_policy(action, **config)
    optimizer, batch = Optimizer(policy), a_batch(policy)
    written_out = ClosedForm(policy, optimizer.grads)
    varying = PPOLoss(torch.tensor(0.1), 0.7, torch.tensor(0.03), clip_vloss)
    for loss in (PPOLoss(0.2, 0.5, 0.01, clip_vloss), varying, PPOLoss(torch.tensor(0.1), 0.7, 0.0, clip_vloss)):
        assert has_closed_form(loss, policy)
        expected_terms = autograd(loss, policy, batch, optimizer)
        expected = optimizer.grad.clone()
        optimizer.grad.fill_(float("nan"))  # every entry must be written
        terms = written_out(loss, batch)
        torch.testing.assert_close(optimizer.grad, expected, rtol=1e-4, atol=2e-6)
        torch.testing.assert_close(tuple(terms), tuple(expected_terms), rtol=1e-5, atol=1e-6)
        assert not any(term.requires_grad for term in terms)
    assert 0.1 < float(terms.clip_fraction) < 0.9


def test_rounding_within_the_clip_interval_costs_no_row_its_gradient():
    """old + (value - old) is not always value, and then the larger of the two errors may be either."""
    policy = a_policy(CHOICE)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, rows=4096), PPOLoss(0.5, 0.5, 0.0, True)
    batch.value = policy(batch.obs)[1].detach() + 0.3
    autograd(loss, policy, batch, optimizer)
    expected = optimizer.grad.clone()
    ClosedForm(policy, optimizer.grads)(loss, batch)
    torch.testing.assert_close(optimizer.grad, expected, rtol=1e-4, atol=2e-6)


def test_another_loss_or_policy_is_looked_at_anew(runtime, case, capsys):
    policy, batch, optimizer = case
    runtime.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.analytic.form is not None
    runtime.backward(OtherLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.analytic.form is None
    assert capsys.readouterr().err == "", "another loss never had a hand-written gradient"


class OtherLoss(PPOLoss):
    pass


class OtherPolicy(ActorCritic):
    pass


def test_anything_unknown_means_autograd():
    loss, plain = PPOLoss(0.2, 0.5, 0.01, False), NetworkConfig()
    vector = Box((4,))
    assert has_closed_form(loss, actor_critic(vector, CHOICE, plain))
    others = [
        actor_critic(vector, CHOICE, NetworkConfig(activation="silu")),
        actor_critic(vector, TORQUE, NetworkConfig(log_std="state")),
        actor_critic(vector, MultiDiscrete((2, 3)), plain),
        actor_critic(Discrete(5), CHOICE, plain),
        actor_critic(Box((4, 84, 84), 0, 255, torch.uint8), CHOICE, plain),
        actor_critic(vector, CHOICE, plain, critic=False),
        actor_critic(vector, CHOICE, plain, network=nn.Linear(4, 8)),
    ]
    assert not any(has_closed_form(loss, policy) for policy in others)
    policy = actor_critic(vector, CHOICE, plain)
    assert not has_closed_form(VPGLoss(False, None, 0.5, 0.0), policy)
    assert not has_closed_form(OtherLoss(0.2, 0.5, 0.01, False), policy)
    policy.__class__ = OtherPolicy
    assert not has_closed_form(loss, policy)


def test_a_changed_clip_is_noticed_although_the_first_ratio_is_1(runtime, capsys):
    policy = a_policy(TORQUE)
    twice_as_wide = PPOLoss(0.2, 0.5, 0.0, False, lambda a, b, c, clip: clipped_surrogate(a, b, c, 2 * clip))
    optimizer, batch, loss = Optimizer(policy), a_batch(policy), twice_as_wide
    batch.log_prob = policy.distribution(batch.obs).log_prob(batch.action).detach()
    for _ in range(2):
        runtime.backward(loss, policy, batch, optimizer)
        runtime.analytic.key = None  # look at it anew
    assert runtime.analytic.form is None
    (line,) = capsys.readouterr().err.splitlines()  # printed once
    assert line.startswith("accelerate: PPOLoss uses autograd instead of its hand-written gradient, which is slower: ")
    assert "disagree" in line


def test_a_term_whose_weight_was_0_is_checked_when_it_has_one(monkeypatch, runtime, case):
    original = PPOLoss.__call__

    def with_another_term(self, policy, batch):
        total, terms = original(self, policy, batch)
        return total + self.ent_coef * policy.value(batch.obs).mean(), terms

    monkeypatch.setattr(PPOLoss, "__call__", with_another_term)
    policy, batch, optimizer = case
    runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)
    assert runtime.analytic.form is not None
    runtime.backward(PPOLoss(0.2, 0.5, 0.1, False), policy, batch, optimizer)
    assert runtime.analytic.form is None
    runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)
    assert runtime.analytic.form is not None
    runtime.backward(PPOLoss(0.2, 0.5, torch.zeros(()), False), policy, batch, optimizer)
    assert runtime.analytic.form is None, "a schedule that starts at 0 is compared with a weight"


def test_a_loss_with_one_more_term_falls_back_to_autograd(monkeypatch, runtime, case, capsys):
    closed_form, layout = (sys.modules[f"tightrope.engine.{name}"] for name in ("closed_form", "kernels.layout"))
    more = NamedTuple("PPOTerms", [*((name, torch.Tensor) for name in PPOTerms._fields), ("another", torch.Tensor)])
    original = PPOLoss.__call__

    def with_another_term(self, policy, batch):
        total, terms = original(self, policy, batch)
        return total, more(*terms, terms.entropy)

    monkeypatch.setattr(PPOLoss, "__call__", with_another_term)
    policy, batch, optimizer = case
    assert len(runtime.backward(PPOLoss(0.2, 0.5, 0.0, False), policy, batch, optimizer)) == len(more._fields)
    assert runtime.analytic.form is None
    assert "the loss returns the terms policy_loss, value_loss" in capsys.readouterr().err
    monkeypatch.setattr(closed_form, "PPOTerms", more)  # which has more fields than the closed form computes
    runtime.backward(PPOLoss(0.2, 0.5, 0.1, False), policy, batch, optimizer)
    assert runtime.analytic.form is None
    assert capsys.readouterr().err == "", "the reason is printed once"
    monkeypatch.setattr(layout, "has_device", lambda device: True)
    assert layout.has_fused(PPOLoss(0.2, 0.5, 0.1, False), fused := a_policy(CHOICE, hidden_sizes=(16, 16)))
    monkeypatch.setattr(layout, "PPOTerms", more)
    assert not layout.has_fused(PPOLoss(0.2, 0.5, 0.1, False), fused), "the kernels would leave a term unwritten"
