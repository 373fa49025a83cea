"""How far one run scales: what a phase costs a rank, what its messages cost, and where the second overtakes the first.

    python benchmarks/scaling/model.py --phase-ms 4 --numbers 9155 --steps 131072 [--latency-us 20 --bandwidth-gb 45]

Weak scaling: every rank has as many environments as one GPU is good for, so that a phase takes as long on each. It sends, an
update, one message of its gradient, and once a phase a handful of small ones. An
all-reduce of S bytes over R ranks, by a ring within a node and a tree between them, is taken as

    latency x ceil(log2 R)  +  2 (R - 1) / R x S / bandwidth

which is the usual model of it (Thakur et al. 2005, "Optimization of collective communication operations in MPICH"). What
is measured and what is assumed is printed with the table; doctor under torchrun measures latency and bandwidth where you are.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

ROOM = 16  # numbers beside the gradient in its message
GATHERED = 400  # bytes from each rank a phase, besides three numbers a minibatch: moments of observations, health
SMALL = 9  # messages a phase besides those of updates: advantages, normalizers, metrics, episodes, health
RANKS = (1, 2, 8, 16, 64, 256, 1024, 4096, 16384)


@dataclass(frozen=True)
class Work:
    """One rank's phase, and what it says."""

    phase: float  # seconds on one GPU, with nobody to talk to
    updates: int  # of a phase
    numbers: int  # parameters
    steps: int  # of one rank in a phase


@dataclass(frozen=True)
class Network:
    latency: float  # seconds of one hop
    bandwidth: float  # bytes a second that a rank sends


def all_reduce(size: int, ranks: int, network: Network) -> float:
    """Seconds of one."""
    if ranks == 1:
        return 0.0
    return network.latency * math.ceil(math.log2(ranks)) + 2 * (ranks - 1) / ranks * size / network.bandwidth


def talking(work: Work, ranks: int, network: Network) -> float:
    """Seconds a phase that a rank waits for the others."""
    gradient = all_reduce(4 * (work.numbers + ROOM), ranks, network)
    small = SMALL * all_reduce(24, ranks, network)
    gathered = (ranks - 1) * (24 * work.updates + GATHERED) / network.bandwidth  # what each rank has, on all of them
    return work.updates * gradient + small + gathered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="a run")
    parser.add_argument(
        "--phase-ms", type=float, required=True, help="measured on one GPU: tightrope bench, one_gpu.py"
    )
    parser.add_argument("--updates", type=int, default=16, help="of a phase: epochs x minibatches")
    parser.add_argument("--numbers", type=int, required=True, help="parameters, as the plan prints them")
    parser.add_argument("--steps", type=int, required=True, help="of one rank in a phase: its environments x num_steps")
    parser.add_argument("--latency-us", type=float, default=20.0, help="of one hop, from within a graph")
    parser.add_argument("--bandwidth-gb", type=float, default=45.0, help="gigabytes a second of one rank")
    args = parser.parse_args()
    network = Network(args.latency_us * 1e-6, args.bandwidth_gb * 1e9)
    print(f"latency {args.latency_us:g} us a hop, {args.bandwidth_gb:g} GB/s a rank")
    work = Work(args.phase_ms * 1e-3, args.updates, args.numbers, args.steps)
    size = 4 * (work.numbers + ROOM)
    print(f"{args.name}: a phase of {args.phase_ms:g} ms, {work.updates} updates, messages of {size / 1e3:,.1f} kB")
    print(f"| {'ranks':>6} | {'talking a phase':>16} | {'efficiency':>10} | {'steps/s in all':>18} |")
    print("|---|---|---|---|")
    for ranks in RANKS:
        talk = talking(work, ranks, network)
        speed = ranks * work.steps / (work.phase + talk)
        print(f"| {ranks:>6,} | {talk * 1e3:>13.3f} ms | {work.phase / (work.phase + talk):>10.1%} | {speed:>18,.0f} |")


if __name__ == "__main__":
    main()
