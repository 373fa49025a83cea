"""What came of a run, in one sentence: solved, dead, nothing learned, or better than before.

Whether a return is good depends on the task: only a run that has reached a known target counts as solved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...types import Settings
from ..callback import Target
from ..metrics import RETURN, Columns
from .statistics import smooth

HARDLY = 0.2  # of the way from the first return to the target: if less was gained and lost again, nothing was learned
MIN_PHASES = 10  # with fewer there is nothing to judge
COLLAPSE, FLAT = 0.4, 0.1  # shares of the range of the returns
ROUNDING = 1e-6  # relative difference that counts as equal
DECIDED, STILL_KL, STILL_NORM = (
    1e-3,
    1e-6,
    1e-4,
)  # a dead policy's share of the first entropy, KL, share of the first norm
DEAD_SHARE = 0.2  # of the phases, at the least


Level = Literal["good", "note", "warning"]


@dataclass(frozen=True)
class HealthFinding:
    level: Level
    what: str  # one sentence
    advice: str = ""  # <setting> stands for the setting and its value
    tag: str = ""  # of the curve to look at


def warning(what: str, advice: str = "", tag: str = "") -> HealthFinding:
    return HealthFinding("warning", what, advice, tag)


def outcome(columns: Columns, settings: Settings, target: Target | None, score: float | None) -> HealthFinding | None:
    """Whether the task is solved, the policy dead, the return better than before. None if no episode has finished."""
    found, returns = return_summary(columns), columns.curve(RETURN)[1]
    if len(returns) == 0:
        return None
    end = float(returns[-1]) if found is None else found.end
    reached = score_text(end if score is None else score, score)
    known = "" if target is None else f"; {target.source}"
    if target is not None and (end if score is None else score) >= target.value:
        word = "Solved" if target.published else "About as good as the preset"
        return HealthFinding("good", f"{word}: {reached}{known}.", tag=RETURN)
    since = dead_since(columns)
    if since is not None and (target is not None or not near_its_best(columns)):
        clipping = " Set max_grad_norm 0.5." if settings.get("max_grad_norm") is None else ""
        what = (
            f"Dead from phase {since} on: the policy always takes the same action and no longer changes, with {reached}"
        )
        advice = f"Start again with a lower <learning_rate> or a higher <ent_coef>.{clipping}"
        return warning(f"{what}{known}.", advice, "losses/entropy")
    if never_changes(columns):  # whether that is good or bad is unknown if there is no target
        level: Level = "note" if target is None else "warning"
        advice = (
            "If a better return is possible, no episode has found the reward: shape it, or explore more (ent_coef)."
        )
        return HealthFinding(level, f"Every phase returned the same, {reached}{known}.", advice, RETURN)
    if found is None:
        what = f"the return was {returns[0]:,.4g} at first and is {end:,.4g} now"
        return not_solved(what, columns, settings, target, score)
    hardly = target is not None and found.best - found.begin < HARDLY * (target.value - found.begin)
    if not improved(columns) or (collapsed(found) and hardly):
        return nothing_learned(found, settings, known)
    if collapsed(found):
        what = f"The return rose to {found.best:,.4g} and fell back to {found.end:,.4g}."
        return warning(what, "Lower <learning_rate> or anneal it; eval_every keeps the best policy on the way.", RETURN)
    begin = found.begin - found.sprint if found.sprint > 10 * found.noise else found.begin
    return not_solved(f"the return improved from {begin:,.4g} to {found.end:,.4g}", columns, settings, target, score)


def not_solved(
    what: str, columns: Columns, settings: Settings, target: Target | None, score: float | None
) -> HealthFinding:
    """What to say of a return that may be good or not."""
    if score is not None:
        what += f" in training, with {score_text(score, score)} at the end"
    sentence = f"{what[0].upper()}{what[1:]}"
    if target is None:
        how = "Whether that is good depends on the task: no target is known for it."
        return HealthFinding("note", f"{sentence}. {how}", tag=RETURN)
    if not at_its_end(columns, settings):
        return HealthFinding("note", f"{sentence}, so far; {target.source}.", tag=RETURN)
    word = "Not solved" if target.published else "Not as good as the preset"
    advice = "Train longer (<total_timesteps>), or search for other settings with `tightrope sweep`."
    return warning(f"{word}: {what}; {target.source}.", advice, RETURN)


def nothing_learned(found: ReturnSummary, settings: Settings, known: str) -> HealthFinding:
    unless = "" if known else ", unless the task needs no learning"
    scaled = "" if settings.get("norm_reward", True) else " norm_reward,"
    what = (
        f"Nothing was learned{unless}: the return was {found.begin:,.4g} at first and is {found.end:,.4g} now{known}."
    )
    advice = (
        f"Try another <learning_rate>,{scaled} a higher <ent_coef>, or longer training (<total_timesteps>). "
        "`tightrope check` looks at the environment, `tightrope probe` at the algorithm."
    )
    return warning(what, advice, RETURN)


def score_text(reached: float, score: float | None) -> str:
    return f"a return of {reached:,.4g} in training" if score is None else f"a greedy score of {reached:,.4g}"


def at_its_end(columns: Columns, settings: Settings) -> bool:
    return (columns.last("step") or 0.0) >= 0.95 * float(settings.get("total_timesteps") or 0)


def with_values(advice: str, settings: Settings) -> str:
    """Every <setting> with its present value: 'learning_rate (now 0.015)'."""

    def fill(match: re.Match[str]) -> str:
        value = settings.get(match[1])
        if value is None or isinstance(value, bool):
            return match[1]
        return f"{match[1]} (now {value:,})" if isinstance(value, int) else f"{match[1]} (now {value})"

    return re.sub(r"<(\w+)>", fill, advice)


# how the return went -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReturnSummary:
    """Smoothed returns. The very first phases are left out: only short episodes end there."""

    begin: float
    best: float
    end: float
    noise: float  # standard deviation of single phases around the smoothed curve
    rise: float  # from the first quarter to the last, in standard errors
    sprint: float  # gain in the very first phases

    @property
    def range(self) -> float:
        return self.best - min(self.begin, self.end)


def return_summary(columns: Columns) -> ReturnSummary | None:
    step, value = columns.curve(RETURN)
    if len(value) < 2 * MIN_PHASES:
        return None
    x, y = smooth(step, value)
    noise = max(float(np.std(value - np.interp(step, x, y))), ROUNDING * float(np.abs(value).max()), 1e-12)
    skipped, quarter = max(len(y) // 20, 1), len(value) // 4
    early, late = value[len(value) // 20 : quarter], value[-quarter:]
    error = float(np.hypot(early.std() / len(early) ** 0.5, late.std() / len(late) ** 0.5))
    return ReturnSummary(
        begin=float(y[skipped]),
        best=float(y[skipped:].max()),
        end=float(y[-skipped:].mean()),
        noise=noise,
        rise=float(late.mean() - early.mean()) / max(error, 1e-12),
        sprint=float(y[skipped] - y[0]),
    )


def improved(columns: Columns) -> bool:
    """Whether the return has risen by more than its noise. True if there are too few phases to tell."""
    found = return_summary(columns)
    if found is None:
        return True
    return found.rise > 4 or found.best - found.begin > 2 * found.noise or found.sprint > 10 * found.noise


def collapsed(found: ReturnSummary) -> bool:
    """Whether the return rose and then lost much of its gain."""
    lost = found.best - found.end
    return found.best - found.begin > 2 * found.noise and lost > max(COLLAPSE * found.range, 2 * found.noise)


def near_its_best(columns: Columns) -> bool:
    """Whether the return has risen and stayed near its maximum."""
    found = return_summary(columns)
    return found is not None and improved(columns) and found.best - found.end < FLAT * found.range


def never_changes(columns: Columns) -> bool:
    """Whether every phase returned the same."""
    value = columns.curve(RETURN)[1]
    return len(value) > 0 and bool(np.ptp(value) <= ROUNDING * np.abs(value).max())


def dead_since(columns: Columns) -> int | None:
    """The phase from which on the policy has been deterministic and unchanged; None if it is alive. For a Gaussian, whose
    entropy may be negative, only change counts."""
    entropy, kl, norm = (columns[f"losses/{name}"] for name in ("entropy", "approx_kl", "grad_norm"))
    finite = entropy[np.isfinite(entropy)]
    if len(finite) == 0:
        return None
    first = norm[np.isfinite(norm)][:MIN_PHASES]
    still = kl <= STILL_KL if "losses/approx_kl" in columns else norm <= STILL_NORM * max(first.max(initial=0.0), 1e-30)
    if finite.min() >= 0:
        still = still & (entropy <= DECIDED * finite[0])
    alive = np.flatnonzero(~still)
    since = int(alive[-1]) + 1 if len(alive) else 0
    return since + 1 if columns.count - since >= max(MIN_PHASES, DEAD_SHARE * columns.count) else None
