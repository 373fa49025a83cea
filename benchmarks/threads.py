"""One thread against two, spinning or asleep while they wait: milliseconds of a gradient of the Nature CNN, 256 images.

python benchmarks/threads.py             # on whatever else this machine does now
python benchmarks/threads.py --busy 4    # beside four processes that only use up time
"""

import argparse
import os
import subprocess
import sys
import time

WAYS = ((1, "PASSIVE"), (2, "ACTIVE"), (2, "PASSIVE"))
BUSY = "while True: sum(range(10_000))"


def measure(threads: int, repeats: int) -> None:
    """In a process of its own: OpenMP reads how to wait once."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    network = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip
    network.to(memory_format=torch.channels_last)
    image = torch.rand(256, 4, 84, 84).contiguous(memory_format=torch.channels_last)
    times = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        network(image).square().mean().backward()
        times.append(1e3 * (time.perf_counter() - began))
    low, middle, high = (sorted(times[2:])[i * (repeats - 1) // 4] for i in (1, 2, 3))
    policy, load = os.environ["OMP_WAIT_POLICY"], os.getloadavg()[0]
    print(f"{threads} threads, {policy}: median {middle:.0f} ms ({low:.0f} to {high:.0f}); load {load:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--busy", type=int, default=0, help="processes that only use up time")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--threads", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.threads is not None:
        return measure(options.threads, options.repeats)
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.busy)]
    try:
        for threads, policy in WAYS * options.rounds:  # by turns, since the load of a machine changes
            words = [sys.executable, __file__, "--threads", str(threads), "--repeats", str(options.repeats)]
            subprocess.run(words, env={**os.environ, "OMP_WAIT_POLICY": policy}, check=True)
    finally:
        for other in others:
            other.kill()


if __name__ == "__main__":
    main()
