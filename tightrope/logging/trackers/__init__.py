"""Experiment trackers, as callbacks: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from ...errors import UsageError
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .tracker import Tracker, TrackerOptions, TrackerTags
from .wandb import WandB, check_account

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: dict[str, type[Tracker]] = {tracker.package: tracker for tracker in (TensorBoard, WandB, MLflow)}


def check_trackers(names: tuple[str, ...]) -> None:
    """Raise UsageError for a tracker that cannot work here."""
    for name in names:
        spec = find_spec(TRACKERS[name].package)
        if spec is None or spec.origin is None:  # a directory of that name is not a package
            raise UsageError(f'log {name} needs a package that is not installed: pip install "tightrope[{name}]"')
    if "wandb" in names:
        check_account()


__all__ = ["TRACKERS", "Tracker", "TrackerName", "TrackerOptions", "TrackerTags", "check_trackers"]
