"""What torchrun costs on one GPU: the same training as a plain process, under torchrun, and with all its messages sent.

    python benchmarks/scaling/one_gpu.py [--device cuda] [--num-envs 4096] [--modes graph max] [--repeats 3]

Each is a process of its own, by turns. Under torchrun a single rank has nobody to talk to and sends nothing; `talking` makes
it send every message all the same, through NCCL and from within the captured phase, which is what a rank of many does but
for the way to the others. Prints steps/s and the shares of the plain process's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

WAYS = {
    "plain": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
    "talking": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
}


def measure(way: str, device: str, num_envs: int, mode: str, seconds: float) -> None:
    """Train for a while in this process and print the speed."""
    import tightrope as tr
    from tightrope.algorithms.ppo import ppo
    from tightrope.engine import distributed, threads

    world = distributed.join(collectives=True if way == "talking" else None)
    agent = tr.PPO(
        "CartPole-v1", device=device, accelerate=mode, num_envs=num_envs, num_steps=32, num_minibatches=4,
        update_epochs=4, total_timesteps=num_envs * 32 * 1_000_000, seed=451, norm_obs=True,
    )  # fmt: skip
    phases = 0
    with threads(1):
        loop = ppo(agent.state, agent.config.algorithm)
        for _ in range(6):
            metrics = next(loop)
        wait(metrics)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(10):
                metrics = next(loop)
            wait(metrics)
            phases += 10
        taken = time.perf_counter() - began
    kl, unit = float(metrics.terms.approx_kl), agent.state.runtime.unit
    found = {
        "way": way,
        "sends": world.is_distributed,
        "speed": phases * agent.config.algorithm.batch_size / taken,
        "kl": kl,
    }
    print("FOUND " + json.dumps({**found, "captured": unit, "phase_ms": 1e3 * taken / phases}), flush=True)
    distributed.leave()


def wait(metrics: Any) -> None:
    float(metrics.grad_norm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--modes", nargs="+", default=["graph", "max"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        measure(args.way, args.device, args.num_envs, args.modes[0], args.seconds)
        return
    print(f"CartPole-v1, PPO, {args.num_envs} envs x 32 steps, {args.device}, torch {torch.__version__}")
    for mode in args.modes:
        speeds: dict[str, list[float]] = {way: [] for way in WAYS}
        phase: dict[str, float] = {}
        for _ in range(args.repeats):
            for way, launcher in WAYS.items():
                words = [*launcher, __file__, "--way", way, "--device", args.device, "--num-envs", str(args.num_envs)]
                done = subprocess.run(
                    [*words, "--modes", mode, "--seconds", str(args.seconds)], capture_output=True, text=True
                )
                line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
                if line is None:
                    sys.exit(f"{way} failed:\n{done.stderr[-3000:]}")
                found = json.loads(line.removeprefix("FOUND "))
                assert found["sends"] == (way == "talking")
                speeds[way].append(found["speed"])
                phase[way] = found["phase_ms"]
        plain = statistics.median(speeds["plain"])
        for way, measured in speeds.items():
            middle = statistics.median(measured)
            print(
                f"{mode:<8} {way:<9} {middle:>14,.0f} steps/s  {middle / plain:.3f} of plain  a phase {phase[way]:.3f} ms  "
                f"({', '.join(f'{x:,.0f}' for x in measured)})"
            )


if __name__ == "__main__":
    main()
