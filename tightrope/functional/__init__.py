"""One pure function per equation. Nothing here knows of environments, networks or devices."""

from .estimators import (
    alive_mask,
    discounted_returns,
    explained_variance,
    gae,
    masked_mean,
    running_mask,
    running_returns,
    standardize,
    successor_values,
    timestep_mean,
)
from .losses import (
    PPOLoss,
    VPGLoss,
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    entropy_bonus,
    importance_weights,
    policy_gradient,
    value_loss,
)
from .schedules import linear

__all__ = [
    "PPOLoss",
    "VPGLoss",
    "alive_mask",
    "approx_kl",
    "clip_fraction",
    "clipped_surrogate",
    "clipped_value_loss",
    "discounted_returns",
    "entropy_bonus",
    "explained_variance",
    "gae",
    "importance_weights",
    "linear",
    "masked_mean",
    "policy_gradient",
    "running_mask",
    "running_returns",
    "standardize",
    "successor_values",
    "timestep_mean",
    "value_loss",
]
