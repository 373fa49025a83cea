"""What everything that there is to look at costs: videos, report page, metrics file and trackers, beside training CartPole.

    python benchmarks/watching.py [everything | report | trackers] [--repeats 11] [--steps N]

CartPole by its preset, in fresh processes by turns. `everything` is a run directory as `tightrope train` leaves it, compared
with one that has neither videos nor the page; `report` has the page but no videos; `trackers` are compared with `everything`.
MLflow writes to an SQLite file, W&B offline. Prints the seconds of training (`learn`), of the processor meanwhile, all threads
together, and of the whole command, as medians and as multiples of the first row. The quickest run of each is less disturbed by
other work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

TRACKERS = ("tensorboard", "wandb", "mlflow")
COMPARED: dict[str, dict[str, list[str]]] = {  # flags of each way
    "everything": {"nothing": [], "everything": []},
    "report": {"nothing": [], "report": []},
    "trackers": {
        "everything": [],
        **{name: ["--log", name] for name in TRACKERS},
        **{f"{name}, watched": ["--log", name, "--watch"] for name in TRACKERS},
        "all three, watched": ["--log", *TRACKERS, "--watch"],
    },
}


class Seconds(NamedTuple):
    training: float
    processor: float  # during training, all threads together
    command: float


def train(way: str, words: list[str]) -> None:
    """In a process of its own: train, and print the seconds of it."""
    import tightrope.cli
    from tightrope.logging import ReportWriter
    from tightrope.training import trainer

    if way in ("nothing", "report"):
        built_in, kept = trainer.built_in_callbacks, ReportWriter if way == "report" else ()
        trainer.built_in_callbacks = lambda *args: [one for one in built_in(*args) if isinstance(one, kept)]
    phases = trainer.Trainer.phases

    def timed(self: Any) -> Any:
        clocks = (time.perf_counter, time.process_time)
        began = [clock() for clock in clocks]
        yield from phases(self)
        print("TOOK " + json.dumps([clock() - start for clock, start in zip(clocks, began, strict=True)]), flush=True)

    trainer.Trainer.phases = timed  # type: ignore[method-assign]
    tightrope.cli.main(["train", "CartPole-v1", "--device", "cpu", "--seed", "451", "--quiet", *words])


def once(way: str, words: list[str], folder: Path) -> Seconds:
    environment = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder.parent}/m.db",
    }
    command = [sys.executable, os.path.abspath(__file__), "--way", way, *words, "--run-dir", str(folder)]
    began = time.perf_counter()
    done = subprocess.run(
        command, env=os.environ | environment, cwd=folder.parent, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds = time.perf_counter() - began
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOOK "))
    assert (folder / "videos").exists() == (way not in ("nothing", "report"))
    return Seconds(*json.loads(line.removeprefix("TOOK ")), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=list(COMPARED), default="everything")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--steps", type=int, help="of training; the preset's if not given")
    args = parser.parse_args()
    steps = [] if args.steps is None else ["--total-timesteps", str(args.steps)]
    ways, rounds = COMPARED[args.what], []
    with tempfile.TemporaryDirectory() as place:
        for way, flags in ways.items():
            once(way, [*flags, *steps], Path(place, f"{way}-warm"))
        for i in range(args.repeats):
            order = list(ways) if i % 2 else list(reversed(ways))
            rounds.append({way: once(way, [*ways[way], *steps], Path(place, f"{way}-{i}")) for way in order})
    base = None
    print(f"{'':22} {'training (quickest)':>26} {'processor':>18} {'whole command':>18}")
    for way in ways:
        middle = [statistics.median(column) for column in zip(*(found[way] for found in rounds), strict=True)]
        base = base or middle
        training, *others = (f"{x:.3f} s x {x / first:.3f}" for x, first in zip(middle, base, strict=True))
        quickest = min(found[way].training for found in rounds)
        print(f"{way:22} {training:>18} ({quickest:.3f}) {others[0]:>18} {others[1]:>18}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        train(sys.argv[2], sys.argv[3:])
    else:
        main()
