"""What the two Atari engines share: the ids of games, what a learner is told of them, and pictures of them.

Both play a game whole and never touch it when a life is lost: the learner is told that its episode is over, the emulator
goes on. (The engines' own `episodic_life` does touch it: ale-py starts a new game, EnvPool plays up to 30 unseen frames
and drops their reward.) So training and scoring play by the same rules, and what is reported is the raw score of whole
games. A game is cut off by a clock here, not by the engine's, whose last frame or whose cause of death is then unreliable.

Some games wait for FIRE before each life: Breakout serves no ball without it. The engines press it where a game starts. On
the first step of every further life it is pressed here, in place of the player's action, or a greedy policy that has not
learned to press it would wait until the time limit. The step is an ordinary transition in all other respects.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ...draw import stretched
from ...errors import UsageError, near_matches
from ...types import Discrete
from ..options import Array
from .host import HostEnv

ID = re.compile(r"(?:ALE/)?([A-Z]\w*)-v5|([A-Z]\w*)NoFrameskip-v4")
UNMISTAKABLE = re.compile(r"ALE/[A-Z]\w*-v5|[A-Z]\w*NoFrameskip-v4")
FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}  # a single player's emulator exits the process on these
TIME_LIMIT = 27_000  # steps of a game: half an hour at 60 frames a second and 4 frames a step
PICTURE_HEIGHT = 160
FIRE = 1  # among the actions of games that have it
NO_FIRE = {  # and two board games, in which FIRE moves a piece
    "asterix", "backgammon", "crazy_climber", "freeway", "frogger", "journey_escape", "koolaid", "kung_fu_master",
    "lost_luggage", "ms_pacman", "pacman", "skiing", "surround", "tutankham", "video_checkers",
}  # fmt: skip


class Rules(NamedTuple):
    """What the learner is told. The reported score is raw and of whole games in any case."""

    clipped: bool = True  # of a reward only its sign
    by_life: bool = True  # that a lost life ends the episode

    def reward(self, score: Array) -> Array:
        return np.sign(score) if self.clipped else score

    def terminated(self, over: Array, lives: Array, lives_before: Array) -> Array:
        """`over` where the game is, whose lives are then already those of the next one."""
        return over | lost_life(lives, lives_before) if self.by_life else over


def lost_life(lives: Array, lives_before: Array) -> Array:
    """Where a life was lost and another begins, or the game is over."""
    return (lives < lives_before) & (lives > 0)  # some games show none left for a few frames before they are over


def fires(rom: str, env_kwargs: Mapping[str, Any]) -> bool:
    """Whether FIRE is pressed at the start of a life: where the game has it, unless the engine's own setting says not to."""
    has_it = rom not in NO_FIRE or env_kwargs.get("full_action_space", False)
    return bool(has_it and env_kwargs.get("use_fire_reset", True) and not env_kwargs.get("continuous", False))


def with_fire(action: Array, begins: Array) -> Array:
    """The actions, with FIRE where a life begins."""
    return np.where(begins, FIRE, action).astype(action.dtype) if begins.any() else action


# ids -----------------------------------------------------------------------------------------------------------------


def title(rom: str) -> str:
    """SpaceInvaders for space_invaders, as ale-py's ids have it."""
    return rom.title().replace("_", "")


def rom_of(env_id: str, roms: Iterable[str]) -> str | None:
    """The ROM that an id means, if it is among these."""
    match = ID.fullmatch(env_id)
    return None if match is None else {title(rom): rom for rom in roms}.get(match[1] or match[2])


def needed(env_id: str, roms: list[str], tasks: Iterable[str] = ()) -> str:
    """The same, or an error that says what there is besides; `tasks` are ids of other kinds."""
    rom = rom_of(env_id, roms)
    if rom is None and unmistakable(env_id) and not roms:
        raise UsageError(f"env {env_id!r} cannot be made: its engine is not installed, or has no ROMs")
    if rom is None:
        raise UsageError(f"unknown env {env_id!r}.{near_matches(env_id, [*tasks, *(f'{title(r)}-v5' for r in roms)])}")
    return rom


def unmistakable(env_id: str) -> bool:
    """Whether an id can only be a game's, which is all that can be said of it where no ROMs are installed."""
    return UNMISTAKABLE.fullmatch(env_id) is not None


def shipped(package: str, folder: str) -> list[str]:
    """The ROMs in a package, found without importing it, which takes a second."""
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return sorted({file.stem for place in places for file in Path(place, folder).glob("*.bin")} - FOR_TWO)


# settings and actions ------------------------------------------------------------------------------------------------


def time_limit(asked: int | None, usual: int) -> int:
    """Steps after which an episode is cut off."""
    if asked is not None and asked < 1:
        raise UsageError(f"max_episode_steps {asked} is not positive: give at least 1")
    return usual if asked is None else asked


def unreserved(env_kwargs: Mapping[str, Any], reserved: Mapping[str, str]) -> dict[str, Any]:
    """The keywords for an engine; those that the adapter must decide are refused, each with what to do instead."""
    for name in reserved.keys() & env_kwargs.keys():
        raise UsageError(f"env_kwargs {name!r} cannot be set: {reserved[name]}")
    return dict(env_kwargs)


def checked(env: HostEnv, action: Array) -> Array:
    """The actions, all of which exist: on others ale-py waits forever and EnvPool reads memory that is not its own."""
    spec = env.action
    if isinstance(spec, Discrete) and (action.min() < 0 or action.max() >= spec.n):
        row = int(np.flatnonzero((action < 0) | (action >= spec.n))[0])
        raise env.failure(row, action, f"there are only actions 0 to {spec.n - 1}")
    return action


# pictures ------------------------------------------------------------------------------------------------------------


def pictures(obs: Tensor) -> Array:
    """(K, 160, 160, 3): the newest frame of each stack (K, 4, 84, 84), larger."""
    return np.stack([stretched(frame, PICTURE_HEIGHT) for frame in obs[:, -1].cpu().numpy()])
