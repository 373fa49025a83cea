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
        health(state, state.rollout.valid, means)
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
    options = parser.parse_args()
    phase, sums, copy = guard_cost()
    share = (sums + copy) / phase
    print(
        f"The guard: sums {1e6 * sums:.0f} us, a copy {1e6 * copy:.0f} us, {share:.2%} of a phase of {1e3 * phase:.1f} ms."
    )
    with folder() as path:
        wall, _ = trained(path / "preset")
        _, many = trained(path / "many", save_seconds=0)
        each = [1000 * seconds for seconds in many]
        print(f"One save: median {statistics.median(each):.1f} ms, longest {max(each):.1f} ms of {len(each)}.")
        total = int(tr.load(path / "preset").steps * options.seconds / wall)
        wall, saves = trained(path / "long", total_timesteps=total)
        share = sum(saves) / wall
        print(
            f"A run of {wall:.0f} s, {total:,} steps, one save every 30 s: {len(saves)} saves, {share:.3%} of the wall time."
        )
    sys.exit(share > MOST)


if __name__ == "__main__":
    main()
