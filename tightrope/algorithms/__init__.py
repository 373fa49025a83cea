"""The algorithms, one file each. To add one, write its file and add a line to ALGORITHMS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import ppo, vpg
from .common import OnPolicyConfig, is_finished, start
from .ppo import PPOConfig, PPOMetrics
from .vpg import VPGConfig, VPGMetrics


@dataclass(frozen=True)
class Algorithm:
    """The parts of an algorithm file that the rest of the package uses."""

    config: type[OnPolicyConfig]
    loop: Callable[..., Any]  # (state, config) to an iterator over the metrics of each phase
    start: Callable[..., Any] = start  # makes the state before the first phase
    finished: Callable[..., bool] = is_finished  # (state, config): whether the run is complete


ALGORITHMS = {"ppo": Algorithm(PPOConfig, ppo.ppo), "vpg": Algorithm(VPGConfig, vpg.vpg)}

__all__ = ["ALGORITHMS", "Algorithm", "OnPolicyConfig", "PPOConfig", "PPOMetrics", "VPGConfig", "VPGMetrics"]
