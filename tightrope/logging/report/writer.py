"""report.html, written anew while a run goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import NotFinite, warn
from ...files import Place
from ..callback import Callback, RunInfo, StateView, TrainingResult
from .columns import Columns, read_rows
from .library import packed
from .record import Found, RunRecord, Status
from .run_page import REFRESH, run_page

REPORT, ABOUT = "report.html", "about.json"
SPARING = 200  # seconds of training for each second of writing


class ReportWriter(Callback):
    """Keeps the page of a run up to date. `find(run_dir)` tells what else there is to know of it."""

    name = "the report"
    may_fail = True

    def __init__(self, find: Callable[[Path], Found], seconds: float = REFRESH) -> None:
        self.find, self.seconds = find, seconds
        self.columns = Columns()
        self.remembered = self.trouble = False

    def on_start(self, about: RunInfo) -> None:
        assert about.run_dir is not None
        self.about, self.run_dir = about, about.run_dir
        self.columns = Columns(read_rows(Place(self.run_dir) / "metrics.jsonl"))  # a run that goes on has some
        self.keep(lambda: None)
        threading.Thread(
            target=quietly, args=(packed,), daemon=True
        ).start()  # slow the first time; nobody waits for it
        self.due = time.monotonic() + min(self.seconds, 5.0)  # a first look comes soon

    def on_phase(self, row: dict[str, Any]) -> None:
        self.columns.add(row)

    def on_update(self, state: StateView) -> None:
        if time.monotonic() >= self.due:
            self.write(Status("running"))

    def on_end(self, result: TrainingResult) -> None:
        self.write(how_it_ended(result.state, self.about, self.columns, result.error))

    def write(self, status: Status) -> None:
        began = time.monotonic()
        record = RunRecord(self.about, self.columns, status, self.find(self.run_dir))
        self.keep(lambda: write_page(self.run_dir / REPORT, run_page(record, self.run_dir)))
        now = time.monotonic()
        self.due = now + max(self.seconds, SPARING * (now - began))

    def keep(self, write: Callable[[], None]) -> None:
        """Trouble with the disk is said once; the page is tried again when it is next due."""
        try:
            if not self.remembered:
                remember(self.about)
                self.remembered = True
            write()
            self.trouble = False
        except OSError as error:
            if not self.trouble:
                warn(f"{self.run_dir / REPORT} cannot be written ({error.strerror or error}): it is tried again later")
            self.trouble = True


def how_it_ended(state: StateView, about: RunInfo, columns: Columns, error: BaseException | None) -> Status:
    """From where the state stands, and the exception that is on its way if there is one."""
    if isinstance(error, NotFinite):
        return Status("not finite", str(error))
    if isinstance(error, Exception):
        return Status("failed", " ".join(f"{type(error).__name__}: {error}".split())[:500])
    if state.solved:
        return stopped_at_return(columns, about.settings) or Status("solved")
    return by_steps(state.steps, about.settings, about.run_dir)


def stopped_at_return(columns: Columns, settings: dict[str, Any]) -> Status | None:
    """That an evaluation came to `stop_at_return`, if one did. Whether the task is solved by that, its user knows."""
    target = settings.get("stop_at_return")
    scores = columns["eval/episodic_return"][~(columns["eval/cut_off"] > 0)]
    if target is None or not (scores >= target).any():
        return None
    return Status("ended", f"An evaluation reached the return of {target:g} asked for.")


def by_steps(steps: int, settings: dict[str, Any], run_dir: Path | None) -> Status:
    """A run that no longer runs: it has come to its end, which is when no whole phase is left, or not."""
    total, phase = settings["total_timesteps"], settings["num_envs"] * settings["num_steps"]
    if steps + phase > total:
        return Status("ended")
    return Status("stopped", f"after {steps:,} of {total:,} steps: `tightrope resume {run_dir}` goes on")


def write_page(path: Path, page: str) -> None:
    """Whole or not at all. It does not wait for the disk: a report can always be made again."""
    Place.of(path).write(page.encode("utf-8", "replace"), wait=False)


def remember(about: RunInfo) -> None:
    """What only the process that trains knows, for a report that is made later."""
    assert about.run_dir is not None
    content: dict[str, Any] = {"plan": about.plan, "facts": about.facts, "total_steps": about.total_steps}
    content["traits"] = about.traits
    content["target"] = None if about.target is None else asdict(about.target)
    write_page(about.run_dir / ABOUT, json.dumps(content, indent=1) + "\n")


def quietly(action: Callable[[], object]) -> None:
    """For a thread: who needs the result will meet the error too."""
    try:
        action()
    except Exception:
        return
