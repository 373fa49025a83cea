"""EnvPool's C++ thread pools: Atari games, MuJoCo, Box2D and classic control, by the ids that Gymnasium has for them.

EnvPool resets a finished row in the next step, which ignores the action and is not a transition. This adapter takes that step
at once and only for the finished rows, so that every row of every Step is real. EnvPool calls an episode truncated if it ends
by itself on the last step before the time limit; so the limit of the pool is one step longer than ours and is never reached. A
pool takes a seed only when it is made: a seeded reset makes a new pool.

Atari is prepared as in `ale`, but for how a game starts: no-ops come before FIRE, and the first stack repeats its only
frame where ale-py leaves the others black.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ...errors import UsageError, one_line
from ..registry import EnvOptions
from ..step_arrays import Array, StepArrays
from . import gym
from .actions import action_writer
from .atari import RAW, Rules, ThreadedEnv, has_game, installed_roms, presses_fire, required_rom, without_reserved
from .groups import in_groups
from .host import HostEnv
from .spaces import observation_reader

MUJOCO = (
    "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum", "Pusher",
    "Reacher", "Swimmer", "Walker2d",
)  # fmt: skip
TASKS = {
    *(f"{task}-{version}" for task in MUJOCO for version in ("v4", "v5")),
    "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3", "LunarLander-v3", "LunarLanderContinuous-v3",
    "Acrobot-v1", "CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
}  # fmt: skip
RESERVED = {
    "task": "it is in the id",
    "num_envs": "it is a setting of its own",
    "seed": "it is a setting of its own",
    "env_seed": "give seed, a setting of its own",
    "batch_size": "all environments are stepped together",
    "max_num_players": "there is one player",
    "max_episode_steps": "it is a setting of its own",
    "gray_scale": "frames are grey",
    "from_pixels": "record with backend gymnasium",
    "render_mode": "record with backend gymnasium",
}


class EnvPoolEnv(ThreadedEnv):
    """N environments in a pool, which is made anew at each seeded reset."""

    backend = "envpool"

    def _reset_engine(self, seeds: Array | None) -> tuple[Array, Mapping[str, Array]]:
        if seeds is not None:
            self.engine = None  # ends the threads of the old pool before the new one starts its own
            self.engine = self._factory(seeds)
        with ignored_precision_warning():
            return self.engine.reset()

    def _recv(self) -> StepArrays:
        batch, score, over, _, info = self.engine.recv()
        obs = self._read(batch)
        reward, terminated, late = self._outcome(score, over, info)
        rows = np.flatnonzero(over | late)
        final_obs = obs[rows]
        if len(rows):
            fresh, info = self.engine.reset(rows.astype(np.int32))
            obs[rows] = self._read(fresh, rows)
            self._note_start(rows, info)
        return StepArrays(obs, reward, terminated, late & ~terminated, rows, final_obs, score=score, over=over | late)

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Any:
        """Another of the same kind; for pictures, which EnvPool has only of games, the same task by Gymnasium."""
        if not drawn or self._rules is not None or not gym.ADAPTER.provides(self.name):
            return super().spawn(num_envs, seed, drawn)
        task = gym.ADAPTER.from_id(self.name, 1, self.device, EnvOptions(max_episode_steps=self.max_episode_steps))
        return task.spawn(num_envs, seed, drawn)


class EnvPoolAdapter:
    """Makes environments by their ids."""

    @property
    def games(self) -> list[str]:
        """The ROMs that are installed, with EnvPool or beside it."""
        return installed_roms("envpool", "atari/roms") or installed_roms("envpool_assets", "atari/roms")

    def provides(self, env_id: str) -> bool:
        """Whether EnvPool has such an id, decided without importing it."""
        return env_id in TASKS or has_game(env_id, self.games)

    def from_id(self, env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
        """The environment under an id. Of a game's env_kwargs, `reward_clip` and `episodic_life` set what training sees."""
        kwargs = without_reserved(options.env_kwargs, RESERVED)
        task, rules, fires = env_id, None, False
        if env_id not in TASKS:
            game = required_rom(env_id, self.games, TASKS)
            task = "".join(word.capitalize() for word in game.split("_")) + "-v5"
            trained_on = Rules(kwargs.pop("reward_clip", True), kwargs.pop("episodic_life", True))
            rules, fires = RAW if options.scoring else trained_on, presses_fire(game, kwargs)
        spec = pool_spec(env_id, task, kwargs)
        limit = spec.config.max_episode_steps if options.max_episode_steps is None else options.max_episode_steps

        def pool(seeds: Array, **changes: object) -> VectorEnv:
            import envpool

            settings = {**kwargs, "num_envs": len(seeds), "seed": seeds.tolist(), "max_episode_steps": limit + 1}
            return gym.checked_make(env_id, lambda: envpool.make_gymnasium(task, **settings))

        with ignored_precision_warning():
            spaces = observation_reader(spec.gymnasium_observation_space), action_writer(spec.gymnasium_action_space)

        def pool_of(count: int) -> EnvPoolEnv:
            env = EnvPoolEnv(pool, spaces, count, device, env_id, limit, rules, fires)
            env.solved_at = getattr(spec.config, "reward_threshold", None)
            return env

        return in_groups(pool_of, num_envs, device)


ADAPTER = EnvPoolAdapter()


@contextmanager
def ignored_precision_warning() -> Iterator[None]:
    """Without the warning that a bound of a space was rounded to float32, which EnvPool's always are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield


def pool_spec(env_id: str, task: str, kwargs: dict[str, Any]) -> Any:
    """EnvPool's description of a task, for which no environment is made."""
    try:
        import envpool

        return envpool.make_spec(task, **kwargs)
    except (AssertionError, ModuleNotFoundError, TypeError, ValueError) as error:
        raise UsageError(f"env {env_id!r} cannot be made: {one_line(error)}") from None
