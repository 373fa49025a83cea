"""The pages: each algorithm is one file, from its settings to its loop. To add one, write its file and a line below."""

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
    """What a page offers: its settings and its loop; the state before the first phase and whether the plan is done."""

    config: type[OnPolicyConfig]
    loop: Callable[..., Any]
    start: Callable[..., Any] = start
    finished: Callable[..., bool] = is_finished


ALGORITHMS = {"ppo": Algorithm(PPOConfig, ppo.ppo), "vpg": Algorithm(VPGConfig, vpg.vpg)}

__all__ = ["ALGORITHMS", "Algorithm", "OnPolicyConfig", "PPOConfig", "PPOMetrics", "VPGConfig", "VPGMetrics"]
