"""Atari games by ale-py's vector environment, in C++ threads. Ids: ALE/Breakout-v5, Breakout-v5 or BreakoutNoFrameskip-v4.

All three mean the same here, the usual preparation for PPO: up to 30 no-ops after a reset, FIRE where a game or a life
starts, each action held for 4 frames of which the last two are merged by maximum, 84 x 84 grey pixels, 4 frames stacked, as
bytes. Actions are not sticky (repeat_action_probability 0, while Gymnasium's ALE/...-v5 has 0.25): set it by env_kwargs.

ale-py resets in the same step. Its `episodic_life` is off, so that `terminated` always means the end of a game; a lost life is
seen in `lives`. With its own time limit, the last observation would contain an older frame, so this adapter applies the limit
and resets these rows by mask.

ale-py does not return its screens. For recordings, a second simulator plays the same games in colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from ...draw import upscaled
from ..arguments import make_with_arguments
from ..registry import EnvOptions
from ..step_arrays import Array, StepArrays
from .actions import action_writer
from .atari import (
    RAW,
    TIME_LIMIT,
    Rules,
    ThreadedEnv,
    has_game,
    installed_roms,
    presses_fire,
    required_rom,
    without_reserved,
)
from .groups import in_groups
from .gym import checked_make
from .host import HostEnv
from .spaces import observation_reader

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


class AleEnv(ThreadedEnv):
    """N games."""

    backend = "ale"

    def _reset_engine(self, seeds: Array | None) -> tuple[Array, Mapping[str, Array]]:
        if self.engine is None:
            self.engine = self._factory(np.zeros(self.num_envs))
        return self.engine.reset(seed=seeds)

    def _recv(self) -> StepArrays:
        obs, score, over, _, info = self.engine.recv()
        reward, terminated, late = self._outcome(score, over, info)
        rows = np.flatnonzero(over | late)
        final_obs = obs[rows]
        if over.any():
            final_obs[over[rows]] = info["final_obs"][over]  # undefined in all other rows
        if late.any():
            obs, info = self.engine.reset(options={"reset_mask": late})  # other rows stay as they are
            self._lives[:] = info["lives"]
        self._clock[rows] = 0
        return StepArrays(obs, reward, terminated, late & ~terminated, rows, final_obs, score=score, over=over | late)


class AleScreens(AleEnv):
    """Whole games, drawn in colour.

    ale-py returns grey frames or coloured ones, never both. So a second simulator gets the same seeds and actions: its games
    are the same, including sticky actions and no-ops.
    """

    screens: Any = None

    def _reset_engine(self, seeds: Array | None) -> tuple[Array, Mapping[str, Array]]:
        if self.screens is None:
            self.screens = self._factory(np.zeros(self.num_envs), **SCREEN)
        self._frames, _ = self.screens.reset(seed=seeds)
        return super()._reset_engine(seeds)

    def _send_engine(self, action: Array) -> None:
        super()._send_engine(action)
        self.screens.send(action)

    def _recv(self) -> StepArrays:
        arrays = super()._recv()
        self._frames, *_, info = self.screens.recv()
        self._ended = self._frames.copy()
        if "final_obs" in info:  # of games that are over; rows of others are not defined
            over = arrays.rows[~arrays.truncated[arrays.rows]]
            self._ended[over] = info["final_obs"][over]
        if arrays.truncated.any():  # by our clock, of which the engine knows nothing
            self._frames, _ = self.screens.reset(options={"reset_mask": arrays.truncated})
        return arrays

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """(K, 210, 160, 3): the screens as they are now."""
        return np.stack([upscaled(stack[-1]) for stack in self._frames[: len(obs)]])

    def draw_ended(self, obs: Tensor) -> Array:
        return np.stack([upscaled(stack[-1]) for stack in self._ended[: len(obs)]])

    def close(self) -> None:
        super().close()
        self.screens = None


AleEnv.drawn_by = AleScreens


class AleAdapter:
    """Makes games by their ids."""

    @property
    def games(self) -> list[str]:
        """The ROMs that are installed."""
        return installed_roms("ale_py", "roms")

    def provides(self, env_id: str) -> bool:
        """Whether there is such a game; without ale-py, whether the id looks like one."""
        return has_game(env_id, self.games)

    def from_id(self, env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
        """The game under an id. Of env_kwargs, `reward_clipping` and `episodic_life` set what training sees (both True)."""
        game = required_rom(env_id, self.games)
        kwargs = without_reserved(options.env_kwargs, RESERVED)
        trained_on = Rules(kwargs.pop("reward_clipping", True), kwargs.pop("episodic_life", True))
        rules = RAW if options.scoring else trained_on
        limit = TIME_LIMIT if options.max_episode_steps is None else options.max_episode_steps
        kwargs |= {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "reward_clipping": False,
            "max_num_frames_per_episode": NEVER,
        }

        def engine(seeds: Array, **changes: object) -> VectorEnv:
            from ale_py.vector_env import AtariVectorEnv

            def make() -> VectorEnv:
                return AtariVectorEnv(game, len(seeds), **{**kwargs, **changes})

            given = options.env_kwargs
            return checked_make(env_id, lambda: make_with_arguments(env_id, make, lambda: AtariVectorEnv, given))

        def games_of(count: int) -> AleEnv:
            first = engine(np.zeros(max(count, 1)))
            spaces = observation_reader(first.single_observation_space), action_writer(first.single_action_space)
            env = AleEnv(engine, spaces, count, device, env_id, limit, rules, presses_fire(game, kwargs))
            env.engine = first
            return env

        return in_groups(games_of, num_envs, device)


ADAPTER = AleAdapter()
