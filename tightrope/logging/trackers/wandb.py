"""Weights & Biases, through its own client. WANDB_MODE, WANDB_DIR and the like mean what they always mean.

Its history has one entry per step and only grows. What belongs to a step is collected and sent once, with the row of that
step; steps that a resumed run sent before are not sent again. The newest entry takes more until the next one begins. A video is
finished after the entry of its step: it goes out with the next row, with the step that it shows.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...files import Place
from ...types import Settings
from .tracker import Ending, Scalars, Tracker, TrackerOptions, model_files, save_id, saved_ids

SERVER_SECONDS = 25.0  # for an answer, at the start and at the end
PROJECT = "tightrope"


class WandB(Tracker):
    name, package = "W&B", "wandb"

    def __init__(self, options: TrackerOptions) -> None:
        super().__init__(options)
        self.waiting: dict[int, Settings] = {}  # by step
        self.videos: deque[tuple[Path, int]] = deque()  # not sent yet, each with the step that it shows
        self.video_entry = -1  # the step of the newest entry that has a video; an entry takes one

    def open(self) -> None:
        import wandb

        try:
            self.run = self._init(None)
        except (wandb.errors.CommError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:120]
            self.options.say(f"wandb: no answer ({reason}); the run is kept on disk")
            self.run = self._init("offline")
        save_id(self.info.run_dir, self.package, self.run.id)
        self.next_step = self.run.step  # the first step that it takes; asking each time would mean waiting
        self.run.define_metric("video", step_metric="video_step")
        self.run.config.update(self.parameters, allow_val_change=True)
        where = f"wandb sync {Path(self.run.dir).parent}" if self.run.offline else self.run.url
        self.options.say(f"wandb: {where}")

    def _init(self, mode: Any) -> Any:
        import wandb

        info, options = self.info, self.options
        own = None if info.run_dir is None else Place(info.run_dir) / "wandb"
        if own is not None and own.exists() and not own.is_dir():
            raise RuntimeError(f"{own} is not a directory: remove it")
        times = {"init_timeout": SERVER_SECONDS, "finish_timeout": SERVER_SECONDS}
        settings = wandb.Settings.model_validate({"console": "off", "silent": True, **times})
        run_id = saved_ids(info.run_dir).get(self.package)
        return wandb.init(
            project=options.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=options.entity,
            name=self.run_name,
            notes="\n".join(info.plan),
            id=run_id,
            resume=None if run_id is None else "allow",
            dir=None if "WANDB_DIR" in os.environ else info.run_dir,
            mode=mode,
            reinit="create_new",  # leaves a run of the caller alone
            settings=settings,
        )

    def scalars(self, numbers: Scalars, step: int, phase: float, seconds: float) -> None:
        self._send(step, numbers)

    def _send(self, step: int, numbers: Settings) -> None:
        whole = self.waiting.pop(step, {}) | numbers
        if step >= self.next_step:
            self.run.log(whole | self._video_for(step), step=step)
            self.next_step = step

    def _video_for(self, step: int) -> Settings:
        """The oldest video that was not sent, for this step's entry."""
        import wandb

        if not self.videos or step == self.video_entry:
            return {}
        self.video_entry = step
        path, shown = self.videos.popleft()
        return {"video": wandb.Video(str(path), caption=f"{shown:,} steps", format="mp4"), "video_step": shown}

    def histograms(self, values: dict[str, np.ndarray], step: int, phase: int) -> None:
        import wandb

        bars = {name: wandb.Histogram(np_histogram=np.histogram(x, bins=64)) for name, x in values.items()}
        self.waiting.setdefault(step, {}).update(bars)

    def video(self, path: Path, step: int) -> None:
        self.videos.append((path, step))

    def close(self, ending: Ending, model: Path | None) -> None:
        import wandb

        for step in sorted(self.waiting):
            self._send(step, {})
        while self.videos:  # no row follows: into the newest entry, or right behind it
            self._send(self.next_step + (self.next_step == self.video_entry), {})
        if model is not None:
            artifact = wandb.Artifact(f"model-{self.run.id}", type="model", metadata={"checkpoint": model.name})
            for name, file in model_files(model).items():
                artifact.add_file(str(file), name)
            self.run.log_artifact(artifact)
        self.run.finish(exit_code=1 if ending == "failed" else 0)


def check_account() -> None:
    """UsageError if a run could not start without asking the user for a key."""
    import wandb

    if wandb.setup().settings.mode != "online":
        return
    try:
        if wandb.login(prompt=False, verify=False):
            return
        reason = "needs an account"
    except wandb.errors.AuthenticationError as error:
        reason = f"cannot log in ({' '.join(str(error).split())[:120]})"
    raise UsageError(f"log wandb {reason}: `wandb login` once, or WANDB_MODE=offline to keep runs on disk")
