"""What everything that there is to look at costs together: videos, report page and metrics file, all at their defaults.

    python benchmarks/watching.py [--repeats 11]

CartPole by its preset, in fresh processes by turns: with a run directory as `tightrope train` leaves it, and with nobody who
looks on, which is the same but for the videos and the page. Prints the seconds of training (`learn`) and of the whole command,
and what the difference is of each, by medians and by the quickest of each kind: the second is less disturbed by other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("nobody", "everybody")
CODE = """
import json, sys, time
began = time.perf_counter()
import tightrope.training.trainer as training
if sys.argv[1] == "nobody":
    training.built_in_callbacks = lambda *_: []
phases, taken = training.Trainer.phases, []
import tightrope.agent, tightrope.cli
def timed(self):
    before = time.perf_counter()
    yield from phases(self)
    taken.append(time.perf_counter() - before)
training.Trainer.phases = timed
try:
    tightrope.cli.main(["train", "CartPole-v1", "--device", "cpu", "--seed", "451", "--quiet", "--run-dir", sys.argv[2]])
finally:
    print("TOOK " + json.dumps(taken))
"""


def once(kind: str, folder: Path) -> tuple[float, float]:
    """Seconds of training and of the whole process."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CODE, kind, str(folder)], capture_output=True, text=True, check=True)
    whole = time.perf_counter() - began
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOOK "))
    assert (folder / "videos").exists() == (kind == "everybody")
    return json.loads(line.removeprefix("TOOK "))[0], whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11)
    repeats = parser.parse_args().repeats
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as place:
        once("everybody", Path(place, "warm"))
        for i in range(repeats):
            for kind in KINDS if i % 2 else reversed(KINDS):
                taken[kind].append(once(kind, Path(place, f"{kind}{i}")))
    for part, what in enumerate(("training", "the whole command")):
        for name, of in (("median", statistics.median), ("quickest", min)):
            without, with_all = (of([pair[part] for pair in taken[kind]]) for kind in KINDS)
            share = with_all / without - 1
            print(f"{what:>18}, {name:<8}  {without:.3f} s with nobody, {with_all:.3f} s with everybody: {share:+.1%}")


if __name__ == "__main__":
    main()
