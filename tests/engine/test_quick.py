"""The policy on arrays against the policy, wherever it offers itself; and that it does so nowhere else."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch

import tightrope as tr
from tightrope.algorithms.ppo import ppo
from tightrope.engine.quick import QuickPolicy, quick
from tightrope.models import ActorCritic, Categorical, NetworkConfig, actor_critic
from tightrope.types import Box, Composite, Discrete, MultiDiscrete, Spec

CHOICE, TORQUE, SHOWN = Discrete(4), Box((3,), -1.0, 1.0), Box((2, 3))
CASES = list(itertools.product((CHOICE, TORQUE), ("tanh", "relu"), (False, True), (False, True), (1, 5, 3000)))


def a_policy(action: Spec, critic: bool = True, observation: Spec = SHOWN, **network: Any) -> ActorCritic:
    torch.manual_seed(0)
    policy = actor_critic(observation, action, NetworkConfig(**network), critic=critic)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))
    if policy.normalizer is not None:
        policy.normalizer.merge(3 * torch.randn(100, *observation.shape) + 1)
    return policy


def some_noise(policy: ActorCritic, rows: int) -> torch.Tensor:
    return policy.head.noise((rows,), torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("action", "activation", "share", "norm", "rows"), CASES)
@torch.no_grad()
def test_it_says_what_the_policy_says(action, activation, share, norm, rows):
    policy = a_policy(action, activation=activation, share_trunk=share, norm_obs=norm)
    obs, noise = 5 * torch.randn(rows, 2, 3), some_noise(policy, rows)  # some beyond the normalizer's clip
    player = quick(policy, obs, noise)
    assert player is not None
    distribution, value = policy(obs)
    (action,) = player.act(obs, noise)
    torch.testing.assert_close(action, distribution.sample(noise), rtol=1e-4, atol=1e-5)
    log_prob, worth = player.judge(obs, action)
    torch.testing.assert_close(log_prob, distribution.log_prob(action), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(worth, value, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_without_a_critic_everything_is_worth_nothing():
    policy = a_policy(CHOICE, critic=False)
    player = quick(policy, torch.randn(4, 2, 3), some_noise(policy, 4))
    assert player is not None
    assert player.judge(torch.randn(4, 2, 3), torch.zeros(4, dtype=torch.int64))[1].tolist() == [0.0] * 4


@torch.no_grad()
def test_only_some_entries_are_normalised_where_only_some_are_real():
    observation = Composite((("speed", Box((3,))), ("gear", Box((2,)))))
    policy = a_policy(TORQUE, observation=observation, norm_obs=True)
    assert quick(policy, torch.randn(4, 5), some_noise(policy, 4)) is None  # its parts have encoders of their own
    policy = a_policy(TORQUE, norm_obs=True)
    assert policy.normalizer is not None
    policy.normalizer.real = torch.tensor([[True, False, True], [True, True, False]])
    obs = torch.randn(7, 2, 3)
    torch.testing.assert_close(QuickPolicy(policy).judge(obs, torch.randn(7, 3))[1], policy(obs)[1])


class OtherPolicy(ActorCritic):
    pass


@torch.no_grad()
def test_anything_unknown_is_left_to_the_policy():
    others = [
        a_policy(CHOICE, activation="silu"),
        a_policy(TORQUE, log_std="state"),
        a_policy(MultiDiscrete((2, 3))),
        a_policy(CHOICE, observation=Discrete(5)),
        a_policy(CHOICE, observation=Box((4, 84, 84), 0, 255, torch.uint8)),
    ]
    shown = [torch.randn(2, 2, 3)] * 3 + [torch.tensor([1, 2]), torch.zeros(2, 4, 84, 84)]
    for policy, obs in zip(others, shown, strict=True):
        assert quick(policy, obs, some_noise(policy, 2)) is None
    policy = a_policy(CHOICE)
    policy.__class__ = OtherPolicy
    assert quick(policy, torch.randn(2, 2, 3), some_noise(policy, 2)) is None


@torch.no_grad()
def test_a_distribution_that_someone_changed_is_the_one_that_counts(monkeypatch):
    policy = a_policy(CHOICE)
    obs, noise = torch.randn(64, 2, 3), some_noise(policy, 64)
    assert quick(policy, obs, noise) is not None
    monkeypatch.setattr(Categorical, "sample", lambda self, noise: self.mode())
    assert quick(policy, obs, noise) is None


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("share", [False, True])
def test_two_phases_are_those_of_the_page_as_on_a_device(env, share, monkeypatch):
    settings: dict[str, Any] = dict(
        num_envs=6, num_steps=40, num_minibatches=4, total_timesteps=2 * 240, norm_obs=True, share_trunk=share,
        hidden_sizes=(16, 16), learning_rate=1e-3, device="cpu",
    )  # fmt: skip
    ours = tr.PPO(env, **settings).learn(quiet=True).state
    for name in ("collect", "optimize", "players"):
        monkeypatch.setattr(sys.modules[f"tightrope.engine.{name}"], "reads_are_free", lambda device: False)
    theirs = tr.PPO(env, **settings).learn(quiet=True).state
    for name in ("obs", "action", "log_prob", "value", "reward", "terminated", "truncated", "final_obs"):
        mine, other = getattr(ours.rollout, name), getattr(theirs.rollout, name)
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(ours.optimizer.flat, theirs.optimizer.flat, rtol=1e-3, atol=1e-4)


def test_the_first_ratio_of_a_phase_is_one():
    agent = tr.PPO("Pendulum-v1", num_envs=8, num_steps=32, num_minibatches=1, update_epochs=1, norm_obs=True)
    for metrics in itertools.islice(ppo(agent.state, agent.config.algorithm), 3):
        assert abs(float(metrics.terms.approx_kl)) < 1e-9
        assert float(metrics.terms.clip_fraction) == 0
