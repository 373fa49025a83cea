"""A run's health in plain words: what came of it, then one small rule per thing that goes wrong, with what to do about it.

"Good" is said only where the return has reached a target that is known, and then nothing else is: low entropy, a small KL
and no gradient are what a solved task looks like. A rule sees the columns and the settings and returns a finding or None. It
speaks only of what the numbers show; its thresholds are rules of thumb from docs/troubleshooting.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..callback import Target
from .columns import Columns
from .outcome import Finding, Settings, at_its_end, now, outcome
from .stages import FEW_PHASES, dead_since, near_its_best, stages
from .statistics import middle, smooth

KL_HIGH, KL_SHARE = 0.05, 0.2
KL_TINY = 1e-5
CLIP_HIGH, KL_HARMLESS = 0.4, 0.02
VARIANCE_LOW, VARIANCE_BEST = 0.1, 0.3
ENTROPY_GONE, ENTROPY_EARLY = 0.02, 0.05  # shares of the first value, of the steps
NORM_TIMES = 50  # how many times the limit a gradient is, if hardly anything of it is left
RISE = 0.1  # in the last tenth, as a share of the range that returns went through


Rule = Callable[[Columns, Settings], Finding | None]


def health(
    columns: Columns, settings: Settings, target: Target | None = None, score: float | None = None
) -> list[Finding]:
    """What there is to say, warnings first. `score` is the greedy one of the policy as it is now."""
    if columns.count < FEW_PHASES:
        return [Finding("note", f"Only {columns.count} phases so far: too few to judge.")]
    came = outcome(columns, settings, target, score)
    if came is not None and came.level == "good":
        return [came]
    found = [finding for rule in RULES if (finding := rule(columns, settings)) is not None]
    found = [*([] if came is None else [came]), *found]
    return sorted(found, key=lambda finding: ["warning", "good", "note"].index(finding.level))


# how far a policy moves ---------------------------------------------------------------------------------------------------


def kl_too_high(columns: Columns, settings: Settings) -> Finding | None:
    """Steps so large that what was collected says little about the policy that learns from it."""
    kl = known(columns, "losses/approx_kl")
    share = float(np.mean(kl > KL_HIGH)) if len(kl) else 0.0
    if share < KL_SHARE:
        return None
    return Finding(
        "warning",
        f"KL above {KL_HIGH} in {share:.0%} of phases: each update moves the policy too far.",
        f"Lower learning_rate{now(settings, 'learning_rate')} or update_epochs{now(settings, 'update_epochs')}, or set "
        f"target_kl 0.02.",
        "losses/approx_kl",
    )


def kl_too_low(columns: Columns, settings: Settings) -> Finding | None:
    """A policy that stays what it was made. (One that has made up its mind stays as well: that is another matter.)"""
    kl, entropy = known(columns, "losses/approx_kl"), known(columns, "losses/entropy")
    if len(kl) == 0 or np.abs(kl).max() > KL_TINY or (len(entropy) and entropy[0] <= 0):
        return None
    return Finding(
        "warning",
        f"KL below {KL_TINY:.0e} from the beginning: the policy hardly moves.",
        f"Raise learning_rate{now(settings, 'learning_rate')}.",
        "losses/approx_kl",
    )


def clipped_too_often(columns: Columns, settings: Settings) -> Finding | None:
    """With anneal_clip the interval shrinks, so clipping counts only where the policy moved as well."""
    clipped, kl = columns["losses/clipfrac"], columns["losses/approx_kl"]
    share = float(np.mean((clipped > CLIP_HIGH) & (kl > KL_HARMLESS))) if columns.count else 0.0
    if share < KL_SHARE:
        return None
    return Finding(
        "warning",
        f"More than {CLIP_HIGH:.0%} of the samples clipped in {share:.0%} of phases: steps are too large.",
        f"Lower learning_rate{now(settings, 'learning_rate')}, or use fewer update_epochs{now(settings, 'update_epochs')}.",
        "losses/clipfrac",
    )


def weights_pinned(columns: Columns, settings: Settings) -> Finding | None:
    """VPG's reuse of rollouts, gone too far: the clamp says everything."""
    clamp, weight = settings.get("weight_clamp"), known(columns, "losses/importance_weight")
    if not clamp or not settings.get("use_importance_weights") or len(weight) == 0:
        return None
    share = float(np.mean(np.abs(weight - 1) > 0.8 * clamp))
    if share < KL_SHARE:
        return None
    return Finding(
        "warning",
        f"Importance weights at their clamp in {share:.0%} of phases: the rollout is of a policy that is long gone.",
        f"Use fewer rollout_uses{now(settings, 'rollout_uses')}, or lower learning_rate{now(settings, 'learning_rate')}.",
        "losses/importance_weight",
    )


# what is learned ----------------------------------------------------------------------------------------------------------


def critic_learns_nothing(columns: Columns, settings: Settings) -> Finding | None:
    """Never well above 0. (Near 0 at the end of a solved task is fine: there all targets are the same.)"""
    explained = known(columns, "losses/explained_variance")
    if len(explained) < 2 * FEW_PHASES or middle(explained) > VARIANCE_LOW or not explained.any():
        return None
    if smooth(np.arange(len(explained)), explained)[1].max() > VARIANCE_BEST:
        return None
    scaled = "" if settings.get("norm_reward") else " Set norm_reward if returns are in the hundreds."
    return Finding(
        "warning",
        "Explained variance near 0: the critic is not learning.",
        f"Look at the scale of rewards and observations.{scaled}",
        "losses/explained_variance",
    )


def entropy_gone_early(columns: Columns, settings: Settings) -> Finding | None:
    """A choice that was made before there was anything to choose by. A Gaussian's entropy may be negative: not meant here."""
    step, entropy = columns.curve("losses/entropy")
    if len(entropy) < 2 * FEW_PHASES or entropy.min() < 0 or entropy[0] <= 0 or near_its_best(columns):
        return None
    if dead_since(columns) is not None:  # which is what came of it
        return None
    gone = entropy <= ENTROPY_GONE * entropy[0]
    total = max(float(settings.get("total_timesteps") or 0), float(step[-1]))
    if not gone.any() or step[np.argmax(gone)] > ENTROPY_EARLY * total:
        return None
    return Finding(
        "warning",
        f"Entropy fell to {entropy[np.argmax(gone)]:.2g} in the first {step[np.argmax(gone)] / total:.0%} of the run: the "
        "policy made up its mind too soon.",
        f"Raise ent_coef{now(settings, 'ent_coef')} to 0.01 or more, or lower learning_rate{now(settings, 'learning_rate')}.",
        "losses/entropy",
    )


def gradient_always_clipped(columns: Columns, settings: Settings) -> Finding | None:
    limit, norm = settings.get("max_grad_norm"), known(columns, "losses/grad_norm")
    if not limit or len(norm) == 0 or middle(norm) < NORM_TIMES * limit:
        return None
    return Finding(
        "warning",
        f"The gradient's norm is {middle(norm):,.0f} as a rule, max_grad_norm {limit:g}: every step is a clipped one.",
        "Scale the rewards: norm_reward (PPO), or in the environment.",
        "losses/grad_norm",
    )


# what becomes of the return -------------------------------------------------------------------------------------------


def no_episode_finished(columns: Columns, settings: Settings) -> Finding | None:
    if "charts/episodic_return" in columns:
        return None
    return Finding(
        "warning",
        "No episode has finished: there is no return to learn a lesson from.",
        "Give the environment a time limit with max_episode_steps, or wait.",
    )


def still_rising(columns: Columns, settings: Settings) -> Finding | None:
    """The last tenth is above the one before it, by more than chance would have it."""
    step, value = columns.curve("charts/episodic_return")
    if len(value) < 5 * FEW_PHASES or not at_its_end(columns, settings):
        return None
    last, before = value[step > 0.9 * step[-1]], value[(step > 0.8 * step[-1]) & (step <= 0.9 * step[-1])]
    if len(last) < 4 or len(before) < 4:
        return None
    error = np.hypot(last.std() / len(last) ** 0.5, before.std() / len(before) ** 0.5)
    rise, found = last.mean() - before.mean(), stages(columns)
    if found is None or rise < 3 * error or rise < RISE * found.range:
        return None
    return Finding(
        "note",
        f"The return was still rising at the end, by {rise:,.3g} in the last tenth.",
        f"Train longer: total_timesteps{now(settings, 'total_timesteps')}.",
        "charts/episodic_return",
    )


RULES: list[Rule] = [
    kl_too_high, kl_too_low, clipped_too_often, weights_pinned, critic_learns_nothing, entropy_gone_early,
    gradient_always_clipped, no_episode_finished, still_rising,
]  # fmt: skip


# in words ------------------------------------------------------------------------------------------------------------------


def known(columns: Columns, tag: str) -> np.ndarray:
    return columns.curve(tag)[1]
