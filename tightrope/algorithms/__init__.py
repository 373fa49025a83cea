"""The pages: each algorithm is one file, from its configuration to its loop. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import ppo, vpg
from .ppo import PPOConfig, PPOMetrics
from .settings import AlgorithmConfig
from .vpg import VPGConfig, VPGMetrics


@dataclass(frozen=True)
class Algorithm:
    """What a page offers: its settings, the state before the first phase, the loop, and whether the plan is done."""

    config: type[Any]
    start: Callable[..., Any]
    loop: Callable[..., Any]
    finished: Callable[..., bool]


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo.start, ppo.ppo, ppo.finished),
    "vpg": Algorithm(VPGConfig, vpg.start, vpg.vpg, vpg.finished),
}

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmConfig", "PPOConfig", "PPOMetrics", "VPGConfig", "VPGMetrics"]
