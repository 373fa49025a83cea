"""Two checkouts of Tightrope on the same training on the CPU, by turns in one run; prints a Markdown table of ratios.

    git worktree add ../old COMMIT
    python benchmarks/versions.py ../old [W2 W5-envpool own-network ...] [--rounds 5] [--seconds 3] [--clock cpu]

Each checkout trains in a process of its own that stays: after one turn that is not counted, they train for some seconds in
turn. A ratio above 1 says that this checkout is faster than the other one: it is the median over rounds, with the lowest and
the highest beside it. `--clock cpu` counts the processor time of the training thread, for a machine that others use too.

W2 to W6 are those of workloads.py; the others are presets, and networks of a user's own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn, set_num_threads, tanh
from workloads import BACKENDS, USUAL_BACKENDS, WORKLOADS

HERE = Path(__file__).resolve().parent
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class Own(nn.Module):
    """Three layers and a skip, as a user may write them."""

    out_features = 64

    def __init__(self, features: int = 4) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(features, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = tanh(self.second(self.first(x).relu()))
        return self.third(x).relu() + x


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # algorithm, environment, settings
    **{
        f"{name}-{engine}": ("PPO", env, dict(settings, backend=engine))
        for name, (env, _, settings) in WORKLOADS.items()
        for engine in BACKENDS.get(name, USUAL_BACKENDS)
    },
    "CartPole": ("PPO", "CartPole-v1", {}),
    "Pendulum": ("PPO", "Pendulum-v1", {}),
    "Acrobot": ("PPO", "Acrobot-v1", {}),
    "Hopper": ("PPO", "Hopper-v5", {}),
    "VPG": ("VPG", "CartPole-v1", {}),
    "own-network": ("PPO", "CartPole-v1", {"network": Own}),
    "own-network-VPG": ("VPG", "CartPole-v1", {"network": Own}),
}


def worker(case: str, clock: str) -> None:
    """For each number of seconds on standard input, train for about as long and print steps per second."""
    import tightrope as tr

    algorithm, env, settings = CASES[case]
    set_num_threads(2 if case.startswith("W6") else 1)
    agent: Any = getattr(tr, algorithm)(env, seed=1, device="cpu", total_timesteps=10**8, **settings)
    page = sys.modules[f"tightrope.algorithms.{algorithm.lower()}"]
    phases = getattr(page, algorithm.lower())(agent.state, agent.config.algorithm)
    for line in sys.stdin:
        steps, began, end = agent.steps, CLOCKS[clock](), time.perf_counter() + float(line)
        while time.perf_counter() < end:
            next(phases)
        print(json.dumps((agent.steps - steps) / (CLOCKS[clock]() - began)), flush=True)


def compare(case: str, checkouts: list[Path], rounds: int, seconds: float, clock: str) -> list[float]:
    """Steps per second of the second checkout over that of the first, for each round."""
    words = [sys.executable, str(HERE / "versions.py"), "--worker", case, "--clock", clock]
    sides = []
    for checkout in checkouts:
        environment = {**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        sides.append(subprocess.Popen(words, text=True, env=environment, cwd=checkout, **pipes))  # type: ignore[call-overload]
    ratios = []
    for number in range(rounds + 1):
        speed = {}
        for index in (0, 1) if number % 2 else (1, 0):
            side = sides[index]
            assert side.stdin is not None
            assert side.stdout is not None
            side.stdin.write(f"{seconds}\n")
            side.stdin.flush()
            line = side.stdout.readline()
            if not line:
                raise SystemExit(f"{case}: the training in {checkouts[index]} ended early")
            speed[index] = json.loads(line)
        ratios += [speed[1] / speed[0]] if number else []
    for side in sides:
        side.communicate()
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="the checkout to compare with this one")
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all, if none is given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.clock)
        return
    if options.old is None or not (options.old / "tightrope").is_dir():
        parser.error(f"old {options.old} is no checkout of Tightrope: give the folder of one")
    if unknown := [case for case in options.cases if not any(known.startswith(case) for known in CASES)]:
        parser.error(f"case {unknown[0]} is unknown: give some of {', '.join(CASES)}")
    print("| case | this / other | lowest to highest |\n|---|---|---|")
    for case in CASES:
        if options.cases and not any(case == name or case.startswith(f"{name}-") for name in options.cases):
            continue
        checkouts = [options.old.resolve(), HERE.parent]
        found = compare(case, checkouts, options.rounds, options.seconds, options.clock)
        print(f"| {case} | {statistics.median(found):.2f} | {min(found):.2f} to {max(found):.2f} |", flush=True)


if __name__ == "__main__":
    main()
