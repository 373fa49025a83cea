"""What scalars are called in a tracker: as in metrics.jsonl, or as Stable-Baselines3 calls them.

Where the two libraries mean different numbers by a name, the number is turned into theirs: their entropy loss is minus the
entropy, their value loss the mean squared error, of which ours is half. What they have no word for keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

TrackerTags = Literal["tightrope", "sb3"]
Scalars = dict[str, float]

SB3: dict[str, tuple[str, float]] = {  # ours: (theirs, theirs for one of ours)
    "charts/episodic_return": ("rollout/ep_rew_mean", 1),
    "charts/episodic_length": ("rollout/ep_len_mean", 1),
    "charts/learning_rate": ("train/learning_rate", 1),
    "charts/SPS": ("time/fps", 1),
    "losses/policy_loss": ("train/policy_gradient_loss", 1),
    "losses/objective": ("train/policy_loss", -1),  # of VPG, as A2C has it
    "losses/value_loss": ("train/value_loss", 2),
    "losses/entropy": ("train/entropy_loss", -1),
    "losses/approx_kl": ("train/approx_kl", 1),
    "losses/clipfrac": ("train/clip_fraction", 1),
    "losses/explained_variance": ("train/explained_variance", 1),
    "eval/episodic_return": ("eval/mean_reward", 1),
    "eval/episodic_length": ("eval/mean_ep_length", 1),
    "phase": ("time/iterations", 1),
    "time": ("time/time_elapsed", 1),
}


def scalars(row: dict[str, Any]) -> Scalars:
    """Every finite number of a phase but its step, which is where it goes."""
    return {tag: float(x) for tag, x in row.items() if tag != "step" and math.isfinite(x)}


def naming(tags: TrackerTags, settings: dict[str, Any]) -> Callable[[dict[str, Any]], Scalars]:
    """From a row of metrics to scalars under the names that were asked for."""
    if tags == "tightrope":
        return scalars
    ent_coef, vf_coef = settings["ent_coef"], settings.get("vf_coef", 0.0)

    def as_sb3(row: dict[str, Any]) -> Scalars:
        ours = scalars(row)
        named = {SB3.get(tag, (tag, 1))[0]: x * SB3.get(tag, (tag, 1))[1] for tag, x in ours.items()}
        if {"losses/policy_loss", "losses/value_loss", "losses/entropy"} <= ours.keys():
            policy_loss, value_loss = ours["losses/policy_loss"], ours["losses/value_loss"]
            named["train/loss"] = policy_loss - ent_coef * ours["losses/entropy"] + vf_coef * value_loss
        return named | {"time/total_timesteps": float(row["step"])}

    return as_sb3
