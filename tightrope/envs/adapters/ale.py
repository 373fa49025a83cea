"""Atari games through ale-py's vector engine, in C++ threads. Ids: ALE/Breakout-v5, Breakout-v5 or BreakoutNoFrameskip-v4.

All three mean the same here, the usual preparation for PPO: up to 30 no-ops after a reset, FIRE where a game or a life
starts, each action held for 4 frames of which the last two are merged by maximum, 84 x 84 grey pixels, 4 frames stacked, as
bytes. Actions are not sticky (repeat_action_probability 0, where Gymnasium's ALE/...-v5 has 0.25): ask by env_kwargs.

The engine resets in the same step. It is not told of lives, so that its `terminated` is the end of the game and nothing
else; a life is lost where `lives` went down without that. Its own time limit would hand out a last observation that
contains an older frame, so games are cut off by a clock here, and reset by mask.

Nor does it show its screens. Where they are to be seen, as in recordings, a second engine plays the same games in colour.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from ...draw import magnified
from ..options import Array, EnvOptions
from ..step_arrays import Answer
from .atari import (
    TIME_LIMIT,
    Rules,
    checked,
    fires,
    lost_life,
    needed,
    pictures,
    rom_of,
    shipped,
    time_limit,
    unmistakable,
    unreserved,
    with_fire,
)
from .groups import in_groups
from .gym import made
from .host import HostEnv
from .spaces import action, observation

NEVER = 1 << 30  # frames
RESERVED = {
    "game": "it is in the id",
    "num_envs": "it is a setting of its own",
    "batch_size": "all environments are stepped together",
    "autoreset_mode": "it is same-step",
    "life_loss_info": "give episodic_life instead",
    "max_num_frames_per_episode": "give max_episode_steps instead, in steps",
    "grayscale": "frames are grey",
}
SCREEN: dict[str, Any] = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}


class Factory(Protocol):
    """Makes an engine of so many games, with other settings than the usual where some are given."""

    def __call__(self, count: int, **other: Any) -> VectorEnv: ...


class AleEnv(HostEnv):
    """N games. Threads: one per environment, at most one per core; what happens does not depend on how many."""

    backend = "ale"
    drawable = True

    def __init__(
        self,
        factory: Factory,
        num_envs: int,
        device: str | torch.device,
        name: str,
        max_episode_steps: int,
        rules: Rules,
        fires: bool = False,
    ) -> None:
        self.name, self._factory, self._rules, self._fires = name, factory, rules, fires
        self.max_episode_steps = max_episode_steps
        self.engine: Any = factory(max(num_envs, 1))
        spaces = observation(self.engine.single_observation_space), action(self.engine.single_action_space)
        self._describe(*spaces, num_envs, device)
        self._clock = np.zeros(num_envs, np.int64)  # steps of the game under way
        self._lives = np.zeros(num_envs, np.int32)
        self._begins = np.zeros(num_envs, bool)  # where the next step is the first of a life, and FIRE is pressed

    def _restart(self, seeds: Array | None) -> Array:
        obs, info = self.engine.reset(seed=seeds)
        self._clock[:], self._lives, self._begins[:] = 0, info["lives"], False
        return self._read(obs)

    def _send(self, action: Array) -> None:
        self._press(with_fire(checked(self, action), self._begins))

    def _press(self, action: Array) -> None:
        self.engine.send(action)

    def _recv(self) -> Answer:
        obs, score, over, _, info = self.engine.recv()
        self._clock += 1
        late = ~over & (self._clock >= self.max_episode_steps)
        terminated = self._rules.terminated(over, info["lives"], self._lives)
        if self._fires:
            self._begins = lost_life(info["lives"], self._lives) & ~over & ~late
        rows = np.flatnonzero(over | late)
        final_obs = obs[rows]
        if over.any():
            final_obs[over[rows]] = info["final_obs"][over]  # undefined in all other rows
        if late.any():
            obs, info = self.engine.reset(options={"reset_mask": late})  # other rows stay as they are
        self._clock[rows], self._lives = 0, info["lives"]
        return Answer(
            obs,
            self._rules.reward(score),
            terminated,
            late & ~terminated,
            rows,
            final_obs,
            score=score,
            over=over | late,
        )

    def _twin(self, num_envs: int, drawn: bool) -> Any:
        """For scoring and pictures: whole games, raw scores."""
        kind = AleScreens if drawn else type(self)
        rules = Rules(clipped=False, by_life=False)
        return kind(self._factory, num_envs, self.device, self.name, self.max_episode_steps, rules, self._fires)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """What the player saw last."""
        return pictures(obs)

    def close(self) -> None:
        self.engine = None  # which ends its threads


class AleScreens(AleEnv):
    """Whole games, to be watched in colour.

    The engine hands out grey frames or coloured ones, never both. So a second one is given the same seeds and the same
    actions: its games are the same, sticky actions and no-ops included.
    """

    def __init__(self, factory: Factory, num_envs: int, *others: Any) -> None:
        super().__init__(factory, num_envs, *others)
        self.screens: Any = factory(num_envs, **SCREEN)

    def _restart(self, seeds: Array | None) -> Array:
        self._seen, _ = self.screens.reset(seed=seeds)
        return super()._restart(seeds)

    def _press(self, action: Array) -> None:
        super()._press(action)
        self.screens.send(action)

    def _recv(self) -> Answer:
        answer = super()._recv()
        self._seen, *_ = self.screens.recv()
        if answer.truncated.any():  # by our clock, of which the engine knows nothing
            self._seen, _ = self.screens.reset(options={"reset_mask": answer.truncated})
        return answer

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """(K, 210, 160, 3): the screens as they are now."""
        return np.stack([magnified(stack[-1]) for stack in self._seen[: len(obs)]])

    def close(self) -> None:
        super().close()
        self.screens = None


# ways in -------------------------------------------------------------------------------------------------------------


def games() -> list[str]:
    """The ROMs that are installed."""
    return shipped("ale_py", "roms")


def known(env_id: str) -> bool:
    """Whether there is such a game; without ale-py, whether the id looks like one."""
    installed = games()
    return rom_of(env_id, installed) is not None if installed else unmistakable(env_id)


def from_id(env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
    """The game under an id. Of env_kwargs, `reward_clipping` and `episodic_life` set what training sees (both True)."""
    game = needed(env_id, games())
    kwargs = unreserved(options.env_kwargs, RESERVED)
    trained_on = Rules(kwargs.pop("reward_clipping", True), kwargs.pop("episodic_life", True))
    rules = Rules(clipped=False, by_life=False) if options.scoring else trained_on
    limit = time_limit(options.max_episode_steps, TIME_LIMIT)

    def engine(count: int, **other: Any) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv(
            game,
            count,
            autoreset_mode=AutoresetMode.SAME_STEP,
            reward_clipping=False,
            max_num_frames_per_episode=NEVER,
            **{**kwargs, **other},
        )

    def factory(count: int, **other: Any) -> Any:
        return made(env_id, lambda: engine(count, **other))

    def games_of(count: int) -> AleEnv:
        return AleEnv(factory, count, device, env_id, limit, rules, fires(game, kwargs))

    return in_groups(games_of, num_envs, device)
