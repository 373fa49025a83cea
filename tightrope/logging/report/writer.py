"""Writes report.html again and again while a run goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ...errors import NotFinite, warn
from ...files import Place
from ...types import Settings
from ..callback import Callback, MetricsRow, RunInfo, StateView, TrainingResult
from ..metrics import Columns, read_rows
from .html import packed_library
from .record import RunFiles, RunRecord, RunStatus
from .run import REFRESH, run_page

REPORT, ABOUT = "report.html", "about.json"
TRAINING_SHARE = 200  # seconds of training per second of writing
FIRST_SECONDS = 5.0  # until the first page


class ReportWriter(Callback):
    """Keeps a run's page up to date. `find(run_dir)` gathers what its directory tells."""

    name, may_fail = "the report", True

    def __init__(self, find: Callable[[Path], RunFiles], seconds: float = REFRESH) -> None:
        self.find, self.seconds = find, seconds
        self.columns = Columns()
        self.info_written = self.failing = False

    def on_start(self, run: RunInfo) -> None:
        assert run.run_dir is not None
        self.info, self.run_dir = run, run.run_dir
        self.columns = Columns(read_rows(Place(self.run_dir) / "metrics.jsonl"))  # of a run that is resumed
        self._try(lambda: None)
        threading.Thread(target=pack_quietly, daemon=True).start()  # it takes a while
        self.due = time.monotonic() + min(self.seconds, FIRST_SECONDS)

    def on_phase(self, row: MetricsRow) -> None:
        self.columns.add(row)

    def on_update(self, state: StateView) -> None:
        if time.monotonic() >= self.due:
            self.write(RunStatus("running"))

    def on_end(self, result: TrainingResult) -> None:
        self.write(end_status(result, self.info, self.columns))

    def write(self, status: RunStatus) -> None:
        began = time.monotonic()
        record = RunRecord(self.info, self.columns, status, self.find(self.run_dir))
        self._try(lambda: write_page(self.run_dir / REPORT, run_page(record, self.run_dir)))
        now = time.monotonic()
        self.due = now + max(self.seconds, TRAINING_SHARE * (now - began))

    def _try(self, write: Callable[[], None]) -> None:
        """An error of the disk is reported once; the page is tried again when it is next due."""
        try:
            if not self.info_written:
                write_info(self.info)
                self.info_written = True
            write()
            self.failing = False
        except OSError as error:
            if not self.failing:
                warn(f"{self.run_dir / REPORT} cannot be written ({error.strerror or error}): it is tried again later")
            self.failing = True


def end_status(result: TrainingResult, info: RunInfo, columns: Columns) -> RunStatus:
    error = result.error
    if isinstance(error, NotFinite):
        return RunStatus("not finite", str(error))
    if isinstance(error, Exception):
        return RunStatus("failed", " ".join(f"{type(error).__name__}: {error}".split())[:500])
    if result.state.solved:
        return target_status(columns, info.settings) or RunStatus("solved")
    return status_by_steps(result.steps, info.settings, info.run_dir)


def target_status(columns: Columns, settings: Settings) -> RunStatus | None:
    """The status of a run in which an evaluation reached `stop_at_return`; None for others."""
    target = settings.get("stop_at_return")
    scores = columns["eval/episodic_return"][~(columns["eval/cut_off"] > 0)]
    if target is None or not (scores >= target).any():
        return None
    return RunStatus("ended", f"An evaluation reached stop_at_return, {target:g}.")


def status_by_steps(steps: int, settings: Settings, run_dir: Path | None) -> RunStatus:
    """The status of a run that no longer trains: ended if no whole phase is left, otherwise stopped."""
    total, phase = settings["total_timesteps"], settings["num_envs"] * settings["num_steps"]
    if steps + phase > total:
        return RunStatus("ended")
    return RunStatus("stopped", f"after {steps:,} of {total:,} steps: `tightrope resume {run_dir}` goes on")


def write_page(path: Path, page: str) -> None:
    """Atomically. It does not wait for the disk: a report can always be made again."""
    Place.of(path).write(page.encode("utf-8", "replace"), wait=False)


def write_info(info: RunInfo) -> None:
    """What only the training process knows, for a report that is made later."""
    assert info.run_dir is not None
    content: Settings = {name: getattr(info, name) for name in ("plan", "facts", "total_steps", "traits")}
    content["target"] = None if info.target is None else asdict(info.target)
    write_page(info.run_dir / ABOUT, json.dumps(content, indent=1) + "\n")


def pack_quietly() -> None:
    """On a thread of its own; the page that needs the library raises the error again."""
    with suppress(Exception):
        packed_library()
