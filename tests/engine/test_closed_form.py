"""The gradient written out for devices against autograd, over every case it claims, and nothing beyond them."""

import itertools
import sys

import pytest
import torch
from torch import nn

import tightrope as tr
from tightrope.engine import Optimizer, Runtime
from tightrope.engine.closed_form import ClosedForm, has_closed_form
from tightrope.engine.optimize import autograd
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.types import Batch, Box, Discrete, MultiDiscrete, Spec

CHOICE, TORQUE = Discrete(4), Box((3,), -1.0, 1.0)
CASES = list(
    itertools.product((CHOICE, TORQUE), ((16, 8), (16,)), ("tanh", "relu"), (False, True), (False, True), (False, True))
)


@pytest.fixture
def runtime() -> Runtime:
    """Where numbers cannot be looked at."""
    return Runtime(on_device=True)


def a_policy(action: Spec, sizes: tuple[int, ...], activation: str, share: bool, norm: bool) -> ActorCritic:
    torch.manual_seed(0)
    config = NetworkConfig(hidden_sizes=sizes, activation=activation, share_trunk=share, norm_obs=norm)  # type: ignore[arg-type]
    policy = actor_critic(Box((2, 3)), action, config)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))  # away from zero biases and a flat head
    if policy.normalizer is not None:
        policy.normalizer.merge(3 * torch.randn(100, 2, 3) + 1)
    return policy


def a_batch(policy: ActorCritic, action: Spec, rows: int = 64) -> Batch:
    """Ratios on both sides of the clip interval, advantages of both signs."""
    obs = torch.randn(rows, 2, 3)
    taken = torch.randint(4, (rows,)) if isinstance(action, Discrete) else torch.randn(rows, 3)
    with torch.no_grad():
        distribution, value = policy(obs)
        log_prob = distribution.log_prob(taken) + 0.4 * torch.randn(rows)
    return Batch(obs, taken, log_prob, value + 0.4 * torch.randn(rows), torch.randn(rows), torch.randn(rows))


@pytest.mark.parametrize(("action", "sizes", "activation", "share", "norm", "clip_vloss"), CASES)
def test_the_gradient_and_the_terms_are_those_of_autograd(action, sizes, activation, share, norm, clip_vloss):
    policy = a_policy(action, sizes, activation, share, norm)
    optimizer, batch = Optimizer(policy), a_batch(policy, action)
    written_out = ClosedForm(policy, optimizer.grads)
    for loss in (PPOLoss(0.2, 0.5, 0.01, clip_vloss), PPOLoss(torch.tensor(0.1), 0.7, 0.0, clip_vloss)):
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
    policy = a_policy(CHOICE, (16, 8), "tanh", False, False)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, CHOICE, 4096), PPOLoss(0.5, 0.5, 0.0, True)
    batch.value = policy(batch.obs)[1].detach() + 0.3
    autograd(loss, policy, batch, optimizer)
    expected = optimizer.grad.clone()
    ClosedForm(policy, optimizer.grads)(loss, batch)
    torch.testing.assert_close(optimizer.grad, expected, rtol=1e-4, atol=2e-6)


def test_what_it_returns_is_not_overwritten_by_the_next_call(runtime):
    policy = a_policy(CHOICE, (16, 8), "tanh", False, False)
    optimizer, loss = Optimizer(policy), PPOLoss(0.2, 0.5, 0.01, False)
    terms = runtime.gradient(loss, policy, a_batch(policy, CHOICE), optimizer)
    kept = torch.stack([*terms])
    runtime.gradient(loss, policy, a_batch(policy, CHOICE), optimizer)
    assert torch.equal(torch.stack([*terms]), kept)


def test_another_loss_or_policy_is_looked_at_anew(runtime):
    policy = a_policy(CHOICE, (16, 8), "tanh", False, False)
    optimizer, batch = Optimizer(policy), a_batch(policy, CHOICE)
    runtime.gradient(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.analytic.form is not None
    runtime.gradient(OtherLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert runtime.analytic.form is None


def test_it_follows_the_parameters_as_they_move(runtime):
    policy = a_policy(TORQUE, (16, 8), "tanh", False, False)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, TORQUE), PPOLoss(0.2, 0.5, 0.01, False)
    runtime.gradient(loss, policy, batch, optimizer)
    optimizer.flat.add_(0.1 * torch.randn_like(optimizer.flat))
    runtime.gradient(loss, policy, batch, optimizer)
    moved = optimizer.grad.clone()
    autograd(loss, policy, batch, optimizer)
    torch.testing.assert_close(moved, optimizer.grad, rtol=1e-4, atol=2e-6)


def test_it_follows_the_moments_of_observations_as_they_move(runtime):
    policy = a_policy(TORQUE, (16, 8), "tanh", False, True)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, TORQUE), PPOLoss(0.2, 0.5, 0.01, False)
    assert policy.normalizer is not None
    for change in (
        lambda n: n.merge(torch.randn(300, 2, 3) - 2),
        lambda n: n.load_state_dict({**n.state_dict(), "variance": torch.rand(2, 3) + 0.1}),
    ):
        runtime.gradient(loss, policy, batch, optimizer)
        before = optimizer.grad.clone()
        change(policy.normalizer)
        runtime.gradient(loss, policy, batch, optimizer)
        moved = optimizer.grad.clone()
        autograd(loss, policy, batch, optimizer)
        torch.testing.assert_close(moved, optimizer.grad, rtol=1e-4, atol=2e-6)
        assert not torch.allclose(moved, before, rtol=1e-2)


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


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_three_phases_agree_with_autograd(env, monkeypatch):
    settings = dict(num_envs=8, num_steps=16, total_timesteps=3 * 128, norm_obs=True, device="cpu", learning_rate=1e-3)

    def trained() -> torch.Tensor:
        agent = tr.PPO(env, **settings)
        agent.state.runtime = Runtime(on_device=True)
        return agent.learn(quiet=True).state.optimizer.flat

    ours = trained()
    monkeypatch.setattr(sys.modules["tightrope.engine.analytic"], "has_closed_form", lambda loss, policy: False)
    theirs = trained()
    assert not torch.equal(ours, tr.PPO(env, **settings).state.optimizer.flat)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("broken", ["clipped_surrogate", "value_loss", "entropy_bonus", "approx_kl"])
def test_an_equation_that_someone_changed_is_the_one_that_counts(broken, monkeypatch, runtime):
    """Who breaks a loss to see what happens must see it happen."""
    losses = sys.modules["tightrope.functional.losses"]
    original = getattr(losses, broken)
    monkeypatch.setattr(losses, broken, lambda *args: -original(*args))
    policy = a_policy(CHOICE, (16, 8), "tanh", False, False)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, CHOICE), PPOLoss(0.2, 0.5, 0.3, False)
    terms = runtime.gradient(loss, policy, batch, optimizer)
    given = optimizer.grad.clone()
    assert torch.equal(torch.stack([*terms]), torch.stack([*autograd(loss, policy, batch, optimizer)]))
    assert torch.equal(given, optimizer.grad)


def test_a_changed_clip_is_noticed_although_the_first_ratio_is_1(monkeypatch, runtime):
    losses = sys.modules["tightrope.functional.losses"]
    original = losses.clipped_surrogate
    monkeypatch.setattr(losses, "clipped_surrogate", lambda a, b, c, clip: original(a, b, c, 2 * clip))
    policy = a_policy(TORQUE, (16, 8), "tanh", False, False)
    optimizer, batch, loss = Optimizer(policy), a_batch(policy, TORQUE), PPOLoss(0.2, 0.5, 0.0, False)
    batch.log_prob = policy.distribution(batch.obs).log_prob(batch.action).detach()
    runtime.gradient(loss, policy, batch, optimizer)
    assert runtime.analytic.form is None
