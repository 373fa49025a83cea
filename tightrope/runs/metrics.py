"""Device scalars to named numbers, read in one transfer."""

from __future__ import annotations

import torch

from ..algorithms import PPOMetrics, VPGMetrics

TAGS = {
    "policy_loss": "losses/policy_loss",
    "objective": "losses/objective",
    "value_loss": "losses/value_loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "explained_variance": "losses/explained_variance",
    "grad_norm": "losses/grad_norm",
    "importance_weight": "losses/importance_weight",
    "learning_rate": "charts/learning_rate",
    "lifespan_mean": "charts/lifespan_mean",
    "lifespan_std": "charts/lifespan_std",
    "lifespan_max": "charts/lifespan_max",
    "solved": "charts/solved",
}


def read(metrics: PPOMetrics | VPGMetrics) -> dict[str, float]:
    """Every metric by its tag. Return and length appear only in phases in which an episode finished."""
    named = {**metrics.terms._asdict(), **metrics._asdict()}
    scalars = {TAGS[name]: value for name, value in named.items() if name in TAGS}
    numbers = torch.cat([torch.stack([v.float() for v in scalars.values()]), metrics.episodes]).tolist()
    row = dict(zip(scalars, numbers, strict=False))
    episodes, returns, lengths = numbers[-3:]
    row["charts/episodes"] = episodes
    if episodes:
        row["charts/episodic_return"] = returns / episodes
        row["charts/episodic_length"] = lengths / episodes
    return row
