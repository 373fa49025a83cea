"""Record a policy in a fresh environment as an MP4 video: episodes one after the other, or side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..draw import captioned_grid, cell_scale, render_scale
from ..engine import choose_threads, isolated_rng, threads
from ..envs import TensorEnv
from ..envs.validate import draw_frames
from ..envs.with_memory import with_memory, without_memory
from ..errors import check_count, plural
from ..files import Place
from ..logging import Video
from ..models import ActorCritic
from ..types import Env
from .signals import Interrupts

SIDE_BY_SIDE = 16  # default number of episodes in a grid
MAX_GRID_EPISODES = 64
MAX_VIDEO_FRAMES = 20_000
FASTEST = 60  # frames a second
HOLD = 12  # frames for which the last step of an episode is shown
PINK = 0.3  # strength of the tint of these frames


@dataclass(frozen=True, kw_only=True)
class Shot:
    """Options of a video."""

    episodes: int | None = None
    """Episodes; one, or 16 side by side, if not given."""
    grid: bool = False
    """Show episodes side by side instead of one after the other."""
    every: int | None = None
    """Show only every n-th step, which speeds the video up; chosen for real time if not given."""
    fps: int | None = None
    """Frames per second; chosen for real time, 60 at most, if not given."""
    stochastic: bool = False
    """Sample actions as in training instead of taking the likeliest."""

    def __post_init__(self) -> None:
        most = {"episodes": MAX_GRID_EPISODES if self.grid else 1_000, "every": 1_000, "fps": 240}
        for name, limit in most.items():
            if (value := getattr(self, name)) is not None:
                check_count(name, value, limit)

    @property
    def count(self) -> int:
        return self.episodes or (SIDE_BY_SIDE if self.grid else 1)

    def tempo(self, pace: int) -> tuple[int, int]:
        """(n to show every n-th step, frames per second) for an environment with `pace` steps per second."""
        real_time = -(-pace // (self.fps or FASTEST))
        return self.every or real_time, self.fps or max(1, round(pace / real_time))


@dataclass(frozen=True)
class RecordedVideo:
    """A video that was written."""

    path: Path
    frames: int
    returns: list[float]  # of each episode, up to the last frame shown

    def __str__(self) -> str:
        returns = ", ".join(f"{total:.2f}" for total in self.returns[:8]) + (", ..." if len(self.returns) > 8 else "")
        return f"{self.path}: {plural(self.frames, 'frame')}, return {returns}"


@torch.no_grad()
def record_video(
    policy: ActorCritic, env: Env, path: Path, seed: int, shot: Shot | None = None, title: str = ""
) -> RecordedVideo:
    """Record a policy in fresh copies of `env`. The first signal raises Interrupted: pygame, with which many environments
    draw, would otherwise swallow SIGTERM."""
    shot = shot or Shot()
    cells = shot.count if shot.grid else 1
    with (
        Interrupts() as interrupts,
        threads(choose_threads(policy, cells)),
        isolated_rng(seed, env.device),
        render_scale(cell_scale(cells)),
        interrupts.raised(),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        return film(policy, env.spawn(cells, seed, drawn=True), Place.of(path), seed, shot, title)


def film(
    policy: ActorCritic, env: Env, place: Place, seed: int, shot: Shot, title: str, frames: int = MAX_VIDEO_FRAMES,
    seconds: float = math.inf, encoder_threads: int = 0,
) -> RecordedVideo:  # fmt: skip
    """Play and draw episodes up to a number of frames and for some seconds, and close the environment."""
    every, fps = shot.tempo(env.pace)
    stage, end = Stage(policy, env, seed, shot, every, title), time.monotonic() + seconds
    try:
        pictures = stage.pictures()
        first = next(pictures)  # which may fail: then there is no folder
        if place.parts[1:]:  # a folder inside a directory that exists
            place.parent.mkdir()
        with Video(place, fps, encoder_threads) as video:
            for picture in chain([first], pictures):
                video.add(picture)
                if video.frames >= frames or time.monotonic() > end:
                    break
    finally:
        env.close()
    return RecordedVideo(place.path, video.frames, stage.returns)


class Stage:
    """Episodes being played and drawn."""

    def __init__(self, policy: ActorCritic, env: Env, seed: int, shot: Shot, every: int, title: str) -> None:
        self.policy, self.env = policy, with_memory(env, policy.memory_rows)
        self.seed, self.shot, self.every, self.title = seed, shot, every, title
        self.generator = torch.Generator(env.device).manual_seed(seed)
        self.finished: list[float] = []
        self.total = np.zeros(env.num_envs)

    @property
    def returns(self) -> list[float]:
        return self.total.tolist() if self.shot.grid else [*self.finished, *self.total.tolist()][: self.shot.count]

    def pictures(self) -> Iterator[np.ndarray]:
        obs = self.env.reset(seed=self.seed)
        for number in range(1 if self.shot.grid else self.shot.count):
            obs = yield from self.play(obs, number)
            if not self.shot.grid:
                self.finished.append(float(self.total[0]))
                self.total[:] = 0.0

    def play(self, obs: Tensor, number: int) -> Generator[np.ndarray, None, Tensor]:
        """Play one episode in every environment. Finished ones are shown as they ended, then tinted. Returns the next
        observation."""
        running, tinted = np.ones(self.env.num_envs, bool), np.zeros(self.env.num_envs, bool)
        cells: np.ndarray | None = None
        t = 0
        while running.any():
            action = self.action(obs)
            if t % self.every == 0:
                frames = self.draw(obs, action)
                cells = frames if cells is None else np.where(running[:, None, None, None], frames, cells)
                yield self.picture(cells, tinted, number, t)
                tinted = ~running
            step = self.env.step(action)
            self.total += np.where(running, step.reward.cpu().numpy(), 0.0)
            ended = running & (step.terminated | step.truncated).cpu().numpy()
            running, obs, t = running & ~ended, step.obs, t + 1
            if ended.any() and cells is not None and (last := self.draw_ended(step.final_obs, action)) is not None:
                cells = np.where(ended[:, None, None, None], last, cells)
        assert cells is not None
        yield self.picture(cells, tinted, number, t)
        end = self.picture(cells, ~running, number, t)
        for _ in range(HOLD):
            yield end
        return obs

    def draw(self, obs: Tensor, action: Tensor) -> np.ndarray:
        return draw_frames(self.env, obs, action) if isinstance(self.env, TensorEnv) else self.env.draw(obs, action)

    def draw_ended(self, final_obs: Tensor, action: Tensor) -> np.ndarray | None:
        """The states in which episodes ended, in the rows of these; None if the engine has gone on and forgotten them."""
        inner, rows = without_memory(self.env), self.policy.memory_rows
        if isinstance(inner, TensorEnv):
            return self.draw(final_obs, action)
        kept = getattr(inner, "draw_ended", None)
        found: np.ndarray | None = (
            None if kept is None else kept(final_obs if rows is None else rows.observed(final_obs))
        )
        return found

    def action(self, obs: Tensor) -> Tensor:
        noise = self.policy.head.noise((len(obs),), self.generator) if self.shot.stochastic else None
        return self.policy.act(obs, noise)[1]

    def picture(self, cells: np.ndarray, tinted: np.ndarray, number: int, t: int) -> np.ndarray:
        if self.shot.grid:
            words = f"step {t:,}   mean return {self.total.mean():,.1f}"
        else:
            episode = f"episode {number + 1}   " if self.shot.count > 1 else ""
            words = f"{episode}step {t:,}   return {self.total[0]:,.1f}"
        return captioned_grid(cells, np.where(tinted, PINK, 0.0).tolist(), words, self.title)
