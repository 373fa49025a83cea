"""A video of the greedy policy: one cell per environment, each for its first episode, tinted once that is over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..draw import PINK, grid
from ..engine import apart, choose_threads, threads
from ..models import ActorCritic
from ..types import Env
from ..view import Video

TINT = 0.25
MOST_FRAMES = 2_000


@torch.no_grad()
def record(policy: ActorCritic, env: Env, path: Path, episodes: int, seed: int, fps: int = 30) -> int:
    """Write the first episode of `episodes` fresh copies of `env` to an MP4, side by side; returns the frames written."""
    with threads(choose_threads(policy, episodes)), apart(seed, env.device):
        return _film(policy, env.spawn(episodes, seed, drawn=True), path, episodes, seed, fps)


def _film(policy: ActorCritic, env: Env, path: Path, episodes: int, seed: int, fps: int) -> int:
    obs = env.reset(seed=seed)
    running = np.ones(episodes, bool)
    cells: np.ndarray | None = None
    columns = int(np.ceil(np.sqrt(episodes)))
    count = 0
    with Video(path, fps) as video:
        while running.any() and count < MOST_FRAMES:
            action = policy.head.to_env(policy.distribution(obs).mode())
            frames = env.draw(obs, action)
            cells = frames if cells is None else np.where(running[:, None, None, None], frames, cells)
            video.add(grid(cells, columns))
            step = env.step(action)
            ended = running & (step.terminated | step.truncated).cpu().numpy()
            cells[ended] = ((1 - TINT) * cells[ended] + TINT * np.array(PINK)).astype(np.uint8)
            running &= ~ended
            obs, count = step.obs, count + 1
    env.close()
    return count
