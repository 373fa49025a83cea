"""Memory over engines that reset a row in a step of its own: such steps are in no state, no loss and no statistic."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from torch import Tensor

import tightrope as tr
from tightrope.algorithms import ppo
from tightrope.algorithms.common import noise_of_phase
from tightrope.functional import PPOLoss
from tightrope.sequences import SkippingSequences, sequences_of_rows

N, T = 4, 14


class NextStep(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counts the steps of each row. Episodes of row i end after i % 4 + 3 steps, by the clock in odd rows."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Box(-np.inf, np.inf, (2,)), Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.row = num_envs, np.arange(num_envs) % 4
        self.observation_space = Box(-np.inf, np.inf, (num_envs, 2))
        self.action_space = MultiDiscrete([2] * num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count, self.over = np.zeros(self.num_envs), np.zeros(self.num_envs, bool)
        return self.seen(), {}

    def seen(self) -> Any:
        return np.stack([np.sin(self.count + self.row), self.count / 5], 1).astype(np.float32)

    def step(self, actions: Any) -> Any:
        self.count = np.where(self.over, 0, self.count + 1)
        done = ~self.over & (self.count >= self.row + 3)
        odd, reward = self.row % 2 == 1, np.where(self.over, 99.0, actions)  # what a reset pays is no reward
        self.over = done
        return self.seen(), reward, done & ~odd, done & odd, {}


def an_agent(cls: type[tr.Agent] = tr.PPO, **settings: Any) -> Any:
    usual: dict[str, Any] = dict(
        memory="gru", memory_size=6, hidden_sizes=(8,), num_envs=N, num_steps=T, total_timesteps=N * T * 6,
        device="cpu", threads=1, defaults="plain", eval_every=0,
    )  # fmt: skip
    usual |= dict(num_minibatches=2, learning_rate=0.01) if cls is tr.PPO else {}
    return cls(NextStep, **(usual | settings))


def collected(agent: Any) -> Any:
    """The rollout of the second phase, which starts in the middle of episodes."""
    state, config = agent.state, agent.config.algorithm
    for _ in range(2):
        state.collect(state.obs, noise_of_phase(state, config))
        state.phase += 1
    return state.rollout


class Joined:
    """The distributions of several sequences, as one."""

    def __init__(self, parts: list[Any], lengths: list[int]) -> None:
        self.parts, self.lengths = parts, lengths

    def log_prob(self, action: Tensor) -> Tensor:
        pairs = zip(self.parts, action.split(self.lengths), strict=True)
        return torch.cat([part.log_prob(some) for part, some in pairs])

    def entropy(self, action: Tensor) -> Tensor:
        pairs = zip(self.parts, action.split(self.lengths), strict=True)
        return torch.cat([part.entropy(some) for part, some in pairs])


@pytest.mark.parametrize("memory", ["gru", "lstm", "mingru"])
@pytest.mark.parametrize("share_trunk", [False, True])
def test_the_gradient_is_that_of_sequences_without_the_steps_that_only_reset(memory: str, share_trunk: bool) -> None:
    agent = an_agent(memory=memory, share_trunk=share_trunk)
    rollout, state = collected(agent), agent.state
    policy, valid = state.policy, rollout.valid
    assert 0 < (~valid).sum() < valid.sum()
    batch = ppo.estimate(state, agent.config.algorithm)
    assert isinstance(batch, SkippingSequences)
    order = torch.tensor([[2, 0, 3, 1]])
    loss = PPOLoss(clip_coef=0.2, vf_coef=0.5, ent_coef=0.01, clip_vloss=True)
    with torch.no_grad():  # away from the policy that acted, so that ratios differ from 1
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    for minibatch, envs in zip(batch.minibatches(2, order), order.view(2, 2), strict=True):
        assert len(minibatch) == valid[:, envs].sum()
        terms = state.runtime.backward(loss, policy, minibatch, state.optimizer)
        given = [state.optimizer.grads[p].clone() for p in policy.parameters()]
        rows = [rollout.obs[valid[:, i], i].unsqueeze(0) for i in envs]

        def unrolled(obs: Tensor, rows: list[Tensor] = rows) -> Any:
            parts = [policy(sequences_of_rows(x, policy.memory_rows.state_size)) for x in rows]
            return Joined([d for d, _ in parts], [len(v) for _, v in parts]), torch.cat([v for _, v in parts])

        total, expected = loss(unrolled, minibatch)
        wanted = torch.autograd.grad(total, [*policy.parameters()])
        for mine, theirs in zip(given, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(torch.stack([*terms]), torch.stack([*expected]), rtol=1e-4, atol=1e-6)
        assert minibatch.target.abs().max() < 99


def test_an_episode_starts_after_its_reset_with_no_state() -> None:
    agent = an_agent()
    rollout, policy = collected(agent), agent.state.policy
    rows = policy.memory_rows
    _, first, memory = rows.split(rollout.obs)
    reset = ~rollout.valid
    begun = torch.zeros_like(reset)
    begun[1:] = reset[:-1]
    assert (first[reset] == 1).all()  # a row by itself, whose result nobody reads
    assert (first[begun] == 1).all()
    assert (memory[reset | begun] == 0).all()
    going_on = rollout.valid & ~begun
    going_on[0] = False
    assert (first[going_on] == 0).all()
    with torch.no_grad():
        following = torch.stack([policy.step(row)[2] for row in rollout.obs])
    torch.testing.assert_close(memory[1:][going_on[1:]], following[:-1][going_on[1:]])
    assert (memory[going_on].abs().sum(-1) > 0).float().mean() > 0.5


@pytest.mark.parametrize("cls", [tr.PPO, tr.VPG])
def test_both_algorithms_learn_what_pays(cls: type[tr.Agent], capsys: pytest.CaptureFixture[str]) -> None:
    settings = dict(total_timesteps=N * T * (40 if cls is tr.PPO else 80))
    agent = an_agent(cls, **settings, **({} if cls is tr.PPO else dict(learning_rate=0.02))).learn()
    assert agent.evaluate(20).mean > 3.9  # episodes of 3 to 6 steps that pay at most 1 a step
    assert "some steps of its sequences only reset an environment" in "".join(capsys.readouterr()) or cls is tr.VPG
