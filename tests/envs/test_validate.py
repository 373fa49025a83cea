"""Mistakes in a tensor environment are one line, when it is built: the method, what it gives, what is wanted, a fix."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from run_helpers import start_command
from torch import Tensor

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.types import Box, Discrete, MultiDiscrete


class Sound(tr.envs.TensorEnv):
    observation: Any = Box((2,))
    action: Any = Discrete(2)
    noise_size: Any = 2
    time_limit = 10

    def initial(self, noise: Tensor) -> Any:
        return noise - 0.5

    def advance(self, state: Tensor, action: Tensor) -> Any:
        return state + 0.1 * (2 * action.unsqueeze(-1) - 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Any:
        return next_state[:, 0] - state[:, 0]

    def terminated(self, state: Tensor) -> Any:
        return state[:, 0] > 1


def sound(**changes: Any) -> type[Sound]:
    return type("Walk", (Sound,), changes)


def without(name: str) -> type[tr.envs.TensorEnv]:
    members = {n: v for n, v in vars(Sound).items() if n != name and not n.startswith("__")}
    return type("Walk", (tr.envs.TensorEnv,), members)


def late(self: Any, *args: Any, **kwargs: Any) -> None:
    tr.envs.TensorEnv.__init__(self, *args, **kwargs)
    self.scale = 2.0


def tabled(self: Any, num_envs: int = 1, device: Any = "cpu", max_episode_steps: Any = None) -> None:
    self.mass = torch.ones(num_envs, 1)
    tr.envs.TensorEnv.__init__(self, num_envs, device, max_episode_steps)


MISTAKES: dict[str, tuple[Any, str]] = {
    "no initial": (without("initial"), "Walk has no initial: write `def initial(self, noise)`"),
    "no advance": (without("advance"), "Walk has no advance: write `def advance(self, state, action)`"),
    "no reward": (without("reward"), "Walk has no reward: write `def reward(self, state, action, next_state)`"),
    "no observation": (without("observation"), "Walk has no observation: set it in the class, such as"),
    "no action": (without("action"), "Walk has no action: set it in the class, such as"),
    "a space of Gymnasium's": (sound(observation=gymnasium.spaces.Box(-1, 1, (2,))),
        "Walk.observation is a gymnasium.Box, not a space of"),
    "reward (N, 1)": (sound(reward=lambda s, a, b, c: c[:, :1]),
        "Walk.reward returns shape (12, 1) for 12 rows, wanted (12,): drop the last"),
    "reward ()": (sound(reward=lambda s, a, b, c: c.mean()),
        "Walk.reward returns shape () for 12 rows, wanted (12,): give dim=-1"),
    "reward of two columns": (sound(reward=lambda s, a, b, c: c),
        "Walk.reward returns shape (12, 2) for 12 rows, wanted (12,): "),
    "bool reward": (sound(reward=lambda s, a, b, c: c[:, 0] > 0),
        "Walk.reward returns torch.bool, wanted torch.float32: return"),
    "whole reward": (sound(reward=lambda s, a, b, c: b),
        "Walk.reward returns torch.int64, wanted torch.float32: return x.float()"),
    "double reward": (sound(reward=lambda s, a, b, c: c[:, 0].double()),
        "Walk.reward returns torch.float64, wanted torch.float32"),
    "plain reward": (sound(reward=lambda s, a, b, c: 1.0),
        "Walk.reward returns float 1.0, not a tensor: return one value per row"),
    "no reward returned": (sound(reward=lambda s, a, b, c: None), "Walk.reward returns None, not a tensor"),
    "nan reward": (sound(reward=lambda s, a, b, c: c[:, 0] / 0 * 0),
        "Walk.reward returns nan after the first step in row 0: look"),
    "reward of two arguments": (sound(reward=lambda self, state, action: state[:, 0]),
        "Walk.reward does not take (state, action, next_state): write `def reward(self, state, action, next_state)`"),
    "float terminated": (sound(terminated=lambda s, a: (a[:, 0] > 1).float()),
        "Walk.terminated returns torch.float32, wanted torch.bool: return a"),
    "terminated (N, 1)": (sound(terminated=lambda s, a: a[:, :1] > 1), "Walk.terminated returns shape (12, 1) for 12 rows"),
    "terminated for all": (sound(terminated=lambda s, a: (a > 1).any()),
        "Walk.terminated returns shape () for 12 rows, wanted (12,)"),
    "plain terminated": (sound(terminated=lambda s, a: False), "Walk.terminated returns bool False, not a tensor"),
    "dict state": (sound(initial=lambda s, n: {"x": n}),
        "Walk.initial returns a dict of ['x'], not a tensor: return one tensor (N, S)"),
    "tuple state": (sound(initial=lambda s, n: (n, n)), "Walk.initial returns a tuple of 2, not a tensor"),
    "array state": (sound(initial=lambda s, n: n.numpy()),
        "Walk.initial returns an array of shape (4, 2) and dtype float32, not a"),
    "no state": (sound(initial=lambda s, n: None), "Walk.initial returns None, not a tensor"),
    "flat state": (sound(initial=lambda s, n: n[:, 0]),
        "Walk.initial returns shape (4,), wanted (4, S), one row per row of noise: add"),
    "deep state": (sound(initial=lambda s, n: n[:, :, None]), "Walk.initial returns shape (4, 2, 1), wanted (4, S)"),
    "fixed rows": (sound(initial=lambda s, n: torch.zeros(4, 2)),
        "Walk.initial returns 4 rows for 12 rows of noise: make one row per"),
    "one row": (sound(initial=lambda s, n: torch.zeros(1, 2)), "Walk.initial returns 1 rows for 4 rows of noise"),
    "nan at reset": (sound(initial=lambda s, n: n / 0),
        "Walk.initial returns inf at reset in row 0, column 0: look for a division"),
    "too little noise": (sound(noise_size=1, initial=lambda s, n: torch.stack([n[:, 0], n[:, 1]], -1)),
        "set noise_size to the number of columns"),
    "too few columns of noise": (sound(noise_size=1, initial=lambda s, n: torch.stack([*n.unbind(-1)][1], -1)),
        "Walk.initial raises"),
    "noise of no size": (sound(noise_size="2"), "Walk.noise_size '2' is invalid: set it"),
    "state narrower than the observation": (sound(noise_size=1),
        "Walk.initial returns shape (12, 1) for 12 rows, wanted (12, 2) by observation Box((2,)): write observe, or"),
    "attributes after super().__init__": (sound(__init__=late, initial=lambda s, n: n * s.scale),
        "Walk.initial reads self.scale, which is not set yet: set it before super().__init__()"),
    "attributes never set": (sound(observe=lambda s, x: x * s.scale),
        "Walk.observe reads self.scale, which is not set yet: set it in __init__"),
    "advance that shrinks": (sound(advance=lambda s, x, a: x[:, :1]),
        "Walk.advance returns shape (12, 1), wanted (12, 2), the shape of state"),
    "advance of nothing": (sound(advance=lambda s, x, a: None), "Walk.advance returns None, not a tensor"),
    "whole numbers that become real": (
        sound(initial=lambda s, n: torch.zeros(n.shape, dtype=torch.int64), observe=lambda s, x: x.float()),
        "Walk.advance returns torch.float32, but initial torch.int64, which cannot hold it: let initial return torch.float32"),
    "wide observation": (sound(observe=lambda s, x: torch.cat([x, x], -1)),
        "Walk.observe returns shape (12, 4) for 12 rows, wanted (12, 2) by observation Box((2,)): change observe"),
    "double observation": (sound(observe=lambda s, x: x.double()),
        "Walk.observe returns observations of torch.float64, wanted torch.float32 by"),
    "observation elsewhere": (sound(observe=lambda s, x: x.to("meta")),
        "Walk.observe returns a tensor on meta, the environment is on cpu: make tensors"),
    "observation outside": (sound(observation=Discrete(2), observe=lambda s, x: (x[:, 0] > -9).long() * 7),
        "Walk.observe gives observation 7 for env number 0, outside Discrete(2): widen observation"),
    "a table of the environments": (sound(__init__=tabled, advance=lambda s, x, a: x + s.mass),
        "use as many rows as it is given, for evaluation uses copies"),
    "a time limit in words": (sound(time_limit="20"), "Walk.time_limit '20' is not a number of steps"),
    "an exception": (sound(advance=lambda s, x, a: x @ a), "Walk.advance raises RuntimeError: "),
    "no super().__init__": (sound(__init__=lambda s, *a, **k: None),
        "Walk.__init__ does not call super().__init__: end it with"),
    "no arguments": (sound(__init__=lambda s: tr.envs.TensorEnv.__init__(s)),
        "Walk.__init__ does not take (num_envs, device, max_episode_steps)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_when_the_agent_is_made(name: str) -> None:
    kind, words = MISTAKES[name]
    with pytest.raises(UsageError) as caught:
        tr.PPO(kind, num_envs=4, num_steps=8, total_timesteps=64)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400
    own = [frame for frame in traceback.extract_tb(caught.tb) if "tightrope" in Path(frame.filename).parts[-2:][0]]
    assert len(own) <= 3


def test_an_instance_says_the_same() -> None:
    with pytest.raises(UsageError, match=r"Walk.reward returns shape \(12, 1\)"):
        tr.PPO(MISTAKES["reward (N, 1)"][0](num_envs=4))
    with pytest.raises(UsageError, match="does not call super"):
        tr.PPO(MISTAKES["no super().__init__"][0](num_envs=4))
    with pytest.raises(UsageError, match=r"Walk.reward returns shape \(12, 1\)"):
        MISTAKES["reward (N, 1)"][0](num_envs=4).step(torch.zeros(4, dtype=torch.int64))


GOOD: dict[str, Any] = {
    "plain": Sound,
    "no noise": sound(noise_size=0, initial=lambda s, n: torch.zeros(len(n), 2)),
    "double state": sound(
        initial=lambda s, n: n.double(), observe=lambda s, x: x.float(), reward=lambda s, a, b, c: c[:, 0].float()
    ),
    "whole state": sound(
        initial=lambda s, n: (n * 5).long(),
        advance=lambda s, x, a: x + a[:, None],
        observe=lambda s, x: x.float(),
        reward=lambda s, a, b, c: c[:, 0].float(),
    ),
    "whole observation": sound(observation=MultiDiscrete((3, 3)), observe=lambda s, x: (x > 0).long()),
    "images": sound(
        observation=Box((1, 36, 36), 0, 255, torch.uint8), observe=lambda s, x: x.new_zeros(len(x), 1, 36, 36).byte()
    ),
    "pushes": sound(action=Box((2,), (-1.0, 0.0), (1.0, 2.0)), advance=lambda s, x, a: x + a),
    "attributes for a step after super().__init__": sound(__init__=late, reward=lambda s, a, b, c: c[:, 0] * s.scale),
    "rows of its own number": sound(initial=lambda s, n: torch.zeros(s.num_envs, 2)),
    "once a step": sound(pure=False),
    "expanded": sound(initial=lambda s, n: torch.zeros(1, 2).expand(len(n), 2)),
}


@pytest.mark.parametrize("name", GOOD)
def test_sound_environments_train_and_are_evaluated(name: str) -> None:
    agent = tr.PPO(GOOD[name], num_envs=4, num_steps=8, total_timesteps=64).learn(quiet=True)
    assert np.isfinite(agent.evaluate(3).mean)


def test_games_of_several_rows_are_sound() -> None:
    def advance(self: Any, state: Tensor, action: Tensor) -> Tensor:
        return (state.view(-1, 4, 2) + action.view(-1, 4, 1).sum(1, keepdim=True)).view(-1, 2)

    agent = tr.PPO(sound(advance=advance), num_envs=8, num_steps=8, total_timesteps=64).learn(quiet=True)
    assert np.isfinite(agent.evaluate(8).mean)


def test_rows_that_happen_to_be_those_of_the_trial_are_found_too() -> None:
    with pytest.raises(UsageError, match=r"Walk\.initial returns 12 rows for 24 rows of noise"):
        tr.PPO(sound(initial=lambda s, n: torch.zeros(12, 2)), num_envs=12, num_steps=8)


def test_methods_are_tried_once_and_not_at_every_step() -> None:
    calls = []

    def reward(self: Any, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        calls.append(len(state))
        return next_state[:, 0]

    env = sound(reward=reward)(2000)
    env.reset()
    tried = len(calls)
    assert set(calls) == {12}
    for _ in range(5):
        env.step(torch.zeros(2000, dtype=torch.int64))
        env.reset()
    assert calls[tried:] == [2000] * 5
    env.spawn(1500, seed=0).reset()
    assert len(calls) == tried + 5


DRAWN: list[tuple[Any, str]] = [
    (lambda obs: torch.zeros(len(obs), 8, 8, 3), "returns a tensor of shape (1, 8, 8, 3) and torch.float32"),
    (lambda obs: np.zeros((8, 8, 3), np.uint8), "returns an array of shape (8, 8, 3) and dtype uint8"),
    (lambda obs: np.zeros((5, 8, 8, 3), np.uint8), "returns shape (5, 8, 8, 3): return one frame per row"),
    (lambda obs: obs.nothing, "raises AttributeError: "),
]


@pytest.mark.parametrize(("frames", "words"), DRAWN)
def test_drawing_wrongly_is_one_line(frames: Any, words: str, tmp_path: Path) -> None:
    kind = sound(draw=lambda self, obs, action=None: frames(obs))
    agent = tr.PPO(kind, num_envs=2, num_steps=8, total_timesteps=64)
    with pytest.raises(UsageError, match=re.escape(f"Walk.draw {words}")):
        agent.record(tmp_path / "film.mp4", episodes=1)


def test_the_command_line_shows_the_line_alone(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(
        "import tightrope as tr\n\n\nclass Walk(tr.envs.CartPole):\n    def reward(self, state, action, next_state):\n"
        "        return next_state\n"
    )
    process = start_command("train", "walk:Walk", "--run-dir", "run", "--quiet", cwd=tmp_path)
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.startswith("tightrope: Walk.reward returns shape (12, 4) for 12 rows, wanted (12,): ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


class InFives(Sound):
    """Five rows are one game."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        games = next_state[:, 0].view(-1, 5)
        return games.mean(1, keepdim=True).expand(-1, 5).reshape(-1).contiguous()


def test_groups_of_rows_of_any_size_are_tried_on_as_many_as_there_are() -> None:
    agent = tr.PPO(InFives(num_envs=20), num_steps=8, total_timesteps=320).learn(quiet=True)
    assert agent.steps == 320


class Stairs(tr.envs.TensorEnv):
    """Climbs one step at a time, out of its observation space."""

    observation, action, noise_size, time_limit = Discrete(5), Discrete(2), 1, 20
    pure = True

    def initial(self, noise: Tensor) -> Tensor:
        return torch.zeros_like(noise)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        climbs = torch.arange(len(state), device=state.device).unsqueeze(-1) == 1
        return state + climbs.float()

    def observe(self, state: Tensor) -> Tensor:
        return state[:, 0].long()

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[:, 0]


class Keys(Stairs):
    observation = MultiDiscrete((9, 4))

    def observe(self, state: Tensor) -> Tensor:
        return state.long().expand(-1, 2)


class Counting(Stairs):
    pure = False  # so that it runs on tensors


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Stairs, "Stairs.observe gives observation 5 for env number 1, outside Discrete(5): widen"),
        (Counting, "Counting.observe gives observation 5 for env number 1, outside Discrete(5): widen"),
        (Keys, "Keys.observe gives observation 4 in column 1 for env number 1, outside MultiDiscrete((9, 4)): widen"),
    ],
)
def test_an_observation_that_leaves_its_space_later_is_named(env: Any, words: str, tmp_path: Path) -> None:
    agent = tr.PPO(env(num_envs=3), num_steps=16, num_minibatches=1, total_timesteps=96, norm_obs=False)
    with pytest.raises(tr.EnvError, match=re.escape(words)) as caught:
        agent.learn(quiet=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(tr.EnvError, match=re.escape(words)):
        agent.evaluate(4)
    with pytest.raises(tr.EnvError, match=re.escape(words)) as caught:
        agent.learn(quiet=True, run_dir=tmp_path / "run")
    assert caught.value.__cause__ is None  # so that the command line prints no traceback of ours


def test_where_nothing_is_looked_at_the_guard_of_training_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("validate", "recorded_step"):  # as on a device, where looking would be to wait
        monkeypatch.setattr(f"tightrope.envs.{module}.check_choices", lambda *_: None)
    agent = tr.PPO(Stairs(num_envs=3), num_steps=16, num_minibatches=1, total_timesteps=96)
    words = "env gave observation 5, outside Discrete(5), at env 1, step 5"
    with pytest.raises(tr.NotFinite, match=re.escape(words)):
        agent.learn(quiet=True)
