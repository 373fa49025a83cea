"""Trackers, each an onlooker and an equal of the others: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from ...errors import UsageError
from .mlflow import MLflow
from .tags import TrackerTags
from .tensorboard import TensorBoard
from .tracker import Tracker, TrackerOptions
from .wandb import WandB, check_account

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: dict[str, type[Tracker]] = {sink.package: sink for sink in (TensorBoard, WandB, MLflow)}


def check_trackers(names: tuple[str, ...]) -> None:
    """UsageError for a tracker that cannot work here."""
    for name in names:
        spec = find_spec(TRACKERS[name].package)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise UsageError(f'log {name} needs a package that is not installed: pip install "tightrope[{name}]"')
    if "wandb" in names:
        check_account()


__all__ = ["TRACKERS", "Tracker", "TrackerName", "TrackerOptions", "TrackerTags", "check_trackers"]
