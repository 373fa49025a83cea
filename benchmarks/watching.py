"""What everything that there is to look at costs together: videos, report page and metrics file, all at their defaults.

    python benchmarks/watching.py [--repeats 11] [--only-report]

CartPole by its preset, in fresh processes by turns: with a run directory as `tightrope train` leaves it, or with the page but
no videos, and with nobody who looks on, which is the same but for the videos and the page. Prints the seconds of training
(`learn`) and of the whole command, and what the difference is of each, by medians and by the quickest of each kind: the second
is less disturbed by other work.
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

CODE = """
import json, sys, time
import tightrope.training.trainer as training
from tightrope.logging import ReportWriter
built_in = training.built_in_callbacks
if sys.argv[1] != "everybody":
    kept = (ReportWriter,) if sys.argv[1] == "report" else ()
    training.built_in_callbacks = lambda *words: [one for one in built_in(*words) if isinstance(one, kept)]
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
    parser.add_argument("--only-report", action="store_true", help="the page without videos")
    args = parser.parse_args()
    kinds = ("nobody", "report" if args.only_report else "everybody")
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as place:
        once(kinds[1], Path(place, "warm"))
        for i in range(args.repeats):
            for kind in kinds if i % 2 else reversed(kinds):
                taken[kind].append(once(kind, Path(place, f"{kind}{i}")))
    for part, what in enumerate(("training", "the whole command")):
        for name, of in (("median", statistics.median), ("quickest", min)):
            without, with_all = (of([pair[part] for pair in taken[kind]]) for kind in kinds)
            share = with_all / without - 1
            print(f"{what:>18}, {name:<8}  {without:.3f} s with nobody, {with_all:.3f} s with {kinds[1]}: {share:+.1%}")


if __name__ == "__main__":
    main()
