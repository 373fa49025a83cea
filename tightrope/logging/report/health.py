"""Judge the health of a run in plain words: one rule for each kind of problem, with advice. outcome.py says how the run ended.

No rule is applied to a run that has reached a known target, since low entropy, a small KL and no gradient are normal for a
solved task. A rule takes the columns and the settings and returns a finding or None. Its thresholds are rules of thumb,
explained in docs/troubleshooting.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...types import Settings
from ..callback import Target
from ..metrics import RETURN, Columns
from .outcome import (
    AT_TARGET,
    ENTROPY,
    KL,
    NORM,
    HealthFinding,
    at_its_end,
    outcome,
    policy_frozen_since,
    returns_of,
    warning,
    with_values,
)
from .statistics import MIN_PHASES, mean_difference, median, smooth

RISE = 0.1  # in the last tenth, as a share of the range of the returns
KL_HIGH, KL_TINY = 0.05, 1e-5
OFTEN = 0.2  # share of phases
CLIP_HIGH, KL_HARMLESS = 0.4, 0.02
VARIANCE_LOW, VARIANCE_BEST = 0.1, 0.3
LOSS_GONE = 0.01  # of the value loss of the first quarter
ENTROPY_GONE, ENTROPY_EARLY = 0.02, 0.05  # shares of the first value and of the steps
NORM_TIMES = 50  # a gradient norm of so many times max_grad_norm is scaled down to almost nothing

HealthRule = Callable[[Columns, Settings], HealthFinding | None]


def health_findings(
    columns: Columns, settings: Settings, target: Target | None = None, score: float | None = None, error: float = 0.0
) -> list[HealthFinding]:
    """How the run ended, then what is wrong with it, warnings first. `score` is the greedy score of the newest policy, with its
    standard error."""
    result = outcome(columns, settings, target, score, error)
    found: list[HealthFinding | None] = []
    reached = result.level == "good" or result.headline.startswith(AT_TARGET)
    if not reached and columns.count >= MIN_PHASES:
        found = [rule(columns, settings) for rule in RULES]
    filled = [with_values(one, settings) for one in found if one is not None]
    return [result, *sorted(filled, key=lambda one: ["warning", "good", "note"].index(one.level))]


# problems ---------------------------------------------------------------------------------------------------------------


def often(bad: np.ndarray, what: str, advice: str, tag: str) -> HealthFinding | None:
    """A warning if a condition holds in many phases; SHARE stands for their share."""
    share = float(np.mean(bad)) if len(bad) else 0.0
    return warning(what.replace("SHARE", f"{share:.0%} of phases"), advice, tag) if share >= OFTEN else None


def kl_too_high(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Updates so large that the rollout says little about the updated policy."""
    what = f"KL above {KL_HIGH} in SHARE: each update moves the policy too far."
    advice = "Lower <learning_rate> or <update_epochs>, or set target_kl 0.02."
    return often(columns.values(KL) > KL_HIGH, what, advice, KL)


def kl_too_low(columns: Columns, settings: Settings) -> HealthFinding | None:
    """A policy that does not change. (A deterministic one does not either: `policy_frozen_since` is for that.)"""
    kl, entropy = columns.values(KL), columns.values(ENTROPY)
    if len(kl) == 0 or np.abs(kl).max() > KL_TINY or (len(entropy) and entropy[0] <= 0):
        return None
    what = f"KL below {KL_TINY:.0e} from the beginning: the policy hardly moves."
    return warning(what, "Raise <learning_rate>.", KL)


def clipped_too_often(columns: Columns, settings: Settings) -> HealthFinding | None:
    """With anneal_clip the interval shrinks, so clipping counts only if the policy moved as well."""
    what = f"More than {CLIP_HIGH:.0%} of the samples clipped in SHARE: steps are too large."
    bad = (columns["losses/clipfrac"] > CLIP_HIGH) & (columns[KL] > KL_HARMLESS)
    return often(bad, what, "Lower <learning_rate>, or use fewer <update_epochs>.", "losses/clipfrac")


def weights_pinned(columns: Columns, settings: Settings) -> HealthFinding | None:
    """VPG reuses rollouts too often: most weights are at the clamp."""
    clamp, tag = settings.get("weight_clamp"), "losses/importance_weight"
    if not clamp or not settings.get("use_importance_weights"):
        return None
    what = "Importance weights at their clamp in SHARE: the rollout is of a much older policy."
    advice = "Use fewer <rollout_uses>, or lower <learning_rate>."
    return often(np.abs(columns.values(tag) - 1) > 0.8 * clamp, what, advice, tag)


def critic_learns_nothing(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Never well above 0. A critic with hardly any loss left has nothing to explain: all its targets are equal."""
    explained, loss = columns.values("losses/explained_variance"), columns.values("losses/value_loss")
    if len(explained) < 2 * MIN_PHASES or median(explained) > VARIANCE_LOW or not explained.any():
        return None
    if smooth(np.arange(len(explained)), explained)[1].max() > VARIANCE_BEST:
        return None
    if len(loss) and median(loss[len(loss) // 2 :]) < LOSS_GONE * median(loss[1 : 1 + max(len(loss) // 4, 1)]):
        return None
    scaled = "" if settings.get("norm_reward") else " Set norm_reward if returns are in the hundreds."
    what = "Explained variance near 0: the critic is not learning."
    return warning(what, f"Look at the scale of rewards and observations.{scaled}", "losses/explained_variance")


def entropy_gone_early(columns: Columns, settings: Settings) -> HealthFinding | None:
    """Exploration ended before anything was learned. Not for Gaussians, whose entropy may be negative."""
    step, entropy = columns.curve(ENTROPY)
    found = returns_of(columns)
    if len(entropy) < 2 * MIN_PHASES or entropy.min() < 0 or entropy[0] <= 0 or (found and found.near_its_best):
        return None
    gone = entropy <= ENTROPY_GONE * entropy[0]
    first, total = np.argmax(gone), max(float(settings.get("total_timesteps") or 0), float(step[-1]))
    if not gone.any() or step[first] > ENTROPY_EARLY * total or policy_frozen_since(columns) is not None:
        return None
    when = f"in the first {step[first] / total:.0%} of the run"
    what = f"Entropy fell to {entropy[first]:.2g} {when}: the policy stopped exploring too soon."
    return warning(what, "Raise <ent_coef> to 0.01 or more, or lower <learning_rate>.", ENTROPY)


def gradient_always_clipped(columns: Columns, settings: Settings) -> HealthFinding | None:
    limit, norm = settings.get("max_grad_norm"), columns.values(NORM)
    if not limit or len(norm) == 0 or median(norm) < NORM_TIMES * limit:
        return None
    what = f"The median gradient norm is {median(norm):,.0f}, max_grad_norm {limit:g}: every step is clipped."
    return warning(what, "Scale the rewards: norm_reward (PPO), or in the environment.", NORM)


def still_rising(columns: Columns, settings: Settings) -> HealthFinding | None:
    """The last tenth is significantly above the one before it."""
    step, value = columns.curve(RETURN)
    found, weight = returns_of(columns), columns.weights(RETURN)
    if found is None or len(value) < 5 * MIN_PHASES or not at_its_end(columns, settings):
        return None
    last = step > 0.9 * step[-1]
    before = (step > 0.8 * step[-1]) & ~last
    if last.sum() < 4 or before.sum() < 4:
        return None
    rise, error = mean_difference((value[before], weight[before]), (value[last], weight[last]))
    if rise < max(3 * error, RISE * found.range):
        return None
    what = f"The return was still rising at the end, by {rise:,.3g} in the last tenth."
    return HealthFinding("note", what, "Train longer: raise <total_timesteps>.", RETURN)


RULES: list[HealthRule] = [
    kl_too_high, kl_too_low, clipped_too_often, weights_pinned, critic_learns_nothing, entropy_gone_early,
    gradient_always_clipped, still_rising,
]  # fmt: skip
