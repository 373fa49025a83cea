"""One pure function per equation. Losses take the policy as a function; nothing here depends on environments or devices."""

from .estimators import (
    alive_mask,
    collected_mask,
    discounted_returns,
    explained_variance,
    gae,
    last_row,
    masked_mean,
    mean_of_taken,
    running_returns,
    standardize,
    successor_values,
    timestep_mean,
)  # fmt: skip
from .losses import (
    PPOLoss,
    PPOTerms,
    VPGLoss,
    VPGTerms,
    approx_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    entropy_bonus,
    importance_weights,
    policy_gradient,
    terms_to_check,
    value_loss,
)  # fmt: skip
from .schedules import linear

__all__ = [
    "PPOLoss", "PPOTerms", "VPGLoss", "VPGTerms", "alive_mask", "approx_kl", "clip_fraction", "clipped_surrogate",
    "clipped_value_loss", "collected_mask", "discounted_returns", "entropy_bonus", "explained_variance", "gae",
    "importance_weights", "last_row", "linear", "masked_mean", "mean_of_taken", "policy_gradient", "running_returns",
    "standardize", "successor_values", "terms_to_check", "timestep_mean", "value_loss",
]  # fmt: skip
