"""How far one run scales: what a phase costs a rank, what its messages cost, and where the second overtakes the first.

    python benchmarks/scaling/model.py [--latency-us 20 --bandwidth-gb 45] [--run PHASE_MS UPDATES NUMBERS STEPS]

Weak scaling: every rank has as many environments as one GPU is good for, so that a phase takes as long on each. It sends, an
update, one message of its gradient, and once a phase a handful of small ones. An all-reduce of S bytes over R ranks, by a ring
within a node and a tree between them, is taken as

    latency x ceil(log2 R)  +  2 (R - 1) / R x S / bandwidth

which is the usual model of it (Thakur et al. 2005, "Optimization of collective communication operations in MPICH"). Phases are
measured, on one H200; latency and bandwidth are assumed: doctor under torchrun measures them where you are.
"""

import argparse
import math
from typing import NamedTuple

ROOM = 16  # numbers beside the gradient in its message
GATHERED = 400  # bytes from each rank a phase, besides three numbers a minibatch: moments of observations, health
SMALL = 9  # messages a phase besides those of updates: advantages, normalizers, metrics, episodes, health
RANKS = (1, 2, 8, 16, 64, 256, 1024, 4096, 16384)


class Work(NamedTuple):
    """One rank's phase, and what it says."""

    phase_ms: float  # on one GPU, with nobody to talk to: one_gpu.py, atari_speed.py
    updates: int  # of a phase: epochs x minibatches
    numbers: int  # parameters, as the plan prints them
    steps: int  # of one rank in a phase: its environments x num_steps


RUNS = {
    "CartPole, 4,096 envs a rank, graph": Work(9.0, 16, 2531, 4096 * 32),
    "CartPole, 65,536, max": Work(10.9, 16, 2531, 65536 * 32),
    "Breakout by ale-py, 128 x 128": Work(1405.0, 16, 1_686_693, 128 * 128),
}


def all_reduce(size: int, ranks: int, latency: float, bandwidth: float) -> float:
    """Seconds of one; latency in seconds a hop, bandwidth in bytes a second that a rank sends."""
    return latency * math.ceil(math.log2(ranks)) + 2 * (ranks - 1) / ranks * size / bandwidth


def talking(work: Work, ranks: int, latency: float, bandwidth: float) -> float:
    """Seconds a phase that a rank waits for the others."""
    gradient = all_reduce(4 * (work.numbers + ROOM), ranks, latency, bandwidth)
    small = SMALL * all_reduce(24, ranks, latency, bandwidth)
    gathered = (ranks - 1) * (24 * work.updates + GATHERED) / bandwidth  # what each rank has, on all of them
    return work.updates * gradient + small + gathered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-us", type=float, default=20.0, help="of one hop, from within a graph")
    parser.add_argument("--bandwidth-gb", type=float, default=45.0, help="gigabytes a second of one rank")
    parser.add_argument("--run", nargs=4, type=float, metavar=tuple(Work._fields), help="another run than those known")
    args = parser.parse_args()
    for name, work in ({"the run": Work(*args.run)} if args.run else RUNS).items():
        print(f"\n{name}: a phase of {work.phase_ms:g} ms, messages of {4 * (work.numbers + ROOM) / 1e3:,.1f} kB\n")
        print("| ranks | talking a phase | efficiency | steps/s in all |\n|---|---|---|---|")
        for ranks in RANKS:
            talk = 1e3 * talking(work, ranks, args.latency_us * 1e-6, args.bandwidth_gb * 1e9)
            both = work.phase_ms + talk
            print(
                f"| {ranks:,} | {talk:.3f} ms | {work.phase_ms / both:.1%} | {1e3 * ranks * work.steps / both:,.0f} |"
            )


if __name__ == "__main__":
    main()
