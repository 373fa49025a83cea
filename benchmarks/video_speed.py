"""What videos cost: a grid of sixteen drawn and encoded, and training with and without them.

python benchmarks/video_speed.py            # 500 steps of sixteen environments each, then CartPole by its preset
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import tightrope as tr
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
    path = folder / f"{env_id.replace('/', '-')}.mp4"
    wall, processor = time.perf_counter(), time.process_time()
    film = Film(path, env, env_id, 30)
    film.add(glimpse)
    film.close(path)
    return time.perf_counter() - wall, time.process_time() - processor, path.stat().st_size


def trained(video_every: int | None, folder: Path) -> tuple[float, float]:
    """Seconds of one whole training of CartPole by its preset, and of the trainer's processor."""
    agent = tr.PPO("CartPole-v1", video_every=video_every, device="cpu")
    wall, processor = time.perf_counter(), time.process_time()
    agent.learn(run_dir=folder, quiet=True)
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        print(f"{CELLS} cells, {STEPS} steps, drawn and encoded")
        for env_id in (*DRAWN, "ALE/Breakout-v5"):
            runs = [filmed(env_id, folder) for _ in range(3)]
            wall, processor, size = min(runs)
            print(f"  {env_id:22s} {wall:5.2f} s   {processor:5.2f} s of processors   {size / 1024:6.0f} KiB")
        trained(0, folder / "warm")
        pairs = [(trained(0, folder / f"a{i}"), trained(None, folder / f"b{i}")) for i in range(repeats)]
        print(f"CartPole-v1 by its preset, medians of {repeats} pairs; the drawing process needs a core of its own")
        for i, what in enumerate(("by the clock", "of the trainer's processor")):
            without, with_videos = (statistics.median(pair[k][i] for pair in pairs) for k in (0, 1))
            ratio = statistics.median(b[i] / a[i] for a, b in pairs)
            print(f"  {without:.2f} s without videos, {with_videos:.2f} s with, {what}: ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
