"""Device scalars to named numbers, read in one transfer."""

from __future__ import annotations

from typing import Any

import torch

RENAMED = {"clip_fraction": "clipfrac"}  # to the tags that fingers and dashboards know
CHARTS = ("learning_rate", "lifespan_mean", "lifespan_std", "lifespan_max", "solved", "reward")


def tag(name: str) -> str:
    """The metric's name in files and charts."""
    return f"{'charts' if name in CHARTS else 'losses'}/{RENAMED.get(name, name)}"


def read(metrics: Any) -> dict[str, float]:
    """Every scalar of a phase's metrics by its tag. Return and length appear only if an episode finished."""
    named = {**metrics.terms._asdict(), **metrics._asdict()}
    scalars = {tag(name): value for name, value in named.items() if name not in ("terms", "episodes", "steps")}
    numbers = torch.cat([torch.stack([v.float() for v in scalars.values()]), metrics.episodes]).tolist()
    row = dict(zip(scalars, numbers, strict=False))
    episodes, returns, lengths = numbers[-3:]
    row["charts/episodes"] = episodes
    if episodes:
        row["charts/episodic_return"] = returns / episodes
        row["charts/episodic_length"] = lengths / episodes
    return row
