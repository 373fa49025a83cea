"""Learning with memory: gradients against sequences unrolled by hand, states carried and cut, values of what was cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.algorithms import ppo, vpg
from tightrope.algorithms.common import noise_of_phase
from tightrope.engine import Runtime
from tightrope.envs import TensorEnv
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models.memory import MEMORIES
from tightrope.models.recurrent import RecurrentActorCritic
from tightrope.sequences import Sequences
from tightrope.types import Box, Discrete

N, T = 4, 12
RUNTIMES = {"recorded": Runtime(), "plain": Runtime(on_device=True)}


class Walk(TensorEnv):
    """Two numbers that drift with the action. It ends far out, and after 5 steps the clock cuts it."""

    observation, action = Box((2,)), Discrete(3)
    noise_size, time_limit = 2, 5

    def initial(self, noise: Tensor) -> Tensor:
        return noise - 0.5

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        push = action.float().view(len(state), -1)[:, :1] - 0.9
        return 1.2 * state + 0.4 * torch.cat([push, -push], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state.square().sum(1)

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0].abs() > 1.1


class Push(Walk):
    action = Box((2,), -2.0, 2.0)


class Masked(Walk):
    def action_mask(self, state: Tensor) -> Tensor:
        return torch.cat([state > 0, torch.ones_like(state[:, :1])], 1) > 0


ENVS = {"choices": Walk, "forces": Push, "masked": Masked}


def an_agent(env: type[TensorEnv] = Walk, algo: type[tr.Agent] = tr.PPO, **settings: Any) -> Any:
    usual: dict[str, Any] = dict(
        memory="gru",
        memory_size=8,
        hidden_sizes=(16,),
        num_envs=N,
        num_steps=T,
        total_timesteps=10_000,
        device="cpu",
        defaults="plain",
    )
    if algo is tr.PPO:
        usual |= dict(num_minibatches=2, update_epochs=2, learning_rate=3e-3)
    else:
        usual |= dict(baseline="critic")
    agent = algo(env, **usual | settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for p in agent.state.policy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return agent


def collected(agent: Any) -> tuple[Any, Any, Any]:
    state, config = agent.state, agent.config.algorithm
    noise = noise_of_phase(state, config)
    start = state.obs.clone()
    obs, _ = state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
    state.obs.copy_(obs)
    return state, config, start


def by_hand(policy: RecurrentActorCritic, start: Tensor, rollout: Any) -> tuple[list[Any], Tensor]:
    """Distributions and values (N, T) from the observations alone, one environment and one step after the other."""
    layout = policy.memory_rows
    distributions, values = [], []
    for n in range(N):
        state = layout.split(start[n : n + 1])[2]
        for t in range(T):
            if t and bool(rollout.done[t - 1, n]):
                state = torch.zeros_like(state)
            obs = layout.split(rollout.obs[t, n : n + 1])[0]
            distribution, value, state = policy.step(layout.join(obs, torch.zeros(1), state))
            distributions.append(distribution)
            values.append(value)
    return distributions, torch.cat(values)


def loss_by_hand(distributions: list[Any], values: Tensor, batch: Any, clip: float) -> Tensor:
    """Eq. 9 of PPO, transition by transition."""
    total = torch.zeros(())
    for i, distribution in enumerate(distributions):
        ratio = (distribution.log_prob(batch.action[i : i + 1]) - batch.log_prob[i]).exp()
        advantage = batch.advantage[i]
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        squared = 0.5 * (values[i] - batch.target[i]).square()
        total = total - (surrogate - 0.5 * squared + 0.02 * distribution.entropy()).squeeze()
    return total / len(distributions)


def check_gradient(state: Any, expected: Any) -> None:
    for (name, p), grad in zip(state.policy.named_parameters(), expected, strict=True):
        want = torch.zeros_like(p) if grad is None else grad
        torch.testing.assert_close(
            state.optimizer.grads[p], want, rtol=2e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("share", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("kind", MEMORIES)
def test_the_gradient_is_that_of_sequences_unrolled_by_hand(kind: str, env: str, share: bool, runtime: str) -> None:
    agent = an_agent(ENVS[env], memory=kind, share_trunk=share, norm_obs=env == "forces")
    state, _, start = collected(agent)
    policy, rollout = state.policy, state.rollout
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    batch = rollout.batch(torch.randn(T, N), torch.randn(T, N))
    assert isinstance(batch, Sequences)
    batch.log_prob = batch.log_prob + 0.3 * torch.randn(N, T)  # ratios on both sides of the clip interval
    flat = batch.flat()
    distributions, values = by_hand(policy, start, rollout)
    policy.zero_grad()
    want = loss_by_hand(distributions, values, flat, 0.2)
    expected = torch.autograd.grad(want, [*policy.parameters()], allow_unused=True)
    terms = RUNTIMES[runtime].backward(PPOLoss(0.2, 0.5, 0.02, False), policy, flat, state.optimizer)
    torch.testing.assert_close(terms.policy_loss + 0.5 * terms.value_loss - 0.02 * terms.entropy, want.detach())
    check_gradient(state, expected)
    assert state.optimizer.grads[policy.actor.memory.inputs.weight].abs().max() > 1e-4


@pytest.mark.parametrize("kind", MEMORIES)
def test_what_was_recorded_while_acting_is_what_learning_starts_from(kind: str) -> None:
    """The ratio of the first minibatch is 1, and the values are the same."""
    state, _, _ = collected(an_agent(memory=kind))
    batch = state.rollout.batch(torch.randn(T, N), torch.randn(T, N)).flat()
    distribution, value = state.policy(batch.obs)
    torch.testing.assert_close(distribution.log_prob(batch.action), batch.log_prob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value, batch.value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algo", [tr.PPO, tr.VPG])
def test_a_rollout_cut_in_two_is_the_whole(algo: type[tr.Agent]) -> None:
    """The state is carried from one phase to the next."""
    settings = {} if algo is tr.PPO else dict(full_reset=False)
    whole, halves = an_agent(algo=algo, **settings), an_agent(algo=algo, num_steps=T // 2, **settings)
    noise = noise_of_phase(whole.state, whole.config.algorithm)
    state = whole.state
    last, _ = state.runtime.collect(state.env, state.policy, state.rollout, state.obs, noise)
    for part in (slice(0, T // 2), slice(T // 2, T)):
        mine = halves.state
        piece = noise._replace(action=noise.action[part], reset=noise.reset[part])
        obs, _ = mine.runtime.collect(mine.env, mine.policy, mine.rollout, mine.obs, piece)
        mine.obs.copy_(obs)
        for name in ("obs", "action", "log_prob", "value", "reward", "final_obs"):
            torch.testing.assert_close(getattr(mine.rollout, name), getattr(state.rollout, name)[part], msg=name)
    torch.testing.assert_close(mine.obs, last)
    assert state.rollout.obs[T // 2, :, 3:].abs().max() > 0.01  # there was something to carry


@pytest.mark.parametrize("share", [True, False])
def test_episodes_that_the_clock_cuts_are_valued_with_the_state_that_followed_them(share: bool) -> None:
    state, config, start = collected(an_agent(share_trunk=share))
    rollout, policy = state.rollout, state.policy
    layout = policy.memory_rows
    found = state.runtime.final_values(policy, rollout)
    checked = 0
    for n in range(N):
        memory = layout.split(start[n : n + 1])[2]
        for t in range(T):
            if t and bool(rollout.done[t - 1, n]):
                memory = torch.zeros_like(memory)
            obs = layout.split(rollout.obs[t, n : n + 1])[0]
            _, _, memory = policy.step(layout.join(obs, torch.zeros(1), memory))
            if rollout.truncated[t, n]:
                final = layout.split(rollout.final_obs[t, n : n + 1])[0]
                value = policy.step(layout.join(final, torch.zeros(1), memory))[1]
                torch.testing.assert_close(found[t, n], value[0], rtol=1e-5, atol=1e-6)
                checked += 1
    assert checked > 2
    batch = ppo.estimate(state, config)
    assert batch.advantage.shape == (N, T)


def test_after_an_end_the_next_row_is_marked_and_has_no_state() -> None:
    state, _, _ = collected(an_agent())
    obs, done = state.rollout.obs, state.rollout.done
    first, memory = obs[1:, :, 2], obs[1:, :, 3:]
    assert torch.equal(first == 1, done[:-1])
    assert bool((memory[done[:-1]] == 0).all())
    assert bool((memory[~done[:-1]] != 0).any(-1).all())
    ended = state.rollout.final_obs[done]
    assert bool((ended[:, 2] == 0).all())
    assert bool((ended[:, 3:] != 0).any(-1).all())


@pytest.mark.parametrize("kind", MEMORIES)
def test_vpg_learns_from_sequences_too(kind: str) -> None:
    agent = an_agent(algo=tr.VPG, memory=kind)
    state, config = agent.state, agent.config.algorithm
    obs = state.env.reset(noise=noise_of_phase(state, config).start)
    state.obs.copy_(obs)
    state, config, start = collected(agent)
    used = torch.ones(T, 1, dtype=torch.bool)
    batch = vpg.estimate(state, config, state.rollout, used)
    assert not batch.alive.all()  # padding after the first episode
    flat = batch.flat()
    distributions, values = by_hand(state.policy, start, state.rollout)
    alive, count = flat.alive, flat.alive.sum()
    log_prob = torch.cat([d.log_prob(flat.action[i : i + 1]) for i, d in enumerate(distributions)])
    want = -(log_prob * flat.advantage * alive).sum() / count
    want = want + 0.5 * (0.5 * (values - flat.target).square() * alive).sum() / count
    expected = torch.autograd.grad(want, [*state.policy.parameters()], allow_unused=True)
    for runtime in RUNTIMES.values():
        runtime.backward(VPGLoss(False, None, 0.5, 0.0), state.policy, flat, state.optimizer)
        check_gradient(state, expected)


def test_the_paths_are_recorded_and_give_what_plain_torch_gives() -> None:
    """Acting and the gradient are recordings on the CPU; plain execution gives the same run."""
    agents = [an_agent(memory_layers=2), an_agent(memory_layers=2)]
    agents[1].state.runtime = Runtime(on_device=True)
    for agent in agents:
        for _, _ in zip(range(3), ppo.ppo(agent.state, agent.config.algorithm), strict=False):
            pass
    first, second = (agent.state for agent in agents)
    assert first.policy.recordings.refusal is None
    assert any(first.policy.recordings.values())
    assert all(kept is not None for kept in first.runtime.recorded.kept.values())
    assert len(first.runtime.recorded.kept) == 1
    torch.testing.assert_close(first.optimizer.flat, second.optimizer.flat, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(first.obs, second.obs, rtol=1e-3, atol=1e-3)


def test_minibatches_are_whole_sequences() -> None:
    state, _, _ = collected(an_agent())
    batch = state.rollout.batch(state.rollout.reward, state.rollout.reward)
    order = batch.order(torch.rand(3, N * T))
    assert order.shape == (3, N)
    for epoch in range(3):
        seen = []
        for minibatch in batch.minibatches(2, order[epoch : epoch + 1]):
            assert minibatch.obs.shape == (
                2,
                T,
                2 + 1 + 2,
            )  # numbers, flag, and a part of the first state of 16 numbers
            assert minibatch.log_prob.shape == (2 * T,)
            seen += [int((state.rollout.obs[0, :, :2] == row).all(1).nonzero()) for row in minibatch.obs[:, 0, :2]]
            torch.testing.assert_close(minibatch.advantage[:T], state.rollout.reward[:, seen[-2]])
        assert sorted(seen) == [*range(N)]
