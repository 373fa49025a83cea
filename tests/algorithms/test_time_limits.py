"""Time limits are not ends: through every way in, what the clock cuts is worth what would have followed.

A task that pays 1 for ever is worth 1 / (1 - gamma), however short its episodes; its twin, which really ends, is not.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

import tightrope as tr
from tightrope.engine import Runtime, draw_noise
from tightrope.envs.adapters.gym import from_object
from tightrope.functional import gae, successor_values
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Discrete, Env, Rollout

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED
GAMMA, LENGTH = 0.9, 10


# two tasks, each in two versions -------------------------------------------------------------------------------------


class Clock(gymnasium.Env[Any, Any]):
    """Pays 1 a step and shows how many there were, up to 9. After 10 it is cut, or really ends."""

    observation_space, action_space = gs.Discrete(LENGTH), gs.Discrete(2)

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.age += 1
        late = self.age == LENGTH
        return min(self.age, LENGTH - 1), 1.0, late and self.ends, late and not self.ends, {}


class Road(gymnasium.Env[Any, Any]):
    """From 0 or 1 on to 2, which is seen only at the very end; the steps pay 1 and 2."""

    observation_space, action_space = gs.Discrete(3), gs.Discrete(2)

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(2))
        return self.at, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.at += 1
        there = self.at == 2
        return self.at, float(self.at), there and self.ends, there and not self.ends, {}


class Rows(VectorEnv[Any, Any, Any]):
    """A vector environment of someone's own making, which resets itself as it says."""

    def __init__(self, num_envs: int, single: Callable[[], Any], mode: AutoresetMode) -> None:
        self.num_envs, self.envs, self.mode = num_envs, [single() for _ in range(num_envs)], mode
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = self.envs[0].observation_space, gs.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.over = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.over[:] = False
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        return np.array([env.reset(seed=s)[0] for env, s in zip(self.envs, seeds, strict=True)]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answers = [
            (env.reset()[0], 0.0, False, False) if over else env.step(action)[:4]
            for env, over, action in zip(self.envs, self.over, actions, strict=True)
        ]
        obs, reward, terminated, truncated = (np.array(column) for column in zip(*answers, strict=True))
        done, info = terminated | truncated, {}
        if self.mode is SAME:
            info = {"final_obs": obs.copy(), "_final_obs": done}
            obs[done] = [self.envs[i].reset()[0] for i in np.flatnonzero(done)]
        else:
            self.over = done
        return obs, reward, terminated, truncated, info


class TensorClock(tr.envs.TensorEnv):
    """The same as Clock, as tensors."""

    observation, action, time_limit, ends = Discrete(LENGTH), Discrete(2), LENGTH, False

    def initial(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise), 1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + 1

    def observe(self, state: Tensor) -> Tensor:
        return state[:, 0].long().clamp(max=LENGTH - 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones(len(state))

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= LENGTH) & self.ends


class TensorRoad(TensorClock):
    """The same as Road, as tensors."""

    observation, time_limit = Discrete(3), None

    def initial(self, noise: Tensor) -> Tensor:
        return (noise >= 0.5).float()

    def observe(self, state: Tensor) -> Tensor:
        return state[:, 0].long()

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0]

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= 2) & self.ends

    def step(self, action: Tensor, noise: Tensor | None = None) -> Any:
        self.clock.copy_(self.state[:, 0])  # the limit is a place, wherever it started
        self.max_episode_steps = 2
        return super().step(action, noise)


def tensors(task: type[Any], num_envs: int, ends: bool) -> Env:
    env = {Clock: TensorClock, Road: TensorRoad}[task](num_envs)
    env.ends = ends
    return env


def vector(cls: Any, mode: AutoresetMode, task: type[Any], num_envs: int, ends: bool) -> Env:
    return from_object(cls([lambda: task(ends)] * num_envs, autoreset_mode=mode), num_envs)


def rows(mode: AutoresetMode, task: type[Any], num_envs: int, ends: bool) -> Env:
    return from_object(Rows(num_envs, lambda: task(ends), mode), num_envs)


FORMS: dict[str, Callable[[type[Any], int, bool], Env]] = {
    "tensors": tensors,
    "factory": lambda task, n, ends: from_object(lambda: task(ends), n),
    "instance": lambda task, n, ends: from_object(task(ends), n),
    "sync same-step": partial(vector, SyncVectorEnv, SAME),
    "sync next-step": partial(vector, SyncVectorEnv, NEXT),
    "sync disabled": partial(vector, SyncVectorEnv, DISABLED),
    "async same-step": partial(vector, AsyncVectorEnv, SAME),
    "async next-step": partial(vector, AsyncVectorEnv, NEXT),
    "async disabled": partial(vector, AsyncVectorEnv, DISABLED),
    "own same-step": partial(rows, SAME),
    "own next-step": partial(rows, NEXT),
}
every_form = pytest.mark.parametrize("form", list(FORMS))
both_ways = pytest.mark.parametrize("ends", [False, True], ids=["cut", "ended"])


# what the critic learns ----------------------------------------------------------------------------------------------


@every_form
@both_ways
def test_the_critic_learns_what_would_have_followed(form: str, ends: bool) -> None:
    agent = tr.PPO(
        FORMS[form](Clock, 4, ends), num_steps=25, total_timesteps=100 * 30, num_minibatches=1, update_epochs=10,
        learning_rate=2e-2, gamma=GAMMA, hidden_sizes=(16,), max_grad_norm=None, norm_reward=False, seed=1,
    )  # fmt: skip
    agent.learn(quiet=True)
    agent.state.env.close()
    left = LENGTH - torch.arange(LENGTH)
    expected = (1 - GAMMA**left) / (1 - GAMMA) if ends else torch.full((LENGTH,), 1 / (1 - GAMMA))
    value = agent.policy.value(torch.arange(LENGTH)).detach()
    torch.testing.assert_close(value, expected, rtol=0.03, atol=0.0)


@both_ways
def test_with_a_critic_vpg_learns_it_too(ends: bool) -> None:
    agent = tr.VPG(
        lambda: Clock(ends), num_envs=4, num_steps=LENGTH, total_timesteps=40 * 200, baseline="critic", gamma=GAMMA,
        learning_rate=2e-2, anneal_lr=True, hidden_sizes=(16,), activation="tanh", seed=1, device="cpu",
    )  # fmt: skip
    agent.learn(quiet=True)
    left = LENGTH - torch.arange(LENGTH)
    expected = (1 - GAMMA**left) / (1 - GAMMA) if ends else torch.full((LENGTH,), 1 / (1 - GAMMA))
    torch.testing.assert_close(agent.policy.value(torch.arange(LENGTH)).detach(), expected, rtol=0.03, atol=0.0)


# the advantages themselves -------------------------------------------------------------------------------------------


class Table(nn.Module):
    """One feature per place."""

    def forward(self, obs: Tensor) -> Tensor:
        return nn.functional.one_hot(obs, 3).float()


V = (0.5, -1.0, 4.0)  # what the critic says of places 0, 1 and 2


def rollout_of(env: Env, steps: int) -> tuple[Rollout, Tensor]:
    """(rollout, advantages) under a critic that says V."""
    policy = actor_critic(env.observation, env.action, NetworkConfig(), network=Table())
    with torch.no_grad():
        policy.value_head.weight.copy_(torch.tensor([V]))
        policy.value_head.bias.zero_()
    rollout = Rollout.allocate(steps, env)
    noise = draw_noise(env, policy.head.noise, steps, (1, 1), seed=3, phase=0)
    obs, _ = Runtime().collect(env, policy, rollout, env.reset(seed=3), noise)
    with torch.no_grad():
        following = successor_values(
            rollout.value, policy.value(obs), rollout.done, Runtime().final_values(policy, rollout)
        )
        advantage = gae(rollout.reward, rollout.value, following, rollout.terminated, rollout.done, GAMMA, 0.8)
    return rollout, advantage


@every_form
@both_ways
@pytest.mark.parametrize("steps", [6, 7])
def test_advantages_are_those_worked_out_by_hand(form: str, ends: bool, steps: int) -> None:
    env = FORMS[form](Road, 5, ends)
    rollout, advantage = rollout_of(env, steps)
    env.close()
    last = 2 - V[1] + (0 if ends else GAMMA * V[2])  # the step from 1 to 2
    edge = 1 + GAMMA * V[1] - V[0]  # from 0 to 1, where the window ends
    first = edge + GAMMA * 0.8 * last  # from 0 to 1, with what follows
    expected = torch.where(rollout.obs == 1, last, first)
    expected[-1] = torch.where(rollout.obs[-1] == 1, last, edge)

    valid = rollout.valid
    assert rollout.skips == (form == "own next-step")
    assert torch.equal(rollout.done & valid, (rollout.obs == 1) & valid)
    assert not (rollout.done & ~valid).any()
    assert torch.equal(rollout.terminated, rollout.done & ends)
    assert (rollout.final_obs[rollout.done] == 2).all()
    assert (rollout.obs[valid] < 2).all(), "the end is never a place to act from"
    assert set(rollout.obs[valid].tolist()) == {0, 1}
    torch.testing.assert_close(advantage[valid], expected[valid], rtol=0, atol=1e-5)
    batch = rollout.batch(advantage, advantage + rollout.value)
    torch.testing.assert_close(batch.advantage, expected[valid], rtol=0, atol=1e-5)
    assert torch.equal(batch.obs, rollout.obs[valid])


def test_every_form_tells_the_same_story() -> None:
    """From the same seeds, the same rollout: but for the steps that are not valid."""
    stories = {}
    for form, make in FORMS.items():
        if form != "tensors" and not form.startswith("own"):  # they have other streams
            env = make(Road, 5, False)
            stories[form], _ = rollout_of(env, 9)
            env.close()
    reference = stories.pop("factory")
    for story in stories.values():
        for field in ("obs", "reward", "terminated", "truncated", "final_obs"):
            assert torch.equal(getattr(story, field), getattr(reference, field))
    one, other = (rollout_of(FORMS[form](Road, 5, False), 9)[0] for form in ("own same-step", "own next-step"))
    for column in range(5):
        valid = other.valid[:, column]
        count = int(valid.sum())
        assert torch.equal(other.obs[valid, column], one.obs[:count, column])
        assert torch.equal(other.reward[valid, column], one.reward[:count, column])
