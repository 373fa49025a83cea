"""EnvPool's C++ thread pools: Atari games, MuJoCo, Box2D and classic control, by the ids that Gymnasium has for them.

EnvPool resets a finished row in the step after: the action is ignored and the row is no transition. Here that step is
taken at once and for the finished rows alone, so that every row of every Step is real. It also has no name for an episode
that ends by itself on the last step before the time limit, which it calls truncated; so the pool's limit is one step
longer than ours and is never reached. Seeds exist only when a pool is made: a seeded reset makes a new one.

Atari is prepared as in `ale`, but for how a game starts: no-ops come before FIRE, and the first stack repeats its only
frame where ale-py leaves the others black.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ...errors import UsageError
from ..options import Array, EnvOptions
from ..step_arrays import Answer
from . import gym
from .atari import (
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
from .host import HostEnv, one_line
from .spaces import Action, Observation, action, observation

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


class EnvPoolEnv(HostEnv):
    """N environments; `factory` makes a pool of them from their seeds. With `rules`, they are games.

    Threads: one per environment, at most one per core; what happens does not depend on how many.
    """

    backend = "envpool"

    def __init__(
        self,
        factory: Callable[[Array], VectorEnv],
        spaces: tuple[Observation, Action],
        num_envs: int,
        device: str | torch.device,
        name: str,
        max_episode_steps: int,
        rules: Rules | None = None,
        fires: bool = False,
    ) -> None:
        self.name, self._factory, self._rules, self._fires = name, factory, rules, fires
        self.drawable = rules is not None  # which are of games
        self.max_episode_steps = max_episode_steps
        self._describe(*spaces, num_envs, device)
        self.engine: Any = None  # until there are seeds
        self._clock = np.zeros(num_envs, np.int64)  # steps of the episode under way
        self._lives = np.zeros(num_envs, np.int32)
        self._begins = np.zeros(num_envs, bool)  # where the next step is the first of a life, and FIRE is pressed

    def _restart(self, seeds: Array | None) -> Array:
        if seeds is not None:
            self.engine = None  # ends the threads of the old pool before the new one starts its own
            self.engine = self._factory(seeds)
        with unwarned():
            obs, info = self.engine.reset()
        self._clock[:], self._begins[:] = 0, False
        if self._rules is not None:
            self._lives[:] = info["lives"]
        return self._read(obs)

    def _send(self, action: Array) -> None:
        self.engine.send(with_fire(checked(self, action), self._begins))

    def _recv(self) -> Answer:
        shown, score, over, _, info = self.engine.recv()
        obs = self._read(shown)
        self._clock += 1
        late = ~over & (self._clock >= self.max_episode_steps)
        reward, terminated = score, over
        if self._rules is not None:
            reward, terminated = self._rules.reward(score), self._rules.terminated(over, info["lives"], self._lives)
            if self._fires:
                self._begins = lost_life(info["lives"], self._lives) & ~over & ~late
            self._lives[:] = info["lives"]
        rows = np.flatnonzero(over | late)
        final_obs = obs[rows]
        if len(rows):
            fresh, info = self.engine.reset(rows.astype(np.int32))
            obs[rows] = self._read(fresh, rows)
            self._clock[rows] = 0
            if self._rules is not None:
                self._lives[rows] = info["lives"]
        return Answer(obs, reward, terminated, late & ~terminated, rows, final_obs, score=score, over=over | late)

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Any:
        """Another of the same kind; for pictures, which EnvPool has only of games, the same task by Gymnasium."""
        if not drawn or self._rules is not None or not gym.known(self.name):
            return super().spawn(num_envs, seed, drawn)
        same = gym.from_id(self.name, 1, self.device, EnvOptions(max_episode_steps=self.max_episode_steps))
        return same.spawn(num_envs, seed, drawn)

    def _twin(self, num_envs: int, drawn: bool) -> Self:
        """For scoring and pictures: of Atari whole games and raw scores."""
        spaces = self._observation, self._action
        rules = None if self._rules is None else Rules(clipped=False, by_life=False)
        limit = self.max_episode_steps
        twin = type(self)(self._factory, spaces, num_envs, self.device, self.name, limit, rules, self._fires)
        twin.solved_at = self.solved_at
        return twin

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """What the player of a game saw last."""
        return pictures(obs) if self._rules is not None else super().draw(obs, action)

    def close(self) -> None:
        self.engine = None  # which ends its threads


# ways in -------------------------------------------------------------------------------------------------------------


def games() -> list[str]:
    """The ROMs that are installed, with EnvPool or beside it."""
    return shipped("envpool", "atari/roms") or shipped("envpool_assets", "atari/roms")


def known(env_id: str) -> bool:
    """Whether EnvPool has such an id, decided without importing it."""
    installed = games()
    return env_id in TASKS or (rom_of(env_id, installed) is not None if installed else unmistakable(env_id))


def from_id(env_id: str, num_envs: int, device: str | torch.device, options: EnvOptions) -> HostEnv:
    """The environment under an id. Of a game's env_kwargs, `reward_clip` and `episodic_life` set what training sees."""
    kwargs, rules = unreserved(options.env_kwargs, RESERVED), None
    task, pressed = env_id, False
    if env_id not in TASKS:
        game = needed(env_id, games(), TASKS)
        task = "".join(word.capitalize() for word in game.split("_")) + "-v5"
        rules = Rules(kwargs.pop("reward_clip", True), kwargs.pop("episodic_life", True))
        rules = Rules(clipped=False, by_life=False) if options.scoring else rules
        pressed = fires(game, kwargs)
    spec = described(env_id, task, kwargs)
    limit = time_limit(options.max_episode_steps, spec.config.max_episode_steps)

    def pool(seeds: Array) -> Any:
        import envpool

        settings = {**kwargs, "num_envs": len(seeds), "seed": seeds.tolist(), "max_episode_steps": limit + 1}
        return made(env_id, lambda: envpool.make_gymnasium(task, **settings))

    with unwarned():
        spaces = observation(spec.gymnasium_observation_space), action(spec.gymnasium_action_space)

    def pool_of(count: int) -> EnvPoolEnv:
        env = EnvPoolEnv(pool, spaces, count, device, env_id, limit, rules, pressed)
        env.solved_at = getattr(spec.config, "reward_threshold", None)
        return env

    return in_groups(pool_of, num_envs, device)


@contextmanager
def unwarned() -> Iterator[None]:
    """Without the warning that a bound of a space was rounded to float32, which EnvPool's always are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield


def described(env_id: str, task: str, kwargs: dict[str, Any]) -> Any:
    """EnvPool's description of a task, for which no environment needs to be made."""
    try:
        import envpool

        return envpool.make_spec(task, **kwargs)
    except (AssertionError, ModuleNotFoundError, TypeError, ValueError) as error:
        raise UsageError(f"env {env_id!r} cannot be made: {one_line(error)}") from None
