"""What report.html costs a run at CartPole's preset: seconds inside the report, as a share of training's wall time.

    python benchmarks/report_overhead.py --repeats 7

Runs with and without it take turns. The share of time inside is the figure to trust on a busy machine; the difference
of CPU time holds whatever else the report may do to training.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.logging import Callback, ReportWriter
from tightrope.training import trainer as training
from tightrope.training.callbacks import built_in_callbacks
from tightrope.training.reports import write_report

METHODS = ("on_start", "on_update", "on_phase", "on_end")


def timed(callback: Callback, spent: dict[str, float]) -> None:
    """Count the seconds inside each of its methods."""
    for name in METHODS:
        method = getattr(callback, name)

        def counted(*words: Any, name: str = name, method: Any = method) -> None:
            began = time.perf_counter()
            method(*words)
            spent[name] += time.perf_counter() - began

        setattr(callback, name, counted)


def run(with_report: bool, spent: dict[str, float]) -> tuple[float, float, int, float]:
    """(seconds of training, of the clock and of the CPU, bytes of the page, seconds to make it once more)"""

    def watched(*words: Any) -> list[Callback]:
        made = [one for one in built_in_callbacks(*words) if with_report or not isinstance(one, ReportWriter)]
        for one in made:
            if isinstance(one, ReportWriter):
                timed(one, spent)
        return made

    training.built_in_callbacks = watched  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        agent = tr.PPO("CartPole-v1")
        began, busy = time.perf_counter(), time.process_time()
        agent.learn(run_dir=Path(folder) / "run", quiet=True)
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        if not with_report:
            return seconds, busy, 0, 0.0
        began = time.perf_counter()
        page = write_report([Path(folder) / "run"])
        return seconds, busy, page.stat().st_size, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    run(True, dict.fromkeys(METHODS, 0.0))  # warm
    without: list[tuple[float, float]] = []
    with_it: list[tuple[float, float]] = []
    inside, again, size = [], [], 0
    for i in range(repeats):
        for with_report in (i % 2 == 0, i % 2 == 1):  # by turns: the second of two may find a disk that is still busy
            spent = dict.fromkeys(METHODS, 0.0)
            seconds, busy, bytes_, once_more = run(with_report, spent)
            (with_it if with_report else without).append((seconds, busy))
            if with_report:
                inside.append(spent)
                again.append(once_more)
                size = bytes_
    for i, clock in enumerate(("wall", "CPU")):
        before, after = (statistics.median(pair[i] for pair in pairs) for pairs in (without, with_it))
        ratio = statistics.median(b[i] / a[i] for a, b in zip(without, with_it, strict=True))
        print(f"training, {clock} time: {before:.2f} s without, {after:.2f} s with; median ratio of pairs {ratio:.3f}")
    total = [sum(spent.values()) for spent in inside]
    share = statistics.median(t / wall for t, (wall, _) in zip(total, with_it, strict=True))
    parts = ", ".join(f"{name} {1000 * statistics.median(s[name] for s in inside):.1f}" for name in METHODS)
    print(f"inside the report: {1000 * statistics.median(total):.1f} ms ({parts}), {share:.2%} of training's wall time")
    print(f"made once more from the directory: {1000 * statistics.median(again):.1f} ms; {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
