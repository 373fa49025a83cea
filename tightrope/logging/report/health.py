"""Judge the health of a run in plain words: its result, then one rule for each kind of problem, with advice.

"Good" means that the return has reached a known target; then no rule is applied, since low entropy, a small KL and no gradient
are normal for a solved task. A rule takes the columns and the settings and returns a finding or None. Its thresholds are rules
of thumb, explained in docs/troubleshooting.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...types import Settings
from ..callback import Target
from ..metrics import RETURN, Columns
from .statistics import MIN_PHASES, ROUNDING, ReturnSummary, median, return_summary, smooth, standard_error

HARDLY = 0.2  # of the way from the first return to the target: if less was gained and lost again, nothing was learned
RISE = 0.1  # in the last tenth, as a share of the range of the returns
# a dead policy: share of the first entropy, KL, share of the first norm, share of the phases
DECIDED, STILL_KL, STILL_NORM, DEAD_SHARE = 1e-3, 1e-6, 1e-4, 0.2
KL_HIGH, KL_TINY = 0.05, 1e-5
OFTEN = 0.2  # share of phases
CLIP_HIGH, KL_HARMLESS = 0.4, 0.02
VARIANCE_LOW, VARIANCE_BEST = 0.1, 0.3
ENTROPY_GONE, ENTROPY_EARLY = 0.02, 0.05  # shares of the first value and of the steps
NORM_TIMES = 50  # a gradient norm of so many times max_grad_norm is scaled down to almost nothing

KL, ENTROPY, NORM = "losses/approx_kl", "losses/entropy", "losses/grad_norm"
Level = Literal["good", "note", "warning"]


@dataclass(frozen=True)
class HealthFinding:
    level: Level
    what: str  # one sentence
    advice: str = ""  # <setting> stands for the setting and its value
    tag: str = ""  # of the curve to look at


HealthRule = Callable[[Columns, Settings], HealthFinding | None]


def warning(what: str, advice: str = "", tag: str = "") -> HealthFinding:
    return HealthFinding("warning", what, advice, tag)


def health_findings(
    columns: Columns, settings: Settings, target: Target | None = None, score: float | None = None
) -> list[HealthFinding]:
    """All findings, warnings first. `score` is the greedy score of the newest policy."""
    if columns.count < MIN_PHASES:
        return [HealthFinding("note", f"Only {columns.count} phases so far: too few to judge.")]
    result = return_finding(columns, settings, target, score)
    if result is not None and result.level == "good":
        return [result]
    found = [result, *(rule(columns, settings) for rule in RULES)]
    filled = [replace(one, advice=with_values(one.advice, settings)) for one in found if one is not None]
    return sorted(filled, key=lambda one: ["warning", "good", "note"].index(one.level))


def with_values(advice: str, settings: Settings) -> str:
    """Every <setting> with its present value: 'learning_rate (now 0.015)'."""

    def fill(match: re.Match[str]) -> str:
        value = settings.get(match[1])
        if value is None or isinstance(value, bool):
            return match[1]
        return f"{match[1]} (now {value:,})" if isinstance(value, int) else f"{match[1]} (now {value})"

    return re.sub(r"<(\w+)>", fill, advice)


# the result -------------------------------------------------------------------------------------------------------------


def return_finding(
    columns: Columns, settings: Settings, target: Target | None, score: float | None
) -> HealthFinding | None:
    """Whether the task is solved, the policy dead, the return better than before. None if no episode has finished."""
    found, returns = return_summary(*columns.curve(RETURN)), columns.values(RETURN)
    if len(returns) == 0:
        return None
    end = float(returns[-1]) if found is None else found.end
    reached = f"a return of {end:,.4g} in training" if score is None else f"a greedy score of {score:,.4g}"
    known = "" if target is None else f"; {target.source}"
    if target is not None and (end if score is None else score) >= target.value:
        word = "Solved" if target.published else "About as good as the preset"
        return HealthFinding("good", f"{word}: {reached}{known}.", tag=RETURN)
    since = policy_frozen_since(columns)
    if since is not None and (target is not None or found is None or not found.near_its_best):
        clipping = " Set max_grad_norm 0.5." if settings.get("max_grad_norm") is None else ""
        how = "the policy always takes the same action and no longer changes"
        advice = f"Start again with a lower <learning_rate> or a higher <ent_coef>.{clipping}"
        return warning(f"Dead from phase {since} on: {how}, with {reached}{known}.", advice, ENTROPY)
    if np.ptp(returns) <= ROUNDING * np.abs(returns).max():  # good or bad: unknown if there is no target
        level: Level = "note" if target is None else "warning"
        advice = "If more is possible, no episode has found the reward: shape it, or explore more (ent_coef)."
        return HealthFinding(level, f"Every phase returned the same, {reached}{known}.", advice, RETURN)
    if found is None:
        what = f"the return was {returns[0]:,.4g} at first and is {end:,.4g} now"
    else:
        hardly = target is not None and found.best - found.begin < HARDLY * (target.value - found.begin)
        if not found.improved or (found.collapsed and hardly):
            return nothing_learned(found, settings, known)
        if found.collapsed:
            what = f"The return rose to {found.best:,.4g} and fell back to {found.end:,.4g}."
            advice = "Lower <learning_rate> or anneal it; eval_every keeps the best policy on the way."
            return warning(what, advice, RETURN)
        begin = found.begin - found.sprint if found.sprint > 10 * found.noise else found.begin
        what = f"the return improved from {begin:,.4g} to {found.end:,.4g}"
    what += "" if score is None else f" in training, with {reached} at the end"
    return not_solved(what, target, at_its_end(columns, settings))


def not_solved(what: str, target: Target | None, ended: bool) -> HealthFinding:
    """The finding for a return that rose, compared with the target if there is one."""
    sentence = f"{what[0].upper()}{what[1:]}"
    if target is None:
        how = "Whether that is good depends on the task: no target is known for it."
        return HealthFinding("note", f"{sentence}. {how}", tag=RETURN)
    if not ended:
        return HealthFinding("note", f"{sentence}, so far; {target.source}.", tag=RETURN)
    word = "Not solved" if target.published else "Not as good as the preset"
    advice = "Train longer (<total_timesteps>), or search for other settings with `tightrope sweep`."
    return warning(f"{word}: {what}; {target.source}.", advice, RETURN)


def nothing_learned(found: ReturnSummary, settings: Settings, known: str) -> HealthFinding:
    unless = "" if known else ", unless the task needs no learning"
    scaled = "" if settings.get("norm_reward", True) else " norm_reward,"
    returns = f"the return was {found.begin:,.4g} at first and is {found.end:,.4g} now"
    advice = (
        f"Try another <learning_rate>,{scaled} a higher <ent_coef>, or longer training (<total_timesteps>). "
        "`tightrope check` looks at the environment, `tightrope probe` at the algorithm."
    )
    return warning(f"Nothing was learned{unless}: {returns}{known}.", advice, RETURN)


def at_its_end(columns: Columns, settings: Settings) -> bool:
    return (columns.last("step") or 0.0) >= 0.95 * float(settings.get("total_timesteps") or 0)


def policy_frozen_since(columns: Columns) -> int | None:
    """The phase from which on the policy has been deterministic and unchanged; None if it is alive. For a Gaussian, whose
    entropy may be negative, only change counts."""
    entropy, kl, norm = columns[ENTROPY], columns[KL], columns[NORM]
    finite = entropy[np.isfinite(entropy)]
    if len(finite) == 0:
        return None
    first = norm[np.isfinite(norm)][:MIN_PHASES]
    still = kl <= STILL_KL if KL in columns else norm <= STILL_NORM * max(first.max(initial=0.0), 1e-30)
    if finite.min() >= 0:
        still = still & (entropy <= DECIDED * finite[0])
    alive = np.flatnonzero(~still)
    since = int(alive[-1]) + 1 if len(alive) else 0
    return since + 1 if columns.count - since >= max(MIN_PHASES, DEAD_SHARE * columns.count) else None


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
    step, entropy = columns.curve(ENTROPY)
    found = return_summary(*columns.curve(RETURN))
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


def no_episode_finished(columns: Columns, settings: Settings) -> HealthFinding | None:
    advice = "Give the environment a time limit with max_episode_steps, or wait."
    return None if RETURN in columns else warning("No episode has finished: there is no return yet.", advice)


def still_rising(columns: Columns, settings: Settings) -> HealthFinding | None:
    """The last tenth is significantly above the one before it."""
    step, value = columns.curve(RETURN)
    found = return_summary(step, value)
    if found is None or len(value) < 5 * MIN_PHASES or not at_its_end(columns, settings):
        return None
    last, before = value[step > 0.9 * step[-1]], value[(step > 0.8 * step[-1]) & (step <= 0.9 * step[-1])]
    if len(last) < 4 or len(before) < 4:
        return None
    rise = last.mean() - before.mean()
    if rise < max(3 * standard_error(last, before), RISE * found.range):
        return None
    what = f"The return was still rising at the end, by {rise:,.3g} in the last tenth."
    return HealthFinding("note", what, "Train longer: <total_timesteps>.", RETURN)


RULES: list[HealthRule] = [
    kl_too_high, kl_too_low, clipped_too_often, weights_pinned, critic_learns_nothing, entropy_gone_early,
    gradient_always_clipped, no_episode_finished, still_rising,
]  # fmt: skip
