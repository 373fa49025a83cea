"""How a run ended, in plain words: the headline of its page.

A task counts as solved by the greedy score of the newest policy, or by the return in training if there is no such score. The
return in training says nothing about the target if training had another environment (train_env). "Good" means that a known
target is reached, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ...types import Settings
from ..callback import Target
from ..metrics import RETURN, SCORE, Columns
from .html import format_number
from .statistics import MIN_PHASES, ROUNDING, ReturnSummary, return_summary

HARDLY = 0.2  # of the way from the first return to the target: if less was gained and lost again, nothing was learned
# a dead policy: share of the first entropy, KL, share of the first norm, share of the phases
DECIDED, STILL_KL, STILL_NORM, DEAD_SHARE = 1e-3, 1e-6, 1e-4, 0.2
LAST, FEW_EPISODES = 0.1, 10  # share of training in which fewer episodes say little about its end

AT_TARGET = "About solved"
KL, ENTROPY, NORM = "losses/approx_kl", "losses/entropy", "losses/grad_norm"
Level = Literal["good", "note", "warning"]


@dataclass(frozen=True)
class HealthFinding:
    level: Level
    what: str  # one sentence or two
    advice: str = ""  # <setting> stands for the setting and its value
    tag: str = ""  # of the curve to look at
    headline: str = ""  # of an outcome, such as "Solved: 500 of 495 needed"


def warning(what: str, advice: str = "", tag: str = "") -> HealthFinding:
    return HealthFinding("warning", what, advice, tag)


def with_values(finding: HealthFinding, settings: Settings) -> HealthFinding:
    """Every <setting> in the advice with its present value: 'learning_rate (now 0.015)'."""

    def fill(match: re.Match[str]) -> str:
        value = settings.get(match[1])
        if value is None or isinstance(value, bool):
            return match[1]
        return f"{match[1]} (now {value:,})" if isinstance(value, int) else f"{match[1]} (now {value})"

    return replace(finding, advice=re.sub(r"<(\w+)>", fill, finding.advice))


def outcome(
    columns: Columns, settings: Settings, target: Target | None, score: float | None, error: float = 0.0
) -> HealthFinding:
    """The headline, one or two sentences about it, and advice. `error` is the standard error of the score."""
    found = solved(columns, settings, target, score, error) or unsolved(columns, settings, target, score)
    return with_values(found, settings)


def returns_of(columns: Columns) -> ReturnSummary | None:
    return return_summary(*columns.curve(RETURN), columns.weights(RETURN))


def return_at_the_end(columns: Columns) -> float | None:
    """The mean of the last episodes in training; None if none has ended."""
    found, values = returns_of(columns), columns.values(RETURN)
    return found.end if found is not None else float(values[-1]) if len(values) else None


def at_its_end(columns: Columns, settings: Settings) -> bool:
    """Whether no phase is left, or hardly any."""
    steps, total = columns.last("step") or 0.0, float(settings.get("total_timesteps") or 0)
    phase = float(settings.get("num_envs") or 0) * float(settings.get("num_steps") or 0)
    return steps + phase > total or steps >= 0.95 * total


# compared with the target -----------------------------------------------------------------------------------------------


def comparable_return(columns: Columns, settings: Settings, score: float | None) -> tuple[float, str] | None:
    """(what is compared with the target, its name); None if nothing is comparable."""
    if score is not None:
        return score, "the greedy score"
    end, (step, _) = return_at_the_end(columns), columns.curve(RETURN)
    if end is None or settings.get("train_env"):
        return None
    last = step > (1 - LAST) * (columns.last("step") or 0.0)
    return None if columns.weights(RETURN)[last].sum() < FEW_EPISODES else (end, "the return in training")


def solved(
    columns: Columns, settings: Settings, target: Target | None, score: float | None, error: float
) -> HealthFinding | None:
    """None for a run that is clearly below its target, or has none."""
    value = comparable_return(columns, settings, score)
    if target is None or value is None:
        return None
    if score is not None and abs(score - target.value) < error:
        tells = "another `tightrope eval` with more episodes tells"
        what = f"The score is within its error of {format_number(error, 2)}: {tells}. {told(target)}"
        return HealthFinding("note", what, tag=RETURN, headline=against(AT_TARGET, score, target))
    returns = returns_of(columns)
    if score is None and returns is not None and 0 < target.value - value[0] < returns.error:
        within = f"The return in training is within its error of {format_number(returns.error, 2)}"
        what = f"{within}: `tightrope eval` tells. {told(target)}"
        return HealthFinding("note", what, tag=RETURN, headline=against(AT_TARGET, value[0], target))
    if value[0] < target.value:
        return None
    word = "Solved" if target.published else "As good as the preset"
    return HealthFinding(
        "good", f"By {value[1]}; {target.source}.", tag=RETURN, headline=against(word, value[0], target)
    )


def against(word: str, value: float, target: Target) -> str:
    """'Solved: 500 of 495 needed'; returns below 0 are not parts of a whole."""
    shown, needed = format_number(value), format_number(target.value)
    if value < 0 or target.value <= 0:
        return f"{word}: {shown}, at least {needed} needed"
    return f"{word}: {shown} of {needed}" + (" needed" if value >= target.value else "")


def told(target: Target) -> str:
    """Where the target comes from, as a sentence."""
    return f"{target.source[0].upper()}{target.source[1:]}."


def missed(columns: Columns, settings: Settings, target: Target | None, score: float | None, what: str) -> str:
    """The headline of a run that did not reach its target, or of one without a target, of which `what` is said."""
    if target is None:
        return what
    value = comparable_return(columns, settings, score)
    if value is None:
        return "Not scored"
    word = "Not solved" if target.published else "Not as good as the preset"
    return against(word if at_its_end(columns, settings) else f"{word} yet", value[0], target)


# below it, or without one -----------------------------------------------------------------------------------------------


def unsolved(columns: Columns, settings: Settings, target: Target | None, score: float | None) -> HealthFinding:
    """Why a task is not solved, or how the return went where no target is known."""
    found = explanation(columns, settings, target, score)
    sentences = [found.what]
    best = np.fmax.reduce(columns[SCORE][~(columns["eval/cut_off"] > 0)], initial=-np.inf)
    if target is not None:
        sentences.append(told(target))
        if best >= target.value:
            better = f"An evaluation on the way returned {format_number(best)}"
            sentences.append(f"{better}: checkpoint `best` has that policy.")
        if comparable_return(columns, settings, score) is None and columns.count >= MIN_PHASES:
            why = "training had an environment of its own" if settings.get("train_env") else "too few episodes ended"
            sentences.append(
                f"The return in training does not tell whether it is reached: {why}. `tightrope eval` does."
            )
            found = found if found.headline else replace(found, level="note", advice="")
    return replace(found, what=" ".join(sentences), headline=missed(columns, settings, target, score, found.headline))


def explanation(columns: Columns, settings: Settings, target: Target | None, score: float | None) -> HealthFinding:
    """What the return in training did. The headline is that of a run without a target."""
    returns, found = columns.values(RETURN), returns_of(columns)
    if columns.count < MIN_PHASES:
        what = f"Only {columns.count} phases so far: too few to judge."
        return HealthFinding("note", what, headline="Too early to say")
    if len(returns) == 0:
        advice = "Give the environment a time limit with max_episode_steps, or wait."
        return replace(
            warning("No episode has finished: there is no return yet.", advice), headline="No episode finished"
        )
    since = policy_frozen_since(columns)
    at_best = found.near_its_best if found is not None else returns[0] < returns.max() <= returns[-1] + ROUNDING
    if since is not None and (target is not None or not at_best):
        return dead(settings, since, always_same=columns.values(ENTROPY).min() >= 0)
    if np.ptp(returns) <= ROUNDING * np.abs(returns).max():  # good or bad: unknown if there is no target
        what = f"Every phase returned {format_number(float(returns[0]))}."
        advice = "If more is possible, no episode has found the reward: shape it, or explore more (ent_coef)."
        return HealthFinding("note" if target is None else "warning", what, advice, RETURN, "The return never changed")
    if found is None:
        begin, end = returns[0], returns[-1]
    else:
        aim = None if target is None or settings.get("train_env") else target.value  # on the scale of these returns
        hardly = aim is not None and found.best - found.begin < HARDLY * (aim - found.begin)
        if not found.improved or (found.collapsed and hardly):
            if aim is not None and score is not None and score - found.end > HARDLY * (aim - found.end):
                return only_greedy(found.end, score)
            return nothing_learned(found, settings, target)
        if found.collapsed:
            what = f"The return rose to {format_number(found.best)} and fell back to {format_number(found.end)}."
            advice = "Lower <learning_rate> or anneal it; `eval_every` keeps the best policy on the way."
            return HealthFinding("warning", what, advice, RETURN, "Rose and fell back")
        begin, end = found.begin - max(found.sprint, 0.0) * (found.sprint > 10 * found.noise), found.end
    ended, other = at_its_end(columns, settings), settings.get("train_env")
    of = f", of {other}," if other else ""
    what = f"The return in training{of} {'rose' if end > begin else 'went'} from {format_number(begin)} to {format_number(end)}"
    if target is not None:
        advice = "Train longer: raise <total_timesteps>. Or search for other settings with `tightrope sweep`."
        if other:
            advice = "If the score does not rise with it, train_env pays for something else than the task."
        return HealthFinding("warning" if ended else "note", f"{what}.", advice if ended else "", RETURN)
    return HealthFinding("note", f"{what}. Whether that is good depends on the task: no target is known for it.", "", RETURN,
                         "Improved, without a known target" if end > begin else "No target is known")  # fmt: skip


def dead(settings: Settings, since: int, always_same: bool) -> HealthFinding:
    clipping = " Set max_grad_norm 0.5." if settings.get("max_grad_norm") is None else ""
    same = "always takes the same action and " if always_same else ""
    what = f"Dead from phase {since} on: the policy {same}no longer changes."
    advice = f"Start again with a lower <learning_rate> or a higher <ent_coef>.{clipping}"
    return HealthFinding("warning", what, advice, ENTROPY, f"Dead from phase {since} on")


def only_greedy(end: float, score: float) -> HealthFinding:
    """What was learned shows only without sampling."""
    what = f"Sampled actions return {format_number(end)} in training and greedy ones {format_number(score)}"
    advice = "Sample less widely: lower <ent_coef>, or log_std_init for continuous actions."
    return HealthFinding("warning", f"{what}: chance hides what was learned.", advice, RETURN)


def nothing_learned(found: ReturnSummary, settings: Settings, target: Target | None) -> HealthFinding:
    unless = "" if target else ", unless the task needs no learning"
    scaled = "" if settings.get("norm_reward", True) else " norm_reward,"
    returns = f"the return in training was {format_number(found.begin)} at first and is {format_number(found.end)} now"
    advice = (
        f"Try another <learning_rate>,{scaled} a higher <ent_coef>, or longer training (total_timesteps). "
        "`tightrope check` looks at the environment, `tightrope probe` at the algorithm."
    )
    return HealthFinding("warning", f"Nothing was learned{unless}: {returns}.", advice, RETURN, "Nothing was learned")


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
