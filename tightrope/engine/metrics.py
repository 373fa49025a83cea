"""Device scalars to named numbers, read in one transfer."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .. import activity
from .health import PARAMETER, PARTS, first_bad_rank, unhealthy

RENAMED = {"clip_fraction": "clipfrac"}  # to the tags that fingers and dashboards know
APART = ("terms", "episodes", "steps", "health")  # what is no number of its own
CHARTS = ("learning_rate", "lifespan_mean", "lifespan_std", "lifespan_max", "solved", "reward")


def tag(name: str) -> str:
    """The metric's name in files and charts."""
    return f"{'charts' if name in CHARTS else 'losses'}/{RENAMED.get(name, name)}"


class Reading:
    """A phase's metrics on their way to the host. On a device that takes until the phase has run: ask later."""

    def __init__(self, metrics: Any) -> None:
        named = {**metrics.terms._asdict(), **metrics._asdict()}
        scalars = {tag(name): value for name, value in named.items() if name not in APART}
        self.tags = list(scalars)
        numbers = torch.cat(
            [torch.stack([v.float() for v in scalars.values()]), metrics.health.flatten(), metrics.episodes]
        )
        self.numbers, self.arrival = numbers, None
        if numbers.is_cuda:
            self.numbers = torch.empty(numbers.shape, pin_memory=True).copy_(numbers, non_blocking=True)
            self.arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrival.record(torch.cuda.current_stream(numbers.device))

    def wait(self) -> None:
        """Until the phase has run and its numbers are here."""
        if self.arrival is not None:
            with activity.during("reading what a phase has computed", waits=True):
                self.arrival.synchronize()

    @cached_property
    def values(self) -> list[float]:
        """All the numbers: the scalars, the phase's health, three of its episodes."""
        self.wait()
        return self.numbers.tolist()

    def unhealthy(self) -> list[str]:
        """What was not finite in the phase, cause before consequence; nothing where all is well."""
        if math.isfinite(sum(self.values[len(self.tags) : -3])):
            return []
        return unhealthy(self.health[self.bad_rank].tolist())

    @property
    def bad_rank(self) -> int:
        """The rank on which the first non-finite number appeared."""
        return first_bad_rank(self.health)

    @property
    def health(self) -> np.ndarray:
        """(ranks, parts)"""
        return np.array(self.values[len(self.tags) : -3]).reshape(-1, len(PARTS))

    @property
    def ranks_agree(self) -> bool:
        """Whether all ranks have the same parameters, to the last digit, as far as their sum tells."""
        return bool((self.health[:, PARAMETER] == self.health[0, PARAMETER]).all())

    def row(self) -> dict[str, float]:
        """Every scalar by its tag. Return and length appear only if an episode finished."""
        row = dict(zip(self.tags, self.values, strict=False))
        episodes, returns, lengths = self.values[-3:]
        row["charts/episodes"] = episodes
        if episodes:
            row["charts/episodic_return"] = returns / episodes
            row["charts/episodic_length"] = lengths / episodes
        return row


def read(metrics: Any) -> dict[str, float]:
    """The metrics of a phase, now."""
    return Reading(metrics).row()
