"""A run's health in plain words: what came of it, then one rule for each thing that goes wrong, with advice.

"Good" means that the return has reached a known target; then no rule is applied, since low entropy, a small KL and no gradient
are normal for a solved task. A rule takes the columns and the settings and returns a finding or None. Its thresholds are rules
of thumb, explained in docs/troubleshooting.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...types import Settings
from ..callback import Target
from ..metrics import RETURN, Columns
from .outcome import (
    MIN_PHASES,
    HealthFinding,
    at_its_end,
    dead_since,
    near_its_best,
    outcome,
    return_summary,
    warning,
    with_values,
)  # fmt: skip
from .statistics import median, smooth

KL_HIGH, KL_TINY = 0.05, 1e-5
OFTEN = 0.2  # share of phases
CLIP_HIGH, KL_HARMLESS = 0.4, 0.02
VARIANCE_LOW, VARIANCE_BEST = 0.1, 0.3
ENTROPY_GONE, ENTROPY_EARLY = 0.02, 0.05  # shares of the first value and of the steps
NORM_TIMES = 50  # a gradient norm of so many times max_grad_norm is scaled down to almost nothing
RISE = 0.1  # in the last tenth, as a share of the range of the returns

HealthRule = Callable[[Columns, Settings], HealthFinding | None]


def health_findings(
    columns: Columns, settings: Settings, target: Target | None = None, score: float | None = None
) -> list[HealthFinding]:
    """All findings, warnings first. `score` is the greedy score of the newest policy."""
    if columns.count < MIN_PHASES:
        return [HealthFinding("note", f"Only {columns.count} phases so far: too few to judge.")]
    came = outcome(columns, settings, target, score)
    if came is not None and came.level == "good":
        return [came]
    found = [came, *(rule(columns, settings) for rule in RULES)]
    filled = [replace(one, advice=with_values(one.advice, settings)) for one in found if one is not None]
    return sorted(filled, key=lambda one: ["warning", "good", "note"].index(one.level))


def share_of(bad: np.ndarray) -> float:
    return float(np.mean(bad)) if len(bad) else 0.0


# how far a policy moves ---------------------------------------------------------------------------------------------------


def kl_too_high(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Updates so large that the rollout says little about the updated policy."""
    share = share_of(columns.values("losses/approx_kl") > KL_HIGH)
    what = f"KL above {KL_HIGH} in {share:.0%} of phases: each update moves the policy too far."
    advice = "Lower <learning_rate> or <update_epochs>, or set target_kl 0.02."
    return warning(what, advice, "losses/approx_kl") if share >= OFTEN else None


def kl_too_low(columns: Columns, settings: Settings) -> HealthFinding | None:
    """A policy that does not change. (A deterministic one does not either: `dead_since` is for that.)"""
    kl, entropy = columns.values("losses/approx_kl"), columns.values("losses/entropy")
    if len(kl) == 0 or np.abs(kl).max() > KL_TINY or (len(entropy) and entropy[0] <= 0):
        return None
    what = f"KL below {KL_TINY:.0e} from the beginning: the policy hardly moves."
    return warning(what, "Raise <learning_rate>.", "losses/approx_kl")


def clipped_too_often(columns: Columns, settings: Settings) -> HealthFinding | None:
    """With anneal_clip the interval shrinks, so clipping counts only if the policy moved as well."""
    share = share_of((columns["losses/clipfrac"] > CLIP_HIGH) & (columns["losses/approx_kl"] > KL_HARMLESS))
    what = f"More than {CLIP_HIGH:.0%} of the samples clipped in {share:.0%} of phases: steps are too large."
    advice = "Lower <learning_rate>, or use fewer <update_epochs>."
    return warning(what, advice, "losses/clipfrac") if share >= OFTEN else None


def weights_pinned(columns: Columns, settings: Settings) -> HealthFinding | None:
    """VPG reuses rollouts too often: most weights are at the clamp."""
    clamp, weight = settings.get("weight_clamp"), columns.values("losses/importance_weight")
    if not clamp or not settings.get("use_importance_weights"):
        return None
    share = share_of(np.abs(weight - 1) > 0.8 * clamp)
    what = f"Importance weights at their clamp in {share:.0%} of phases: the rollout is of a much older policy."
    advice = "Use fewer <rollout_uses>, or lower <learning_rate>."
    return warning(what, advice, "losses/importance_weight") if share >= OFTEN else None


# what is learned ----------------------------------------------------------------------------------------------------------


def critic_learns_nothing(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Never well above 0. (Near 0 at the end of a solved task is fine: all targets are equal there.)"""
    explained = columns.values("losses/explained_variance")
    if len(explained) < 2 * MIN_PHASES or median(explained) > VARIANCE_LOW or not explained.any():
        return None
    if smooth(np.arange(len(explained)), explained)[1].max() > VARIANCE_BEST:
        return None
    scaled = "" if settings.get("norm_reward") else " Set norm_reward if returns are in the hundreds."
    what = "Explained variance near 0: the critic is not learning."
    return warning(what, f"Look at the scale of rewards and observations.{scaled}", "losses/explained_variance")


def entropy_gone_early(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Exploration ended before anything was learned. Not for Gaussians, whose entropy may be negative."""
    step, entropy = columns.curve("losses/entropy")
    if len(entropy) < 2 * MIN_PHASES or entropy.min() < 0 or entropy[0] <= 0 or near_its_best(columns):
        return None
    gone = entropy <= ENTROPY_GONE * entropy[0]
    first, total = np.argmax(gone), max(float(settings.get("total_timesteps") or 0), float(step[-1]))
    if (
        not gone.any() or step[first] > ENTROPY_EARLY * total or dead_since(columns) is not None
    ):  # which is reported already
        return None
    when = f"in the first {step[first] / total:.0%} of the run"
    what = f"Entropy fell to {entropy[first]:.2g} {when}: the policy stopped exploring too soon."
    return warning(what, "Raise <ent_coef> to 0.01 or more, or lower <learning_rate>.", "losses/entropy")


def gradient_always_clipped(columns: Columns, settings: Settings) -> HealthFinding | None:
    limit, norm = settings.get("max_grad_norm"), columns.values("losses/grad_norm")
    if not limit or len(norm) == 0 or median(norm) < NORM_TIMES * limit:
        return None
    what = f"The median gradient norm is {median(norm):,.0f}, max_grad_norm {limit:g}: every step is clipped."
    return warning(what, "Scale the rewards: norm_reward (PPO), or in the environment.", "losses/grad_norm")


# what becomes of the return -------------------------------------------------------------------------------------------


def no_episode_finished(columns: Columns, settings: Settings) -> HealthFinding | None:
    advice = "Give the environment a time limit with max_episode_steps, or wait."
    return None if RETURN in columns else warning("No episode has finished: there is no return yet.", advice)


def still_rising(columns: Columns, settings: Settings) -> HealthFinding | None:
    """The last tenth is significantly above the one before it."""
    step, value = columns.curve(RETURN)
    if len(value) < 5 * MIN_PHASES or not at_its_end(columns, settings):
        return None
    last, before = value[step > 0.9 * step[-1]], value[(step > 0.8 * step[-1]) & (step <= 0.9 * step[-1])]
    if len(last) < 4 or len(before) < 4:
        return None
    error = np.hypot(last.std() / len(last) ** 0.5, before.std() / len(before) ** 0.5)
    rise, found = last.mean() - before.mean(), return_summary(columns)
    if found is None or rise < 3 * error or rise < RISE * found.range:
        return None
    what = f"The return was still rising at the end, by {rise:,.3g} in the last tenth."
    return HealthFinding("note", what, "Train longer: <total_timesteps>.", RETURN)


RULES: list[HealthRule] = [
    kl_too_high, kl_too_low, clipped_too_often, weights_pinned, critic_learns_nothing, entropy_gone_early,
    gradient_always_clipped, no_episode_finished, still_rising,
]  # fmt: skip
