"""What videos cost: 500 steps of sixteen environments, drawn as a grid and encoded. watching.py has training beside it.

python benchmarks/video_speed.py
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import tightrope as tr
from tightrope.files import Place
from tightrope.logging.video.renderer import Film, PhaseFrames

STEPS, CELLS = 500, 16
DRAWN = ("CartPole-v1", "DanceCart-v0", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "CartDoublePendulum-v0")


def rollout(env_id: str) -> tuple[tr.types.Env, PhaseFrames]:
    """Random actions for 500 steps."""
    env = tr.envs.make(env_id, num_envs=CELLS)
    obs, seen, given, ended = env.reset(seed=1), [], [], []
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        choices = getattr(env.action, "n", None)
        if choices is None:
            action = torch.rand(CELLS, *env.action.shape, generator=generator) * 2 - 1
        else:
            action = torch.randint(0, choices, (CELLS,), generator=generator)
        step = env.step(action)
        for kept, what in ((seen, obs), (given, action), (ended, step.terminated | step.truncated)):
            kept.append(what.numpy().copy())
        obs = step.obs
    return env, PhaseFrames(np.stack(seen), np.stack(given), np.stack(ended), 1, 0, CELLS)


def filmed(env_id: str, folder: Path) -> tuple[float, float, int]:
    """(seconds by the clock, of processors, bytes) for one grid of 500 steps."""
    env, glimpse = rollout(env_id)
    env.draw(torch.from_numpy(glimpse.obs[0]))  # what is imported and painted once
    place = Place(folder) / f"{env_id.replace('/', '-')}.mp4"
    wall, processor = time.perf_counter(), time.process_time()
    film = Film(place, env, env_id, 30, np.zeros(1))
    film.add(glimpse)
    film.finish(place)
    return time.perf_counter() - wall, time.process_time() - processor, place.path.stat().st_size


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(f"{CELLS} cells, {STEPS} steps, drawn and encoded")
        for env_id in (*DRAWN, "ALE/Breakout-v5"):
            wall, processor, size = min(filmed(env_id, Path(folder)) for _ in range(3))
            print(f"  {env_id:22s} {wall:5.2f} s   {processor:5.2f} s of processors   {size / 1024:6.0f} KiB")


if __name__ == "__main__":
    main()
