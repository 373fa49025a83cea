"""TensorBoard: an event file in the run's directory, written through torch's client.

`tensorboard --logdir runs` then shows every run under the name of its directory. When a run resumes from a checkpoint, points
after that checkpoint are purged, so that none appears twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .tracker import Ending, Scalars, Tracker

EVENTS = "events.out.tfevents."  # prefix of its files
FLUSH_SECONDS = 5
BINS = 64  # of a histogram
TABLE_METRICS = ("charts/episodic_return", "eval/episodic_return")  # beside the settings in the table of runs


def wait_for_next_second(written: list[Path]) -> None:
    """Event files are read in the order of their names: the second of their creation, then a number in which 10 sorts before
    9. So a run that resumes within the same second waits for the next one."""
    seconds = [name for path in written if (name := path.name.removeprefix(EVENTS).split(".")[0]).isdigit()]
    newest = max(map(int, seconds), default=0)
    if 0 <= newest + 1 - time.time() <= 1:
        time.sleep(newest + 1 - time.time())


class TensorBoard(Tracker):
    name, package = "TensorBoard", "tensorboard"

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = self.info.run_dir or Path("runs") / self.run_name
        written = sorted(folder.glob(f"{EVENTS}*"))
        purge = self.info.steps + 1 if written else None
        wait_for_next_second(written)
        self.writer: Any = SummaryWriter(str(folder), purge_step=purge, flush_secs=FLUSH_SECONDS)
        self.writer.add_text("run", "\n".join(self._markdown()), self.info.steps)
        self._add_hyper_parameters()
        self.options.say(f"tensorboard: tensorboard --logdir {folder.parent}")

    def _markdown(self) -> Iterator[str]:
        """The plan and the settings, in Markdown."""
        yield from (f"{line}\n" for line in self.info.plan)
        yield "\n| setting | value |\n|---|---|"
        yield from (f"| {name} | {value} |" for name, value in self.parameters.items())

    def _add_hyper_parameters(self) -> None:
        """Into the run's own file: `add_hparams` would create another file, shown as another run."""
        from torch.utils.tensorboard.summary import hparams

        plain = (bool, int, float, str)
        settings = {k: v if isinstance(v, plain) else str(v) for k, v in self.parameters.items()}
        metrics = self.named({"step": 0, **dict.fromkeys(TABLE_METRICS, 0.0)})
        shown = {tag: None for tag in metrics if not tag.startswith("time/")}
        for summary in hparams(settings, shown):  # type: ignore[no-untyped-call]
            self.writer.file_writer.add_summary(summary)

    def scalars(self, numbers: Scalars, step: int, phase: float, seconds: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]
        self.writer.file_writer.add_summary(Summary(value=values), step, seconds)  # one event for all of them

    def histograms(self, values: dict[str, np.ndarray], step: int, phase: int) -> None:
        for name, numbers in values.items():
            if len(numbers):
                self.writer.add_histogram(name, numbers, step, bins=BINS)

    def video(self, path: Path, step: int) -> None:
        """TensorBoard has no videos: they stay in the run's directory."""

    def close(self, ending: Ending, model: Path | None) -> None:
        self.writer.close()
