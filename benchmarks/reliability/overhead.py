"""What checkpoints and the guard against numbers that are not finite cost: their share of training's wall time on CartPole.

python benchmarks/reliability/overhead.py           # four minutes
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from processes import folder

import tightrope as tr
from tightrope.algorithms.ppo import ppo
from tightrope.engine.metrics import health
from tightrope.engine.state import Snapshot
from tightrope.training.run_directory import RunDirectory

MOST = 0.02  # of the wall time


@contextmanager
def timed_saves() -> Iterator[list[float]]:
    """The seconds of every save made inside."""
    seconds: list[float] = []
    save = RunDirectory.save

    def timed(*args: Any) -> None:
        began = time.perf_counter()
        save(*args)
        seconds.append(time.perf_counter() - began)

    RunDirectory.save = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        RunDirectory.save = save  # type: ignore[method-assign]


def trained(path: Path, **settings: Any) -> tuple[float, list[float]]:
    """(wall time, seconds of each save) of training CartPole with its preset."""
    agent = tr.PPO("CartPole-v1", device="cpu", **settings)
    with timed_saves() as saves:
        began = time.perf_counter()
        agent.learn(run_dir=path, quiet=True)
        return time.perf_counter() - began, saves


def guard_cost() -> tuple[float, float, float]:
    """Median seconds of (a phase, the guard's sums over it, its copy of the state), in the midst of training."""
    agent = tr.PPO("CartPole-v1", device="cpu", threads=1)
    torch.set_num_threads(1)
    state, config = agent.state, agent.config.algorithm
    snapshot, marks = Snapshot(state), []
    began = time.perf_counter()
    for metrics in ppo(state, config):
        means = torch.stack([*metrics.terms, metrics.grad_norm])
        ended = time.perf_counter()
        health(state, state.rollout.real, means)
        summed = time.perf_counter()
        snapshot.take()
        copied = time.perf_counter()
        marks.append((ended - began, summed - ended, copied - summed))
        began = time.perf_counter()
    phase, sums, copy = (statistics.median(times) for times in zip(*marks, strict=True))
    return phase, sums, copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75.0, help="of training at the default interval")
    parser.add_argument("--pairs", type=int, default=3, help="of shorter runs, side by side with and without saving")
    options = parser.parse_args()
    phase, sums, copy = guard_cost()
    print(f"The guard: sums {1e6 * sums:.0f} us and a copy {1e6 * copy:.0f} us, "
          f"{(sums + copy) / phase:.2%} of a phase of {1e3 * phase:.1f} ms.")  # fmt: skip
    with folder() as path:
        short = [trained(path / f"preset{i}") for i in range(5)]
        steps = tr.load(path / "preset0").steps
        share = statistics.median(sum(saves) / wall for wall, saves in short)
        wall, saves = statistics.median(w for w, _ in short), statistics.median(s for _, found in short for s in found)
        print(
            f"The preset's run of {steps:,} steps: {wall:.2f} s, of which its one save {1000 * saves:.0f} ms, {share:.2%}."
        )

        _, many = trained(path / "many", save_seconds=0)
        print(
            f"One save: median {1000 * statistics.median(many):.1f} ms, longest {1000 * max(many):.1f} ms of {len(many)}."
        )

        total = int(steps * options.seconds / wall)
        wall, found = trained(path / "long", total_timesteps=total)
        long_share = sum(found) / wall
        print(f"A run of {wall:.0f} s, {total:,} steps, one save every 30 s: {len(found)} saves, {1000 * sum(found):.0f} ms, "
              f"{long_share:.3%} of the wall time.")  # fmt: skip

        ratios = []
        for pair in range(options.pairs):
            walls = {}
            for name, every in (("without", 1e9), ("with", 1.0))[:: 1 if pair % 2 else -1]:
                walls[name], _ = trained(path / f"{name}{pair}", total_timesteps=total // 8, save_seconds=every)
            ratios.append(walls["with"] / walls["without"])
        print(f"Wall time with a save every second, thirty times as often, over that with none but the last: "
              f"{', '.join(f'{ratio:.3f}' for ratio in ratios)}.")  # fmt: skip
    sys.exit(long_share > MOST)


if __name__ == "__main__":
    main()
