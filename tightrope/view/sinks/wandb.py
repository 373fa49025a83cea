"""Weights & Biases, through its own client. WANDB_MODE, WANDB_DIR and the like mean what they always mean.

Its history has one entry per step and only grows: what belongs to a step is put together and sent once, when the step's row is
there, and steps that a resumed run had sent before are not sent again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...errors import UsageError
from . import identity
from .sink import Ending, Options, Sink
from .watch import Histogram

SECONDS = 25.0  # for its server to answer, at the start and at the end
PROJECT = "tightrope"


class WandB(Sink):
    name, package = "W&B", "wandb"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.waiting: dict[int, dict[str, Any]] = {}  # by step

    def open(self) -> None:
        import wandb

        try:
            self.run = self._begun(None)
        except (wandb.errors.CommError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:120]
            self.options.say(f"wandb: no answer ({reason}); the run is kept on disk")
            self.run = self._begun("offline")
        identity.remember(self.about.run_dir, self.package, self.run.id)
        self.next_step = self.run.step  # after what it has already; asking each time would be waiting each time
        self.run.config.update(self.parameters, allow_val_change=True)
        where = f"wandb sync {Path(self.run.dir).parent}" if self.run.offline else self.run.url
        self.options.say(f"wandb: {where}")

    def _begun(self, mode: Any) -> Any:
        import wandb

        about, options = self.about, self.options
        settings = wandb.Settings(console="off", silent=True, init_timeout=SECONDS, finish_timeout=SECONDS)
        run_id = identity.known(about.run_dir).get(self.package)
        return wandb.init(
            project=options.project or os.environ.get("WANDB_PROJECT") or PROJECT,
            entity=options.entity,
            name=self.run_name,
            notes="\n".join(about.plan),
            id=run_id,
            resume=None if run_id is None else "allow",
            dir=None if "WANDB_DIR" in os.environ else about.run_dir,
            mode=mode,
            reinit="create_new",  # a run of the caller's own is left alone
            settings=settings,
        )

    def scalars(self, row: dict[str, Any], seconds: float) -> None:
        self._send(row["step"], self.named(row))

    def _send(self, step: int, numbers: dict[str, Any]) -> None:
        whole = self.waiting.pop(step, {}) | numbers
        if step >= self.next_step:
            self.run.log(whole, step=step)

    def histograms(self, found: dict[str, Histogram], step: int, phase: int) -> None:
        import wandb

        bars = {name: wandb.Histogram(np_histogram=(h.counts, h.edges)) for name, h in found.items()}
        self.waiting.setdefault(step, {}).update(bars)

    def film(self, path: Path, step: int) -> None:
        import wandb

        self.waiting.setdefault(step, {})["video"] = wandb.Video(str(path), format="mp4")

    def close(self, ending: Ending, model: Path | None) -> None:
        import wandb

        for step in sorted(self.waiting):
            self._send(step, {})
        if model is not None:
            artifact = wandb.Artifact(f"model-{self.run.id}", type="model", metadata={"checkpoint": model.name})
            for file in sorted(model.iterdir()):
                artifact.add_file(str(file))
            self.run.log_artifact(artifact)
        self.run.finish(exit_code=1 if ending == "failed" else 0)


def check_account() -> None:
    """UsageError if a run could only begin by asking somebody for a key."""
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
