"""What trackers cost: CartPole's preset, trained with none and with each, in turn.

    python benchmarks/tracker_overhead.py [--steps 400000] [--repeats 5] [--only tensorboard mlflow]

Prints, of each: the time of a phase while training, a median of the repeats, and what multiple it is of that without a tracker;
the processor time of all threads, as a multiple, which other work on the machine touches less; the seconds that a run takes
longer in all, with opening the tracker and emptying its queue at the end. A warm-up run comes first, which imports the
tracker's client. MLflow writes to an SQLite file, W&B offline.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import tightrope as tr

WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "tensorboard": dict(log=["tensorboard"]),
    "tensorboard, watched": dict(log=["tensorboard"], watch=True),
    "wandb": dict(log=["wandb"]),
    "wandb, watched": dict(log=["wandb"], watch=True),
    "mlflow": dict(log=["mlflow"]),
    "mlflow, watched": dict(log=["mlflow"], watch=True),
    "all three, watched": dict(log=["tensorboard", "wandb", "mlflow"], watch=True),
}


class Seconds(NamedTuple):
    training: float
    whole: float  # of the run
    busy: float  # of this process, all its threads together


def seconds(folder: Path, steps: int, settings: dict[str, Any]) -> Seconds:
    agent = tr.PPO("CartPole-v1", device="cpu", total_timesteps=steps, **settings)
    began, busy = time.perf_counter(), time.process_time()
    agent.learn(run_dir=folder, quiet=True)
    return Seconds(agent.state.seconds, time.perf_counter() - began, time.process_time() - busy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(WAYS))
    options = parser.parse_args()
    ways = {"none": WAYS["none"], **{name: WAYS[name] for name in options.only}}
    phases = options.steps // 1024
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/m.db",
        }
        os.chdir(folder)
        for i, settings in enumerate(ways.values()):
            seconds(Path(folder) / f"warm{i}", 10_240, settings)
        found: dict[str, list[Seconds]] = {name: [] for name in ways}
        for repeat in range(options.repeats):
            for i, (name, settings) in enumerate(ways.items()):
                found[name].append(seconds(Path(folder) / f"run{repeat}-{i}", options.steps, settings))
    base = found["none"]
    print(f"{'':22} ms a phase   training   processor   the whole run")
    for name, times in found.items():
        training = statistics.median(t.training for t in times)
        pairs = list(zip(times, base, strict=True))
        slower = statistics.median(t.training / b.training for t, b in pairs)
        busier = statistics.median(t.busy / b.busy for t, b in pairs)
        longer = statistics.median(t.whole - b.whole for t, b in pairs)
        print(f"{name:22} {1000 * training / phases:10.2f}   x {slower:6.3f}   x {busier:6.3f}   {longer:+8.2f} s")


if __name__ == "__main__":
    main()
