"""Code shared by the two Atari backends: the ids of games, the rules that a learner sees, and pictures of games.

A lost life ends the episode for the learner, while the emulator continues the game. (The backends' own `episodic_life` changes
the game: ale-py starts a new one, EnvPool plays up to 30 unseen frames and drops their reward.) So training and scoring play by
the same rules, and reported scores are raw scores of whole games. The time limit is applied here: with the backends' own, the
last frame or the reason of the end is unreliable.

Some games wait for FIRE before each life, such as Breakout. The backends press it at the start of a game. On the first step of
every further life it is pressed here instead of the player's action; otherwise a greedy policy that has not learned to press
it would wait until the time limit. In all other respects this step is an ordinary transition.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from ...draw import stretched
from ...errors import UsageError, check_positive, near_matches
from ...types import Discrete
from ..step_arrays import Array
from .actions import ActionWriter
from .host import HostEnv
from .spaces import ObservationReader

ID = re.compile(r"(?:ALE/)?([A-Z]\w*)-v5|([A-Z]\w*)NoFrameskip-v4")
UNAMBIGUOUS_ID = re.compile(r"ALE/[A-Z]\w*-v5|[A-Z]\w*NoFrameskip-v4")
TWO_PLAYER = {"combat", "joust", "maze_craze", "warlords"}  # a single player's emulator exits the process on these
TIME_LIMIT = 27_000  # steps of a game: half an hour at 60 frames a second and 4 frames a step
PICTURE_HEIGHT = 160
FIRE = 1  # among the actions of games that have it
NO_FIRE = {  # and two board games, in which FIRE moves a piece
    "asterix", "backgammon", "crazy_climber", "freeway", "frogger", "journey_escape", "koolaid", "kung_fu_master",
    "lost_luggage", "ms_pacman", "pacman", "skiing", "surround", "tutankham", "video_checkers",
}  # fmt: skip


class Rules(NamedTuple):
    """The rewards and episodes that a learner sees. The reported score is always raw and of whole games."""

    clip_reward: bool = True  # to its sign
    life_is_episode: bool = True  # a lost life ends the episode

    def reward(self, score: Array) -> Array:
        return np.sign(score) if self.clip_reward else score

    def terminated(self, over: Array, lives: Array, lives_before: Array) -> Array:
        """`over` where the game is, whose lives are then already those of the next one."""
        return over | lost_life(lives, lives_before) if self.life_is_episode else over


RAW = Rules(clip_reward=False, life_is_episode=False)


class EngineFactory(Protocol):
    """Makes a simulator with one environment for each seed, with some settings changed if given."""

    def __call__(self, seeds: Array, **changes: object) -> VectorEnv: ...


class ThreadedEnv(HostEnv):
    """N environments of a simulator with its own threads and a time limit. With `rules`, they are Atari games.

    There is one thread per environment, at most one per core; results do not depend on their number.
    """

    engine: Any = None  # made by `factory`, at the first reset
    drawn_by: ClassVar[type[ThreadedEnv] | None] = None  # the kind that draws, where it is another one

    def __init__(
        self, factory: EngineFactory, spaces: tuple[ObservationReader, ActionWriter], num_envs: int, device: str | torch.device,
        name: str, max_episode_steps: int, rules: Rules | None = None, fires: bool = False,
    ) -> None:  # fmt: skip
        check_positive("max_episode_steps", max_episode_steps)
        self.name, self.max_episode_steps, self._rules, self._fires = name, max_episode_steps, rules, fires
        self._factory = factory
        self.drawable = rules is not None  # only games are drawn
        self.game_limit = None if rules is None else max_episode_steps
        self._set_spaces(*spaces, num_envs, device)
        self._clock = np.zeros(num_envs, np.int64)  # steps of the episode or game under way
        self._lives = np.zeros(num_envs, np.int32)
        self._new_life = np.zeros(num_envs, bool)  # rows whose next step is the first of a life, and FIRE is pressed

    def _reset(self, seeds: Array | None) -> Array:
        obs, info = self._reset_engine(seeds)
        self._note_start(slice(None), info)
        self._new_life[:] = False
        return self._read(obs)

    def _reset_engine(self, seeds: Array | None) -> tuple[Array, Mapping[str, Array]]:
        """What the engine's reset returns."""
        raise NotImplementedError

    def _spawn(self, num_envs: int, drawn: bool) -> Any:
        """A new adapter for scoring and pictures; Atari games are then whole games with raw scores."""
        spaces, rules = (self._observation, self._action), None if self._rules is None else RAW
        limit, kind = self.max_episode_steps, type(self) if self.drawn_by is None or not drawn else self.drawn_by
        twin = kind(self._factory, spaces, num_envs, self.device, self.name, limit, rules, self._fires)
        twin.solved_at = self.solved_at
        return twin

    def _note_start(self, rows: Any, info: Mapping[str, Any]) -> None:
        """Record that new games start in these rows. `info` is about the same rows."""
        self._clock[rows] = 0
        if self._rules is not None:
            self._lives[rows] = info["lives"]

    def _send(self, action: Array) -> None:
        """Send valid actions only: on others ale-py waits forever and EnvPool reads memory that is not its own."""
        spec = self.action
        if isinstance(spec, Discrete) and (action.min() < 0 or action.max() >= spec.n):
            row = int(np.flatnonzero((action < 0) | (action >= spec.n))[0])
            raise self.failure(row, action, f"there are only actions 0 to {spec.n - 1}")
        if self._new_life.any():
            action = np.where(self._new_life, FIRE, action).astype(action.dtype)
        self._send_engine(action)

    def _send_engine(self, action: Array) -> None:
        self.engine.send(action)

    def _outcome(self, score: Array, over: Array, info: Mapping[str, Any]) -> tuple[Array, Array, Array]:
        """(reward, terminated, rows that the clock cuts off) of one step."""
        self._clock += 1
        late = ~over & (self._clock >= self.max_episode_steps)
        if self._rules is None:
            return score, over, late
        lives, before = info["lives"], self._lives.copy()
        if self._fires:
            self._new_life = lost_life(lives, before) & ~over & ~late
        self._lives[:] = lives
        return self._rules.reward(score), self._rules.terminated(over, lives, before), late

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """(K, 160, 160, 3): the newest frame of each stack (K, 4, 84, 84) of a game, larger."""
        if self._rules is None:
            return super().draw(obs, action)
        return np.stack([stretched(frame, PICTURE_HEIGHT) for frame in obs[:, -1].cpu().numpy()])

    def draw_ended(self, obs: Tensor) -> Array | None:
        return self.draw(obs) if self._rules is not None else None

    def close(self) -> None:
        self.engine = None  # which ends its threads


def lost_life(lives: Array, lives_before: Array) -> Array:
    """Where a life was lost and another begins, or the game is over."""
    return (lives < lives_before) & (lives > 0)  # some games show none left for a few frames before they are over


def presses_fire(rom: str, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether FIRE is pressed at the start of a life: where the game has it, unless the engine's own setting says not to."""
    has_fire = rom not in NO_FIRE or env_kwargs.get("full_action_space", False)
    return bool(has_fire and env_kwargs.get("use_fire_reset", True) and not env_kwargs.get("continuous", False))


# ids and settings ----------------------------------------------------------------------------------------------------


def title(rom: str) -> str:
    """SpaceInvaders for space_invaders, as ale-py's ids have it."""
    return rom.title().replace("_", "")


def find_rom(env_id: str, roms: Iterable[str]) -> str | None:
    """The ROM for this id, or None if it is not among `roms`."""
    match = ID.fullmatch(env_id)
    return None if match is None else {title(rom): rom for rom in roms}.get(match[1] or match[2])


def has_game(env_id: str, roms: list[str]) -> bool:
    """Whether an id is that of one of these ROMs; where none are installed, whether it can only be a game's."""
    return find_rom(env_id, roms) is not None if roms else UNAMBIGUOUS_ID.fullmatch(env_id) is not None


def required_rom(env_id: str, roms: list[str], tasks: Iterable[str] = ()) -> str:
    """The ROM for this id, or a UsageError with similar ids; `tasks` are ids of other kinds."""
    rom = find_rom(env_id, roms)
    if rom is None and not roms and has_game(env_id, roms):
        raise UsageError(f"env {env_id!r} cannot be made: its engine is not installed, or has no ROMs")
    if rom is None:
        raise UsageError(f"unknown env {env_id!r}.{near_matches(env_id, [*tasks, *(f'{title(r)}-v5' for r in roms)])}")
    return rom


def installed_roms(package: str, folder: str) -> list[str]:
    """The ROMs in a package, found without importing it, which takes a second."""
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return sorted({file.stem for place in places for file in Path(place, folder).glob("*.bin")} - TWO_PLAYER)


def without_reserved(env_kwargs: Mapping[str, Any], reserved: Mapping[str, str]) -> dict[str, Any]:
    """The keywords for an engine. One that the adapter decides is a UsageError with what to do instead."""
    for name in reserved.keys() & env_kwargs.keys():
        raise UsageError(f"env_kwargs {name!r} cannot be set: {reserved[name]}")
    return dict(env_kwargs)
