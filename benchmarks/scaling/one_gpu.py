"""What torchrun costs on one GPU: the same training as a plain process, under torchrun, and with all its messages sent.

    python benchmarks/scaling/one_gpu.py [--device cuda] [--num-envs 4096] [--modes graph max] [--repeats 3]

Each is a process of its own, by turns. Under torchrun a single rank has nobody to talk to and sends nothing; `talking` makes
it send every message all the same, through NCCL and from within the captured phase, which is what a rank of many does but
for the way to the others. Prints steps/s and the shares of the plain process's.
"""

import argparse
import statistics
import subprocess
import sys
import time
from itertools import islice

import torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
WAYS = {"plain": [sys.executable], "torchrun": TORCHRUN, "talking": TORCHRUN}


def measure(way: str, device: str, num_envs: int, mode: str, seconds: float) -> None:
    """Train for a while in this process and print the speed."""
    import tightrope as tr
    from tightrope.algorithms.ppo import ppo
    from tightrope.engine import distributed, threads

    world = distributed.join(collectives=True if way == "talking" else None)
    assert world.is_distributed == (way == "talking")
    agent = tr.PPO(
        "CartPole-v1", device=device, accelerate=mode, num_envs=num_envs, num_steps=32, num_minibatches=4,
        update_epochs=4, total_timesteps=num_envs * 32 * 1_000_000, seed=451, norm_obs=True,
    )  # fmt: skip
    loop = ppo(agent.state, agent.config.algorithm)

    def advance(phases: int) -> None:
        *_, metrics = islice(loop, phases)
        float(metrics.grad_norm)  # waits for the device

    with threads(1):
        advance(6)
        began, steps = time.perf_counter(), agent.steps
        while time.perf_counter() - began < seconds:
            advance(10)
        print(f"SPEED {(agent.steps - steps) / (time.perf_counter() - began)}", flush=True)
    distributed.leave()


def speed(way: str, mode: str, args: argparse.Namespace) -> float:
    words = [*WAYS[way], __file__, "--way", way, "--device", args.device, "--num-envs", str(args.num_envs)]
    words += ["--modes", mode, "--seconds", str(args.seconds)]
    done = subprocess.run(words, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("SPEED ")]
    if not found:
        sys.exit(f"{way} failed:\n{done.stderr[-3000:]}")
    return float(found[0].split()[1])


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
        return measure(args.way, args.device, args.num_envs, args.modes[0], args.seconds)
    print(f"CartPole-v1, PPO, {args.num_envs} envs x 32 steps, {args.device}, torch {torch.__version__}")
    for mode in args.modes:
        rounds = [{way: speed(way, mode, args) for way in WAYS} for _ in range(args.repeats)]
        middle = {way: statistics.median(found[way] for found in rounds) for way in WAYS}
        for way, value in middle.items():
            phase, each = 1e3 * 32 * args.num_envs / value, ", ".join(f"{found[way]:,.0f}" for found in rounds)
            share = value / middle["plain"]
            print(f"{mode:<8} {way:<9} {value:>14,.0f} steps/s  {share:.3f} of plain  a phase {phase:.3f} ms  ({each})")
    return None


if __name__ == "__main__":
    main()
