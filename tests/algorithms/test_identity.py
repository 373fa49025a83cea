"""Every space, learned: the task is to say what is shown. Whatever is lost or bent on the way costs reward at once."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
import pytest

import tightrope as tr

FAST: dict[str, Any] = dict(
    num_envs=32, num_steps=16, num_minibatches=4, update_epochs=8, learning_rate=5e-3, ent_coef=0.0, gamma=0.5,
    hidden_sizes=(32,), device="cpu",
)  # fmt: skip


def cases(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each space with a seed of its own."""
    return pytest.mark.parametrize(("name", "seed"), [(name, 1 + i) for i, name in enumerate(names)])


class Say(gymnasium.Env[Any, Any]):
    """Shows a sample of a space, and pays for the action that is due; one step, and it is over."""

    def __init__(
        self, observation_space: gs.Space, action_space: gs.Space, reward: Callable[[Any, Any], float]
    ) -> None:
        self.observation_space, self.action_space = copy.deepcopy((observation_space, action_space))
        self.pay = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.shown, float(self.pay(self.shown, action)), True, False, {}


def share_of_matches(shown: Any, action: Any) -> float:
    return float(np.mean(np.asarray(shown) == np.asarray(action)))


def closeness(space: gs.Box) -> Callable[[Any, Any], float]:
    """1 where the action is what is shown, 0 where it is half an interval off (or 1, without bounds)."""
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    reach = np.where(bounded, (space.high - np.where(bounded, space.low, 0)) / 2, 1.0)
    return lambda shown, action: 1 - float(np.mean(np.square((shown - action) / reach)))


def score(env: Any, steps: int, seed: int, **settings: Any) -> float:
    agent = tr.PPO(env, **{**FAST, "total_timesteps": steps, "seed": seed, **settings})
    return agent.learn(quiet=True).evaluate(episodes=100).mean


# say what is shown ---------------------------------------------------------------------------------------------------

CHOICES = {
    "discrete": gs.Discrete(5),
    "discrete from 5": gs.Discrete(5, start=5),
    "multidiscrete": gs.MultiDiscrete([2, 5, 3]),
    "multidiscrete 2-D": gs.MultiDiscrete([[2, 4], [3, 3]], start=[[1, 0], [-2, 7]]),
    "multibinary": gs.MultiBinary(5),
}
AMOUNTS = {
    "box": gs.Box(-1, 1, (2,)),
    "box with bounds of its own": gs.Box(np.array([10, -2], np.float32), np.array([30, 0], np.float32)),
    "box without bounds": gs.Box(-np.inf, np.inf, (2,)),
    "box of two axes": gs.Box(-1, 1, (2, 2)),
    "box of float64": gs.Box(0, 100, (2,), np.float64),
}


@cases(CHOICES)
def test_ppo_says_which_one_is_shown(name: str, seed: int) -> None:
    space = CHOICES[name]
    assert score(lambda: Say(space, space, share_of_matches), 8 * 512, seed) >= 0.99


@cases(AMOUNTS)
def test_ppo_says_how_much_is_shown(name: str, seed: int) -> None:
    space = AMOUNTS[name]
    assert score(lambda: Say(space, space, closeness(space)), 18 * 512, seed, norm_obs=True) >= 0.95


@cases(["discrete", "discrete from 5", "multidiscrete", "multidiscrete 2-D"])
def test_vpg_says_which_one_is_shown(name: str, seed: int) -> None:
    space = CHOICES[name]
    settings = dict(num_envs=64, num_steps=1, total_timesteps=64 * 120, hidden_sizes=(32,), learning_rate=2e-2)
    agent = tr.VPG(lambda: Say(space, space, share_of_matches), **settings, seed=seed, device="cpu")
    assert agent.learn(quiet=True).evaluate(episodes=200).mean >= 0.98


# say what a part of it means -----------------------------------------------------------------------------------------


class Picture(gs.Box):
    """Grey noise, brighter on one side."""

    def __init__(self) -> None:
        super().__init__(0, 255, (36, 40), np.uint8)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        picture = self.np_random.integers(0, 50, self.shape, dtype=np.uint8)
        half = slice(0, 20) if self.np_random.random() < 0.5 else slice(20, 40)
        picture[:, half] += 200
        return picture


def brighter_side(picture: Any) -> int:
    return int(picture[:, 20:].mean() > picture[:, :20].mean())


PARTS: dict[str, tuple[gs.Space, gs.Space, Callable[[Any], Any]]] = {
    "discrete": (gs.Discrete(6, start=2), gs.Discrete(3), lambda shown: (shown - 2) // 2),
    "multidiscrete": (gs.MultiDiscrete([3, 4], start=[0, 5]), gs.Discrete(4), lambda shown: shown[1] - 5),
    "multibinary": (gs.MultiBinary((2, 3)), gs.Discrete(2), lambda shown: shown[1, 0]),
    "vector": (gs.Box(-1, 1, (3,)), gs.Discrete(2, start=1), lambda shown: 1 + int(shown[1] > 0)),
    "dict": (
        gs.Dict({"wind": gs.Box(-1, 1, (2,)), "goal": gs.Discrete(3, start=4), "bits": gs.MultiBinary(2)}),
        gs.MultiDiscrete([3, 2]),
        lambda shown: [shown["goal"] - 4, shown["bits"][1]],
    ),
    "tuple": (
        gs.Tuple([gs.MultiBinary(2), gs.Dict({"x": gs.Box(-1, 1, (2, 2)), "y": gs.MultiDiscrete([2, 3])})]),
        gs.MultiDiscrete([3, 2]),
        lambda shown: [shown[1]["y"][1], int(shown[1]["x"][1, 0] > 0)],
    ),
}
SEEING = gs.Dict({"eye": Picture(), "wind": gs.Box(-1, 1, (2,)), "flag": gs.Discrete(2, start=3)})
PICTURES: dict[str, tuple[gs.Space, int, Callable[[Any], Any]]] = {  # with the phases it takes
    "alone": (Picture(), 8, brighter_side),
    "in a dict": (SEEING, 8, lambda shown: brighter_side(shown["eye"])),
    "beside what counts": (SEEING, 20, lambda shown: shown["flag"] - 3),
}


def told(due: Callable[[Any], Any]) -> Callable[[Any, Any], float]:
    return lambda shown, action: share_of_matches(due(shown), action)


@cases(PARTS)
def test_ppo_says_what_a_part_means(name: str, seed: int) -> None:
    observation, action, due = PARTS[name]
    assert score(lambda: Say(observation, action, told(due)), 8 * 512, seed, norm_obs=True) >= 0.93


@cases(PICTURES)
def test_ppo_says_what_is_in_a_picture(name: str, seed: int) -> None:
    observation, phases, due = PICTURES[name]
    settings = dict(num_envs=16, num_steps=8, update_epochs=4, learning_rate=1e-3, threads=1)
    assert score(lambda: Say(observation, gs.Discrete(2), told(due)), phases * 128, seed, **settings) >= 0.9
