"""What is said before training: environments without a time limit, masks that are not applied; nothing where all is well."""

from __future__ import annotations

from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest
import torch
from gymnasium.wrappers import TimeLimit, TransformReward

import tightrope as tr
from tightrope.envs.checker import check
from tightrope.envs.training_warnings import training_warnings
from tightrope.models import NetworkConfig, actor_critic
from tightrope.training.plan import plan
from tightrope.types import Box, Composite, Discrete


class Corridor(gymnasium.Env):
    """Ends at its end, if anybody goes there."""

    observation_space: gs.Space = gs.Box(-100, 100, (1,), np.float32)
    action_space = gs.Discrete(2)
    x = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0, 0.1)
        return np.full(1, self.x, np.float32), {}

    def step(self, action: Any) -> Any:
        self.x = max(self.x + 0.1 * (2 * int(action) - 1), -3.0)
        return np.full(1, self.x, np.float32), -0.1, self.x > 2, False, {}


class Truncating(Corridor):
    t = 0

    def step(self, action: Any) -> Any:
        self.t = self.t % 20 + 1
        return np.zeros(1, np.float32), 1.0, False, self.t == 20, {}


class Counting(Corridor):
    t = 0

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t % 20 == 0, False, {}


class Hover(Corridor):
    """Continuous actions, of which only a push ends it."""

    action_space: Any = gs.Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.1, bool(abs(action[0]) > 0.5), False, {}


def limited() -> gymnasium.Env:
    return TimeLimit(Corridor(), 20)


@pytest.mark.parametrize(
    ("make", "action"),
    [
        (Corridor, "0"), (lambda: TransformReward(Corridor(), lambda r: r), "0"), (Hover, "[0.0]"),
        (lambda: gymnasium.make("CliffWalking-v1"), "0"), (limited, ""), (lambda: TransformReward(limited(), lambda r: r), ""),
        (Truncating, ""), (Counting, ""), (lambda: gymnasium.make("FrozenLake-v1"), ""),
        (lambda: gymnasium.make("Blackjack-v1"), ""), (lambda: gymnasium.make("CliffWalking-v1", max_episode_steps=100), ""),
        (lambda num_envs: gymnasium.vector.SyncVectorEnv([Corridor] * num_envs), "0"),
    ],
)  # fmt: skip
def test_a_time_limit_is_missed_only_where_it_is_missing(make: Any, action: str) -> None:
    findings = [f for f in check(make, steps=300).findings if f.check == "endless"]
    if action:
        assert findings[0].level == "warning"
        held = f"1,000 steps of action {action} end no episode, and no time limit is known"
        assert held in findings[0].message or "no episode ended in 300 random steps" in findings[0].message
    else:
        assert findings == []


def said(env: Any, **settings: Any) -> list[str]:
    """The notes at the beginning of a training."""
    agent = tr.PPO(env, **{"num_envs": 2, "num_steps": 32, "total_timesteps": 1280} | settings)
    lines = [line for line in plan(agent.state, agent.config).lines() if line.startswith("note: ")]
    agent.state.env.close()
    return lines


class Endless(Corridor):
    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("env", [Endless, Endless(), lambda: TransformReward(Endless(), lambda r: r)])
def test_training_says_once_that_no_episode_ends(env: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tr.PPO(env, num_envs=2, num_steps=512, total_timesteps=4096, update_epochs=1, eval_every=0).learn()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(lines) == 1
    assert "has ended in 1,000 steps, and no time limit is known" in lines[0]
    assert "--max-episode-steps N" in lines[0]


@pytest.mark.parametrize("env", [limited, Truncating, Counting, "CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_training_is_silent_where_episodes_end(env: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tr.PPO(env, num_envs=2, num_steps=512, total_timesteps=3072, update_epochs=1).learn()
    assert "note: " not in capsys.readouterr().out


class Walk(tr.envs.TensorEnv):
    observation: Any = Box((1,))
    action = Discrete(2)

    def initial(self, noise: torch.Tensor) -> torch.Tensor:
        return noise

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return state + 0.1

    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        return state[:, 0]


class Ending(Walk):
    def terminated(self, state: torch.Tensor) -> torch.Tensor:
        return state[:, 0] > 1


def test_tensor_environments_without_a_time_limit() -> None:
    assert "Walk has no time limit, so its episodes never end: set time_limit" in training_warnings(Walk(2))[0]
    assert "Ending has no time limit, so an episode may never end: set time_limit" in training_warnings(Ending(2))[0]
    assert training_warnings(Walk(2, max_episode_steps=10)) == []


# masks ---------------------------------------------------------------------------------------------------------------


class ByMethod(Truncating):
    def action_masks(self) -> Any:
        return np.ones(2, bool)


class OfAnotherName(Truncating):
    def legal_actions(self) -> Any:
        return [0, 1]


class ElsewhereInInfo(Truncating):
    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0], {"valid_action_mask": np.ones(2, np.int8)}


class ElsewhereInDict(Truncating):
    observation_space = gs.Dict({"x": Corridor.observation_space, "legal_moves": gs.MultiBinary(2)})

    def reset(self, **given: Any) -> Any:
        return {"x": super().reset(**given)[0], "legal_moves": np.ones(2, np.int8)}, {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {"x": obs, "legal_moves": np.ones(2, np.int8)}, *rest


@pytest.mark.parametrize("env", ["Taxi-v4", ByMethod, lambda: TransformReward(ByMethod(), lambda r: r)])
def test_masks_that_are_applied_are_not_noted(env: Any) -> None:
    assert said(env) == []


@pytest.mark.parametrize(
    ("env", "where"),
    [
        (OfAnotherName, "its legal_actions"), (ElsewhereInInfo, "info['valid_action_mask']"),
        (ElsewhereInDict, "the observation's 'legal_moves'"),
    ],

)  # fmt: skip
def test_masks_that_are_not_applied_are_noted(env: Any, where: str) -> None:
    (line,) = said(env)
    assert f"offers action masks ({where}), which are not applied" in line
    findings = [f for f in check(env, steps=60).findings if f.check == "action mask"]
    assert [f.level for f in findings] == ["note"]


def test_masks_of_vectors_are_noted_and_those_of_tensor_environments_applied() -> None:
    assert "info['action_mask']" in said(gymnasium.make_vec("Taxi-v4", 2, "sync"))[0]
    for vector in (gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv):
        (line,) = said(vector([lambda: TransformReward(ByMethod(), lambda r: r)] * 2))
        assert "action masks (its action_masks), which are not applied: a vector environment shows masks" in line
        assert "give the id, or a function that makes one environment, with num_envs=N" in line

    class Masked(Walk):
        time_limit = 10
        observation = Composite((("x", Box((1,))), ("action_mask", Box((2,)))))

        def observe(self, state: torch.Tensor) -> torch.Tensor:
            return torch.cat([state, torch.ones(len(state), 2)], -1)

    assert training_warnings(Masked(2)) == []
    assert actor_critic(Masked(2).observation, Masked(2).action, NetworkConfig()).action_mask is not None


class AfterSteps(Truncating):
    def step(self, action: Any) -> Any:
        *answer, _ = super().step(action)
        return *answer, {"action_mask": np.ones(2, np.int8)}


@pytest.mark.parametrize("env", [AfterSteps, lambda num_envs: gymnasium.vector.SyncVectorEnv([AfterSteps] * num_envs)])
def test_masks_that_come_with_steps_alone_are_noted_once_while_training(
    env: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(env) == []
    agent = tr.PPO(env, num_envs=2, num_steps=32, total_timesteps=1280)
    agent.learn()
    assert capsys.readouterr().out.count("offers action masks (info['action_mask']), which are not applied") == 1


def test_names_that_only_resemble_masks_are_no_masks() -> None:
    class Similar(Truncating):
        action_masked, unmask_actions, mask = True, None, None

    assert said(Similar) == []
