"""What came of a run, in one sentence: solved, dead, nothing learned, or higher than it was.

Whether a return is good depends on the task. Solved is what has reached a target that somebody else has set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..callback import Target
from .columns import Columns
from .stages import Stages, collapsed, constant, dead_since, improved, near_its_best, stages

RETURN = "charts/episodic_return"
HARDLY = 0.2  # of the way from the first return to the target: if that is lost again, nothing was learned


@dataclass(frozen=True)
class Finding:
    level: Literal["good", "note", "warning"]
    what: str  # one sentence
    advice: str = ""
    tag: str = ""  # of the curve to look at


Settings = dict[str, Any]


def outcome(columns: Columns, settings: Settings, target: Target | None, score: float | None) -> Finding | None:
    """Whether the task is solved, the policy dead, the return higher than it was. None where no episode has finished."""
    found, returns = stages(columns), columns.curve("charts/episodic_return")[1]
    if len(returns) == 0:
        return None
    end = float(returns[-1]) if found is None else found.end
    reached = end if score is None else score
    if target is not None and reached >= target.value:
        word = "Solved" if target.published else "RunInfo as good as the preset"
        return Finding("good", f"{word}: {words_for(reached, score)}; {target.source}.", tag=RETURN)
    since = dead_since(columns)
    if since is not None and (target is not None or not near_its_best(columns)):
        return dead(since, settings, reached, score, target)
    if constant(columns):
        return the_same(reached, score, target)
    if found is None:
        return unsolved(
            f"the return was {returns[0]:,.4g} at first and is {end:,.4g} now", columns, settings, target, score
        )
    hardly = target is not None and found.best - found.begin < HARDLY * (target.value - found.begin)
    if not improved(columns) or (collapsed(found) and hardly):
        return flat(found, settings, target)
    if collapsed(found):
        return fell_back(found, settings)
    begin = found.begin - found.sprint if found.sprint > 10 * found.noise else found.begin
    return unsolved(f"the return improved from {begin:,.4g} to {found.end:,.4g}", columns, settings, target, score)


def unsolved(what: str, columns: Columns, settings: Settings, target: Target | None, score: float | None) -> Finding:
    """What is known of a return that may be good or not."""
    if score is not None:
        what += f" in training, with {words_for(score, score)} at the end"
    if target is None:
        how = "Whether that is good depends on the task: no target is known for it."
        return Finding("note", f"{what[0].upper()}{what[1:]}. {how}", tag=RETURN)
    if not at_its_end(columns, settings):
        return Finding("note", f"{what[0].upper()}{what[1:]}, so far; {target.source}.", tag=RETURN)
    return Finding(
        "warning",
        f"{'Not solved' if target.published else 'Not as good as the preset'}: {what}; {target.source}.",
        f"Train longer (total_timesteps{now(settings, 'total_timesteps')}), or search for other settings with "
        "`tightrope sweep`.",
        RETURN,
    )


def fell_back(found: Stages, settings: Settings) -> Finding:
    return Finding(
        "warning",
        f"The return rose to {found.best:,.4g} and fell back to {found.end:,.4g}.",
        f"Lower learning_rate{now(settings, 'learning_rate')} or anneal it; eval_every keeps the best policy on the way.",
        RETURN,
    )


def dead(since: int, settings: Settings, reached: float, score: float | None, target: Target | None) -> Finding:
    clipping = " Set max_grad_norm 0.5." if settings.get("max_grad_norm") is None else ""
    return Finding(
        "warning",
        f"Dead from phase {since} on: the policy always does the same and no longer changes, with {words_for(reached, score)}"
        f"{'' if target is None else f'; {target.source}'}.",
        f"Start again with a lower learning_rate{now(settings, 'learning_rate')} or a higher "
        f"ent_coef{now(settings, 'ent_coef')}.{clipping}",
        "losses/entropy",
    )


def the_same(reached: float, score: float | None, target: Target | None) -> Finding:
    """Good or bad: that is not for us to tell, where no target is known."""
    return Finding(
        "note" if target is None else "warning",
        f"Every phase returned the same, {words_for(reached, score)}{'' if target is None else f'; {target.source}'}.",
        "Where that is not the best there is, no episode has come across the reward: shape it, or explore more (ent_coef).",
        RETURN,
    )


def flat(found: Stages, settings: Settings, target: Target | None) -> Finding:
    unless = ", unless the task needs no learning" if target is None else ""
    scaled = "" if settings.get("norm_reward", True) else " norm_reward,"
    return Finding(
        "warning",
        f"Nothing was learned{unless}: the return was {found.begin:,.4g} at first and is {found.end:,.4g} now"
        f"{'' if target is None else f'; {target.source}'}.",
        f"Try another learning_rate{now(settings, 'learning_rate')},{scaled} a higher ent_coef{now(settings, 'ent_coef')}, or "
        f"longer training (total_timesteps{now(settings, 'total_timesteps')}). `tightrope check` looks at the environment, "
        "`tightrope probe` at the algorithm.",
        RETURN,
    )


def words_for(reached: float, score: float | None) -> str:
    return f"a return of {reached:,.4g} in training" if score is None else f"a greedy score of {reached:,.4g}"


def at_its_end(columns: Columns, settings: Settings) -> bool:
    return (columns.last("step") or 0.0) >= 0.95 * float(settings.get("total_timesteps") or 0)


def now(settings: Settings, name: str) -> str:
    """' (now 0.015)'"""
    value = settings.get(name)
    if value is None or isinstance(value, bool):
        return ""
    return f" (now {value:,})" if isinstance(value, int) else f" (now {value})"
