"""Train several seeds in parallel, each in a process on its own device or core, and write one report of all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ..engine import cores
from ..errors import UsageError, checked_seed, plural
from ..files import Place, Unreadable
from ..logging.metrics import MAX_FILE
from ..logging.report.data import mean_in_unit
from ..logging.report.statistics import FEWEST_OF_IQM, iqm_interval, mean_interval
from ..processes import standing_still, start_program
from ..training.checkpoint_reader import CONFIG
from ..training.config import Config
from ..training.reports import gathered, write_report
from ..training.run_directory import METRICS, load_config
from ..training.signals import stop_signals
from ..types import Settings
from .progress_bars import ProgressBars

MAX_SEEDS = 1000
COMPARISON = "comparison.html"
TAIL = 1 << 16  # bytes read at the end of a metrics file
POLL = 0.2  # seconds
ENDING, STANDING = 60.0, 5.0  # seconds to end after a signal; the same for a process that is suspended
# settings of a run that may differ from the given ones
RESOLVED = ("device", "accelerate", "threads", "backend", "seed")


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
        if last - first >= MAX_SEEDS or len(seeds) + last - first >= MAX_SEEDS:
            raise UsageError(f"seeds {text!r} is more than {MAX_SEEDS} seeds: give fewer")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise UsageError(f"seeds {text!r} has {twice} twice: give each seed once")
    return seeds


def process_variables(device: str, threads: int | None, jobs: int | None) -> list[dict[str, str]]:
    """The environment variables of each process that may run at once: the GPU that it sees, or none. On the CPU there is one
    process for every `threads` cores, by default for each core: parallel runs on one core each finish sooner than consecutive
    runs on all cores."""
    if device.startswith("cuda:"):  # only on this GPU
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
    words: str = ""  # why it failed, if it had no process of its own

    @property
    def output(self) -> Path:
        """The file with the output of its process."""
        return self.run_dir.with_name(f"output-{self.seed}.txt")  # not matched by seed*, for `tightrope report`

    def command(self, words: Sequence[str]) -> list[str]:
        """Start the process, which begins or resumes the run."""
        python = [sys.executable, "-m", "tightrope"]
        if not (self.run_dir / CONFIG).exists():
            return [*python, "train", *words, "--seed", str(self.seed), "--run-dir", str(self.run_dir), "--quiet"]
        # the number of threads changes the last digits, so a resumed run keeps its own
        config = load_config(self.run_dir)
        own = ["--env", config.env] if ":" in config.env else []
        own += ["--network", config.network.network] if config.network.network is not None else []
        return [*python, "resume", str(self.run_dir), *own, "--quiet"]

    def start(self, words: Sequence[str], variables: dict[str, str]) -> None:
        try:
            output = self.output.open("wb")
        except OSError:  # a full disk
            output = open(os.devnull, "wb")  # noqa: SIM115
        with output:  # in a new session: only this process gets Ctrl-C, and passes it on once
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            self.process = start_program(self.command(words), {**os.environ, **variables}, **streams)

    @property
    def finished(self) -> bool:
        """Whether the run was trained to its end and has its score. If the score is missing, resuming takes it."""
        if not (self.run_dir / METRICS).exists():
            return False
        record = gathered(self.run_dir)
        unscored = record.info.settings["eval_episodes"] == 0  # no score by the settings
        scored = unscored or record.columns.last("step") in {score.step for score in record.files.scores}
        return record.status.kind in ("ended", "solved") and scored

    def progress(self) -> tuple[int, float | None]:
        """(steps, return) of the newest row of metrics."""
        rows = last_rows(Place(self.run_dir) / METRICS)
        found = [row.get("charts/episodic_return") for row in rows]
        returns = [value for value in found if isinstance(value, float)]
        return (int(rows[-1].get("step", 0)) if rows else 0), (returns[-1] if returns else None)

    def last_words(self) -> str:
        """The last line of its process's output, or why its turn failed."""
        if self.words:
            return self.words
        with contextlib.suppress(OSError):
            lines = [line for line in self.output.read_text().splitlines() if line.strip()]
            return lines[-1].removeprefix("tightrope: ") if lines else ""
        return ""


def last_rows(place: Place) -> list[Settings]:
    """The last rows of a metrics file."""
    rows = []
    with contextlib.suppress(Unreadable), place.open(MAX_FILE) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in file.read(TAIL).split(b"\n"):
            with contextlib.suppress(ValueError):  # an incomplete row
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def check_same(seeds: Iterable[Seed], config: Config) -> None:
    """Raise UsageError if a run that exists already has other settings than the given ones."""
    for seed in seeds:
        there = load_config(seed.run_dir).to_flat_dict() if (seed.run_dir / CONFIG).exists() else config.to_flat_dict()
        for name, value in config.to_flat_dict().items():
            if name not in RESOLVED and there.get(name) != value:
                raise UsageError(
                    f"{name} {value} is not the {there.get(name)} of {seed.run_dir}, which is there already: give that, or "
                    "another run_dir"
                )


def unfinished(seeds: Iterable[Seed], bars: ProgressBars) -> list[Seed]:
    """The seeds that are still to be trained; a line for each other one."""
    for seed in seeds:
        if seed.finished:
            seed.code = 0
            bars.say(f"seed {seed.seed}: done already")
    return [seed for seed in seeds if seed.code is None]


def show_seed(bars: ProgressBars, seed: Seed, steps: int, value: float | None) -> None:
    """Show how far a seed is, with its newest episodic return."""
    words = f"seed {seed.seed}  {steps:,} steps" + ("" if value is None else f"  return {value:.2f}")
    bars.show(str(seed.seed), steps, words)


@dataclass
class SeedPool:
    """Runs the processes of all seeds, a limited number at once."""

    seeds: list[Seed]
    words: list[str]  # arguments of every process
    variables: list[dict[str, str]]  # environment variables, one entry for each process that may run at once
    lines: ProgressBars
    stopped: int | None = None
    asked: float = 0.0  # when the first signal came
    waiting: list[Seed] = field(default_factory=list)

    def run(self) -> None:
        """Run until all processes have ended. Each signal is passed on once."""
        self.waiting = unfinished(self.seeds, self.lines)
        before = {number: signal.signal(number, self.receive) for number in stop_signals()}
        try:
            while self.waiting or self.running:
                self.start_some()
                self.end_some()
                self.show()
                time.sleep(POLL)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for _, process in self.running:  # only after an exception in this process
                process.terminate()

    @property
    def running(self) -> list[tuple[Seed, subprocess.Popen[bytes]]]:
        return [(seed, seed.process) for seed in self.seeds if seed.code is None and seed.process is not None]

    def show(self) -> None:
        if self.lines.progress is not None:  # or reading is for nothing
            for seed, _ in self.running:
                show_seed(self.lines, seed, *seed.progress())

    def receive(self, number: int, frame: object) -> None:
        """Pass a signal on. The first makes every run finish its phase and save, the second ends it at once."""
        self.stopped, self.asked, self.waiting = number, self.asked or time.monotonic(), []
        for _, process in self.running:
            process.send_signal(number)

    def start_some(self) -> None:
        taken = {seed.slot for seed, _ in self.running}
        for slot in [slot for slot in range(len(self.variables)) if slot not in taken]:
            if self.waiting and self.stopped is None:
                seed = self.waiting.pop(0)
                seed.slot = slot
                seed.start(self.words, self.variables[slot])

    def end_some(self) -> None:
        for seed, process in self.running:
            seed.code = process.poll()
            if seed.code is not None:
                self.lines.remove(str(seed.seed))
            if seed.code is None and self.stopped is not None:
                self.give_up(seed, process)
            elif seed.code is not None and (seed.code == 0 or self.stopped is None):
                self.lines.say(f"seed {seed.seed}: {'failed: ' if seed.code else ''}{seed.last_words()}")

    def give_up(self, seed: Seed, process: subprocess.Popen[bytes]) -> None:
        """Kill a process that has not ended long after a signal; its last checkpoint remains."""
        waited, still = time.monotonic() - self.asked, standing_still(process.pid)
        if waited > (STANDING if still else ENDING):
            process.kill()
            process.wait()
            why = "its process is suspended" if still else f"it has not ended {waited:.0f} s after the signal"
            self.lines.say(f"seed {seed.seed}: killed, as {why}; its last checkpoint remains")


def compare(seeds: Iterable[Seed], folder: Path) -> tuple[Path, str] | None:
    """(path of the report, summary of all seeds); None if nothing was trained."""
    there = [seed.run_dir for seed in seeds if (seed.run_dir / METRICS).exists()]
    if not there:
        return None
    records = [gathered(run) for run in there]
    scores = np.array([record.scores[-1].mean for record in records if record.scores])
    page = write_report(there, folder / COMPARISON)
    if len(scores):
        robust = len(scores) >= FEWEST_OF_IQM
        name, (middle, low, high) = ("IQM", iqm_interval([scores])) if robust else ("mean", mean_interval(scores))
        interval = f", 95 % interval {low:.2f} to {high:.2f}" if len(scores) > 1 else ""
        span = f"from {scores.min():.2f} to {scores.max():.2f}"
        own = mean_in_unit([record.scores[-1] for record in records if record.scores])
        own = f"; mean {own}" if own else ""
        return page, f"greedy return over {plural(len(scores), 'seed')}: {name} {middle:.2f}{interval}; {span}{own}"
    if any(record.info.settings["eval_episodes"] for record in records):
        return page, "no seed has a score yet"
    last = [record.columns.last("charts/episodic_return") for record in records]
    returns = [value for value in last if value is not None]
    at_the_end = f"; the last returns in training are from {min(returns):.2f} to {max(returns):.2f}" if returns else ""
    return page, f"not evaluated (eval_episodes 0){at_the_end}"
