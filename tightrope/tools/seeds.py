"""Several seeds side by side: a process for each, as many at once as there are devices or cores, and one report of all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ..engine import cores
from ..errors import UsageError, checked_seed, plural
from ..files import Place, Unreadable
from ..logging.metrics import MAX_FILE
from ..logging.report import RunRecord
from ..logging.report.statistics import iqm_interval
from ..processes import standing_still, start_program
from ..training.checkpoint import CONFIG
from ..training.config import Config
from ..training.directory import METRICS
from ..training.persistence import load_config
from ..training.reports import gathered, write_report
from ..training.signals import stop_signals

MOST_SEEDS = 1000
COMPARISON = "comparison.html"
TAIL = 1 << 16  # bytes of a metrics file that are looked at
LOOK = 0.2  # seconds
ENDING = 60.0  # seconds that a run has for its last phase once it was asked to stop
STANDING = 5.0  # the same, if its process is seen to be stopped
SETTLED = ("device", "accelerate", "threads", "backend", "seed")  # may differ in a run from what was given


def read_seeds(text: str) -> list[int]:
    """The seeds of '1-10' or '1,2,5-7'."""
    seeds: list[int] = []
    for word in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,40})(?:-(\d{1,40}))?", word)
        if match is None:
            raise UsageError(f"seeds {text!r} is not a list of seeds: give it as in 1-10 or 1,2,5-7")
        first, last = (checked_seed(int(number)) for number in (match[1], match[2] or match[1]))
        if last < first:
            raise UsageError(f"seeds {text!r} has a range that ends before it begins: give it as in {last}-{first}")
        if last - first >= MOST_SEEDS or len(seeds) + last - first >= MOST_SEEDS:
            raise UsageError(f"seeds {text!r} is more than {MOST_SEEDS} seeds: give fewer")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise UsageError(f"seeds {text!r} has {twice} twice: give each seed once")
    return seeds


# places to run --------------------------------------------------------------------------------------------------------


def slots(device: str, threads: int | None, jobs: int | None) -> list[dict[str, str]]:
    """For each process that may run at once what its environment is to say: which GPU it sees, or nothing. On the CPU there
    is one for each core, or for each `threads` of them if so many are wanted: runs side by side on one core each are done
    sooner than one after the other on all of them."""
    if device.startswith("cuda:"):  # on that one and no other
        return [{} for _ in range(jobs or 1)]
    if device != "cuda":
        return [{} for _ in range(jobs or max(1, cores() // (threads or 1)))]
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    gpus = named or [str(i) for i in range(torch.cuda.device_count())]
    return [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} for i in range(jobs or len(gpus))]


@dataclass
class Seed:
    """One seed's run: a directory, and the process that trains it."""

    seed: int
    run_dir: Path
    process: subprocess.Popen[bytes] | None = None
    slot: int | None = None
    code: int | None = None

    def output(self) -> IO[bytes]:
        """Where its process prints; nowhere, if the disk takes no file more."""
        try:
            return self.said.open("wb")
        except OSError:
            return open(os.devnull, "wb")

    @property
    def said(self) -> Path:
        """What its process prints."""
        return self.run_dir.with_name(f"output-{self.seed}.txt")  # no name that seed* finds, for `tightrope report`

    def command(self, words: Sequence[str]) -> list[str]:
        """To begin it, or to go on with it."""
        python = [sys.executable, "-m", "tightrope"]
        if not (self.run_dir / CONFIG).exists():
            return [*python, "train", *words, "--seed", str(self.seed), "--run-dir", str(self.run_dir), "--quiet"]
        config = load_config(self.run_dir)
        own = ["--env", config.env] if ":" in config.env else []
        own += ["--network", config.network.network] if config.network.network is not None else []
        return [*python, "resume", str(self.run_dir), *own, "--quiet"]

    @property
    def finished(self) -> bool:
        """Trained to the end, and scored there: a process may be killed in its last evaluation, and resuming it makes up for
        that."""
        if not (self.run_dir / METRICS).exists():
            return False
        record = gathered(self.run_dir)
        scored = {score.step for score in record.files.scores}
        unscored = record.info.settings["eval_episodes"] == 0  # as was set
        return record.status.kind in ("ended", "solved") and (unscored or record.columns.last("step") in scored)

    def progress(self) -> tuple[int, float | None]:
        """(steps, return) of the newest row that is there."""
        rows = tail(Place(self.run_dir) / METRICS)
        returns = [
            row["charts/episodic_return"] for row in rows if isinstance(row.get("charts/episodic_return"), float)
        ]
        return (int(rows[-1].get("step", 0)) if rows else 0), (returns[-1] if returns else None)

    def last_words(self) -> str:
        """What its process said last."""
        with contextlib.suppress(OSError):
            lines = [line for line in self.said.read_text().splitlines() if line.strip()]
            return lines[-1].removeprefix("tightrope: ") if lines else ""
        return ""


def tail(place: Place) -> list[dict[str, Any]]:
    """The last rows of a metrics file."""
    try:
        with place.open(MAX_FILE) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).split(b"\n")
    except Unreadable:
        return []
    rows = []
    for line in lines[1 if size > TAIL else 0 : -1]:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def check_same(seeds: Sequence[Seed], config: Config) -> None:
    """Check that runs which are there already have the given settings."""
    asked = config.flat()
    for seed in seeds:
        if not (seed.run_dir / CONFIG).exists():
            continue
        there = load_config(seed.run_dir).flat()
        for name, value in asked.items():
            if name not in SETTLED and there.get(name) != value:
                raise UsageError(
                    f"{name} {value} is not the {there.get(name)} of {seed.run_dir}, which is there already: give that, or "
                    "another run_dir"
                )


# running ----------------------------------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Processes under way, and those still to come."""

    seeds: list[Seed]
    words: list[str]  # of the command line, for each of them
    places: list[dict[str, str]]
    say: Callable[[str], None]
    show: Callable[[], None] = lambda: None
    stopped: int | None = None
    asked: float = 0.0  # when the first signal came
    waiting: list[Seed] = field(default_factory=list)

    def run(self) -> None:
        """Until all have ended; signals are passed on, once each time."""
        self.waiting = []
        for seed in self.seeds:
            if seed.finished:
                seed.code = 0
                self.say(f"seed {seed.seed}: is done already")
            else:
                self.waiting.append(seed)
        before = {number: signal.signal(number, self.receive) for number in stop_signals()}
        try:
            while self.waiting or self.running:
                self.start_some()
                self.end_some()
                self.show()
                time.sleep(LOOK)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for seed in self.running:  # only if something went wrong here
                assert seed.process is not None
                seed.process.terminate()

    @property
    def running(self) -> list[Seed]:
        return [seed for seed in self.seeds if seed.process is not None and seed.code is None]

    def receive(self, number: int, frame: object) -> None:
        """The first asks every run to end its phase and save, the second to end at once."""
        self.stopped, self.asked = number, self.asked or time.monotonic()
        self.waiting = []
        for seed in self.running:
            assert seed.process is not None
            seed.process.send_signal(number)

    def start_some(self) -> None:
        taken = {seed.slot for seed in self.running}
        for slot in range(len(self.places)):
            if slot not in taken and self.waiting and self.stopped is None:
                self.start(self.waiting.pop(0), slot)

    def start(self, seed: Seed, slot: int) -> None:
        seed.slot = slot
        with seed.output() as said:
            seed.process = start_program(  # in a session of its own: Ctrl-C comes to us, who pass it on once
                seed.command(self.words),
                {**os.environ, **self.places[slot]},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def end_some(self) -> None:
        for seed in self.running:
            assert seed.process is not None
            seed.code = seed.process.poll()
            if seed.code is None and self.stopped is not None:
                self.give_up(seed, seed.process)
            if seed.code == 0:
                self.say(f"seed {seed.seed}: {seed.last_words()}")
            elif seed.code is not None and self.stopped is None:
                self.say(f"seed {seed.seed}: failed: {seed.last_words()}")

    def give_up(self, seed: Seed, process: subprocess.Popen[bytes]) -> None:
        """Kill a run that has not ended long after it was asked to: it has what it saved last."""
        waited = time.monotonic() - self.asked
        still = standing_still(process.pid)
        if waited > (STANDING if still else ENDING):
            process.kill()
            process.wait()
            why = "its process is stopped" if still else f"it was asked to end {waited:.0f} s ago"
            self.say(f"seed {seed.seed}: killed, for {why}; its last checkpoint counts")


# together ---------------------------------------------------------------------------------------------------------------


def compare(seeds: Sequence[Seed], folder: Path) -> tuple[Path, str] | None:
    """(the report, what all say together), if something was trained."""
    there = [seed.run_dir for seed in seeds if (seed.run_dir / METRICS).exists()]
    if not there:
        return None
    records = [gathered(run) for run in there]
    scores = np.array([record.scores[-1].mean for record in records if record.scores])
    page = write_report(there, folder / COMPARISON)
    if len(scores) == 0:
        return page, unscored(records)
    middle, low, high = iqm_interval([scores])
    interval = f", 95 % interval {low:.2f} to {high:.2f}" if len(scores) > 1 else ""
    return (
        page,
        f"greedy return over {plural(len(scores), 'seed')}: IQM {middle:.2f}{interval}; from {scores.min():.2f} to "
        f"{scores.max():.2f}",
    )


def unscored(records: Sequence[RunRecord]) -> str:
    """What is said of runs of which none has a score."""
    if any(record.info.settings["eval_episodes"] for record in records):
        return "no seed has a score yet"
    last = [record.columns.last("charts/episodic_return") for record in records]
    returns = [value for value in last if value is not None]
    at_the_end = f"; the last returns in training are from {min(returns):.2f} to {max(returns):.2f}" if returns else ""
    return f"not evaluated (eval_episodes 0){at_the_end}"
