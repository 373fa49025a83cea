"""Stands for a run: the ranks sum numbers, over and over. torchrun ... benchmarks/scaling/loop.py --seconds 10"""

import argparse
import ctypes
import functools
import os
import sys
import time

import torch

from tightrope.engine import distributed
from tightrope.errors import RankLost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--silence", type=float, help="of the heartbeat, where the usual one is too long to wait for")
    parser.add_argument("--busy", type=float, default=0, help="seconds for which the last rank is busy")
    parser.add_argument("--fails", type=int, help="a rank that raises an error")
    parser.add_argument("--child", action="store_true", help="leave behind a process that holds what was open open")
    args = parser.parse_args()
    if args.silence:
        distributed.Heartbeat = functools.partial(
            distributed.Heartbeat, max_silence=args.silence, period=args.silence / 5
        )
    world = distributed.join()
    print(f"rank {world.rank} pid {os.getpid()} attempt {world.restarts}", flush=True)
    if args.child and os.fork() == 0:
        time.sleep(args.seconds)
        os._exit(0)
    with distributed.propagate_errors():
        loop(world, args)
    distributed.leave()
    print(f"rank {world.rank} is done", flush=True)


def loop(world: distributed.World, args: argparse.Namespace) -> None:
    end = time.monotonic() + args.seconds
    going = torch.ones(())
    while float(distributed.all_reduce_max(going)):
        if world.rank == world.size - 1:
            hold_all_threads(args.busy)
        if world.rank == args.fails:
            raise ValueError("made up")
        if float(distributed.all_reduce_sum(torch.ones(()))) != world.size:
            raise AssertionError("not everyone was counted")
        going = torch.tensor(float(time.monotonic() < end))
        time.sleep(0.01)


def hold_all_threads(seconds: float) -> None:
    """As a long call into a library may: no other thread of this process gets to run, nor does the heartbeat's."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


if __name__ == "__main__":
    try:
        main()
    except RankLost as lost:
        print(f"RankLost: {lost}", flush=True)
        sys.exit(1)
