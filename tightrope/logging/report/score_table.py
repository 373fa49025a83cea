"""The final scores of groups of runs, as a table with a picture of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..metrics import RETURN
from .data import RunRecord, mean_in_unit
from .groups import Group
from .html import NO_NUMBER, format_number, table, text
from .outcome import HealthFinding, outcome
from .statistics import FEWEST_OF_IQM, iqm_interval, mean_interval

FINAL_SHARE = 0.1  # share of a run whose returns are its score, where there are no evaluations


def score_table(groups: Sequence[Group]) -> tuple[str, str]:
    """(table, note): every group's interquartile mean, or the mean if a group has too few runs to leave any out."""
    greedy = all_scored(groups)
    finals = [np.array([s for run in group.runs if (s := final_score(run, greedy)) is not None]) for group in groups]
    everything = np.concatenate(finals)
    robust = min((len(values) for values in finals if len(values)), default=0) >= FEWEST_OF_IQM
    solved = [solved_count(group) for group in groups]
    own = [mean_in_unit([run.scores[-1] for run in group.runs if run.scores]) if greedy else "" for group in groups]
    rows = []
    for group, values, count, unit in zip(groups, finals, solved, own, strict=True):
        name = f'<span class="swatch s{group.number % 8}"></span>{text(group.label)}'
        last = [text(unit) or NO_NUMBER] * any(own) + [count or NO_NUMBER] * any(solved)
        if len(values) == 0:
            rows.append([name, "0", *4 * [NO_NUMBER], *last])
            continue
        middle, low, high = iqm_interval([values]) if robust else mean_interval(values)
        interval = f"{format_number(low)} to {format_number(high)}" if len(values) > 1 else "one run"
        extent = f"{format_number(values.min())} to {format_number(values.max())}"
        picture = strip(values, middle, low, high, everything, group.number)
        rows.append([name, str(len(values)), format_number(middle), interval, extent, picture, *last])
    head = [
        "group",
        "runs",
        "IQM" if robust else "mean",
        "95 % interval",
        "range",
        "",
        *["own unit"] * any(own),
        *["solved"] * any(solved),
    ]
    source = "the last greedy evaluation" if greedy else f"the mean return in the last {FINAL_SHARE:.0%} of training"
    kind = "Mean: over all runs; an interquartile mean needs four. Its interval is a bootstrap over runs."
    if robust:
        kind = (
            "IQM: the interquartile mean, the mean without the best and the worst quarter. Its interval is a stratified "
            "bootstrap over runs (Agarwal et al. 2021, rliable)."
        )
    note = f"Group: runs that differ only in their seed. Score of a run: {source}. {kind}"
    return table("Final scores", head, rows), note


def solved_count(group: Group) -> str:
    """'2 of 3' runs of a group reached the target of their task; empty if none has a target."""
    aimed = [run for run in group.runs if run.info.target is not None]
    return f"{sum(run_verdict(run).level == 'good' for run in aimed)} of {len(aimed)}" if aimed else ""


def run_verdict(run: RunRecord) -> HealthFinding:
    return outcome(run.columns, run.info.settings, run.info.target, run.last_score, run.last_error)


def all_scored(groups: Sequence[Group]) -> bool:
    """Whether all runs have greedy evaluations, so that these can be compared."""
    return all(run.scores for group in groups for run in group.runs)


def final_score(run: RunRecord, greedy: bool) -> float | None:
    if greedy:
        return run.scores[-1].mean
    step, value = run.columns.curve(RETURN)
    last = step > (1 - FINAL_SHARE) * step[-1:]
    return float(np.average(value[last], weights=run.columns.weights(RETURN)[last])) if len(step) else None


def strip(values: np.ndarray, middle: float, low: float, high: float, everything: np.ndarray, number: int) -> str:
    """The interval, its middle and the single runs on one scale for all groups."""
    begin, span = float(everything.min()), float(np.ptp(everything)) or 1.0

    def at(value: float) -> str:
        return f"{8 + 184 * (value - begin) / span:.1f}"  # whole discs at both ends

    color = f"var(--series-{number % 8})"
    dots = "".join(f'<circle cx="{at(v)}" cy="9" r="2.5" fill="{color}" opacity=".4"/>' for v in values.tolist())
    return (
        f'<svg width="200" height="18" role="img" aria-label="from {format_number(low)} to {format_number(high)}">'
        f'<line x1="8" x2="192" y1="9" y2="9" stroke="var(--grid)"/>'
        f'<line x1="{at(low)}" x2="{at(high)}" y1="9" y2="9" stroke="{color}" stroke-width="5" opacity=".45"/>'
        f'{dots}<circle cx="{at(middle)}" cy="9" r="5" fill="{color}"/></svg>'
    )
