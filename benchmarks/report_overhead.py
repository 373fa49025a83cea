"""What report.html costs a run at CartPole's preset: seconds inside the report, as a share of training's wall time.

    python benchmarks/report_overhead.py --repeats 7

Runs with and without it take turns. The share of time inside is the figure to trust on a busy machine; the difference of medians
holds whatever else the report may do to training.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.runs import train as training
from tightrope.runs.audience import invited
from tightrope.runs.reports import write_report
from tightrope.view import Onlooker, Report

METHODS = ("begin", "phase", "row", "end")


def timed(onlooker: Onlooker, spent: dict[str, float]) -> None:
    """Count the seconds inside each of its methods."""
    for name in METHODS:
        method = getattr(onlooker, name)

        def counted(*words: Any, name: str = name, method: Any = method) -> None:
            began = time.perf_counter()
            method(*words)
            spent[name] += time.perf_counter() - began

        setattr(onlooker, name, counted)


def run(with_report: bool, spent: dict[str, float]) -> tuple[float, int, float]:
    """(seconds of training, bytes of the page, seconds to make it once more from the directory)"""

    def guests(*words: Any) -> list[Onlooker]:
        audience = [one for one in invited(*words) if with_report or not isinstance(one, Report)]
        for one in audience:
            if isinstance(one, Report):
                timed(one, spent)
        return audience

    training.invited = guests  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        agent = tr.PPO("CartPole-v1")
        began = time.perf_counter()
        agent.learn(run_dir=Path(folder) / "run", quiet=True)
        seconds = time.perf_counter() - began
        if not with_report:
            return seconds, 0, 0.0
        began = time.perf_counter()
        page = write_report([Path(folder) / "run"])
        return seconds, page.stat().st_size, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    run(True, dict.fromkeys(METHODS, 0.0))  # warm
    without, with_it, inside, again, size = [], [], [], [], 0
    for _ in range(repeats):
        without.append(run(False, {})[0])
        spent = dict.fromkeys(METHODS, 0.0)
        seconds, size, once_more = run(True, spent)
        with_it.append(seconds)
        inside.append(spent)
        again.append(once_more)
    total = [sum(spent.values()) for spent in inside]
    share = statistics.median(t / s for t, s in zip(total, with_it, strict=True))
    difference = statistics.median(with_it) / statistics.median(without) - 1
    print(f"training: {statistics.median(without):.2f} s without, {statistics.median(with_it):.2f} s with ({difference:+.1%})")
    parts = ", ".join(f"{name} {1000 * statistics.median(s[name] for s in inside):.1f}" for name in METHODS)
    print(f"inside the report: {1000 * statistics.median(total):.1f} ms ({parts}), {share:.2%} of training")
    print(f"made once more from the directory: {1000 * statistics.median(again):.1f} ms; {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
