"""The pages: each algorithm is one file, from its configuration to its loop. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import ppo, vpg
from .ppo import PPOConfig, PPOMetrics
from .vpg import VPGConfig, VPGMetrics


@dataclass(frozen=True)
class Algorithm:
    """What a page offers: its settings, the state before the first phase, and the loop."""

    config: type[PPOConfig] | type[VPGConfig]
    start: Callable[..., Any]
    loop: Callable[..., Any]


ALGORITHMS = {
    "ppo": Algorithm(PPOConfig, ppo.start, ppo.ppo),
    "vpg": Algorithm(VPGConfig, vpg.start, vpg.vpg),
}

__all__ = ["ALGORITHMS", "Algorithm", "PPOConfig", "PPOMetrics", "VPGConfig", "VPGMetrics"]
