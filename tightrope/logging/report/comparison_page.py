"""The page of several runs: those that differ in nothing but their seed are one group, and groups are compared."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .charts import PLOTS, RETURN, SCORE, Chart, Plot, Trace, line, rounded
from .groups import NO_MATTER, Group, grouped
from .health import health
from .html import NOTHING, document, figure_of, section, table, text
from .record import RunRecord
from .run_page import SHOWN, figure, footer, link, shown, videos
from .statistics import Curve, at_common_steps, iqm_interval, mean_band, smooth, thin

LAST = 0.1  # share of a run whose returns are its score, where there are no evaluations
RETURNS = Plot("Return", (RETURN,), "In training, with sampled actions.")
GREEDY = Plot("Greedy evaluations", (SCORE,), "Fresh environments, no sampling. Each run by itself.")
COMPARED = ("charts/episodic_length", "losses/approx_kl", "losses/explained_variance", "losses/entropy", "losses/value_loss",
            "charts/SPS")  # fmt: skip


def comparison_page(runs: Sequence[RunRecord], beside: Path) -> str:
    """The whole page, one part for each environment."""
    envs = list(dict.fromkeys(str(run.about.settings.get("env")) for run in runs))
    drawn: list[Chart] = []
    parts = []
    for env in envs:
        groups = grouped([run for run in runs if str(run.about.settings.get("env")) == env])
        parts.append(comparison(env, groups, drawn, beside))
    count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
    title = f"{', '.join(envs[:3])}{' and more' if len(envs) > 3 else ''}"
    head = f"""<header class="top"><div class="bar"><h1>{text(title)} <small>{count}</small></h1>
<button id="theme" class="push" type="button" aria-label="dark colours">Dark</button></div>
<p class="sub">compared {text(time.strftime("%Y-%m-%d %H:%M:%S"))}</p></header>"""
    body = [
        head,
        "<main>",
        *parts,
        "</main>",
        footer("Drag across a curve to zoom; click a name in the legend to hide it."),
    ]
    data = {"charts": [chart.data() for chart in drawn], "live": False, "written": time.time(), "every": 0}
    return document(f"{title}: {count}", "\n".join(body), data)


def comparison(env: str, groups: list[Group], drawn: list[Chart], beside: Path) -> str:
    """Everything about the runs on one environment; what is to be drawn is added to `drawn`."""
    first = len(drawn)
    name = f"env-{first}"
    drawn += chosen_charts(groups)
    figures = [
        figure(chart, first + i, "chart card main wide" if i == 0 else "chart card", f"{name}-")
        for i, chart in enumerate(drawn[first:])
    ]
    few = min(len(group.runs) for group in groups) < 5
    note = (
        "Over environment steps. Line: mean over seeds. Band: 95 % bootstrap interval of the mean. Faint: single runs."
        + (" With fewer than five seeds an interval says little." if few else "")
    )
    newest = [
        (clip.place, f"{group.label}, {seed_of(run)}, {run.label(clip)}")
        for group in groups
        for run in group.runs[:1]
        for clip in run.found.clips[-1:]
    ]
    curves = f'{figures[0]}<div class="grid">{"".join(figures[1:])}</div>'
    return "".join([
        section(f"{name}-scores", f"{text(env)}: final scores", *scores(groups)),
        section(f"{name}-curves", "Learning curves", curves, note),
        differences(name, groups),
        section(f"{name}-runs", "Runs", run_table(groups, beside)),
        videos([*reversed(newest[:SHOWN]), *newest[SHOWN:]], beside, f"{name}-videos"),
    ])  # fmt: skip


# curves ---------------------------------------------------------------------------------------------------------------


def chosen_charts(groups: Sequence[Group]) -> list[Chart]:
    plots = [RETURNS, GREEDY, *(plot for plot in PLOTS if plot.tags[0] in COMPARED)]
    drawn = {plot: single_runs(groups) if plot is GREEDY else traces(groups, plot) for plot in plots}
    made = [Chart(plot, found, summary=in_words(groups, plot)).fitting() for plot, found in drawn.items()]
    return [chart for chart in made if chart.traces or chart.plot is RETURNS]


def single_runs(groups: Sequence[Group]) -> list[Trace]:
    """Evaluations of every run. They are few, often one, and not at the same steps, so that no mean is drawn."""
    found: list[Trace] = []
    for group in groups:
        name = html.escape(group.label)
        for run in group.runs:
            steps, scores = points(run, SCORE)
            if len(steps):
                one = line("scores", steps, scores, f"{name}, {html.escape(seed_of(run))}", group.number)
                found.append(one | {"group": name})
    return found


def seed_of(run: RunRecord) -> str:
    return f"seed {run.about.settings.get('seed')}"


def traces(groups: Sequence[Group], plot: Plot) -> list[Trace]:
    """Of each group its runs, faintly, a band and a mean."""
    found: list[Trace] = []
    for group in groups:
        runs = [run for run in group.runs if len(points(run, plot.tags[0])[0])]
        curves = [points(run, plot.tags[0]) for run in runs]
        if not curves:
            continue
        name = html.escape(group.label)  # plotly reads tags in names
        if plot is RETURNS and len(curves) > 1:
            for run, curve in zip(runs, curves, strict=True):
                one = line("run", *thin(*curve, points=60), html.escape(seed_of(run)), group.number)
                found.append(one | {"group": name})
        steps, values = at_common_steps(curves)
        if len(curves) > 1 and len(steps):
            mean, low, high = mean_band(values)
            found += [
                line(kind, steps, y, name, group.number) | {"group": name} for kind, y in (("low", low), ("high", high))
            ]
            bounds = [list(pair) for pair in zip(rounded(low), rounded(high), strict=True)]
            found.append(
                line("mean", steps, mean, name, group.number) | {"legend": plot is RETURNS, "interval": bounds}
            )
        else:
            found += [line("mean", *curve, name, group.number) | {"legend": plot is RETURNS} for curve in curves]
    return found


def points(run: RunRecord, tag: str) -> Curve:
    if tag == SCORE:
        scores = run.scores
        return np.array([score.step for score in scores], float), np.array([score.mean for score in scores], float)
    x, y = run.columns.curve(tag)
    return smooth(x, y) if len(x) else (x, y)


def in_words(groups: Sequence[Group], plot: Plot) -> str:
    ends = [f"{group.label} ends at {figure_of(ending(group, plot.tags[0]))}" for group in groups]
    return f"{plot.title}: {'; '.join(ends)}"


def ending(group: Group, tag: str) -> float | None:
    values = [float(y[-1]) for run in group.runs if len(y := points(run, tag)[1])]
    return float(np.mean(values)) if values else None


# scores ---------------------------------------------------------------------------------------------------------------


def scores(groups: Sequence[Group]) -> tuple[str, str]:
    """(table, note): every group's interquartile mean."""
    greedy = all_scored(groups)
    finals = [np.array([s for run in group.runs if (s := final(run, greedy)) is not None]) for group in groups]
    everything = np.concatenate(finals)
    rows = []
    for group, values in zip(groups, finals, strict=True):
        name = f'<span class="swatch s{group.number % 8}"></span>{text(group.label)}'
        if len(values) == 0:
            rows.append([name, "0", *4 * [NOTHING]])
            continue
        middle, low, high = iqm_interval([values])
        interval = f"{figure_of(low)} to {figure_of(high)}" if len(values) > 1 else "one run"
        spread = f"{figure_of(values.min())} to {figure_of(values.max())}"
        picture = strip(values, middle, low, high, everything, group.number)
        rows.append([name, str(len(values)), figure_of(middle), interval, spread, picture])
    head = ["group", "runs", "IQM", "95 % interval", "range", ""]
    source = "the last greedy evaluation" if greedy else f"the mean return in the last {LAST:.0%} of training"
    note = (
        f"Group: runs that differ only in their seed. Score of a run: {source}. {about_iqm([*map(len, finals)])} "
        "Its interval is a stratified bootstrap over runs (Agarwal et al. 2021, rliable)."
    )
    return table("Final scores", head, rows), note


def about_iqm(counts: Sequence[int]) -> str:
    """What it is for groups of so many runs: a quarter of three is none."""
    if max(counts) < 4:
        return "IQM: the interquartile mean, which of fewer than four runs is the plain mean: none of them is left out."
    few = " (of fewer than four runs: the plain mean)" if min(counts) < 4 else ""
    return f"IQM: the interquartile mean, the mean without the best and the worst quarter{few}."


def all_scored(groups: Sequence[Group]) -> bool:
    """Whether all runs have greedy evaluations: what is compared must be of one kind."""
    return all(run.scores for group in groups for run in group.runs)


def final(run: RunRecord, greedy: bool) -> float | None:
    if greedy:
        return run.scores[-1].mean
    step, value = run.columns.curve(RETURN)
    return float(value[step > (1 - LAST) * step[-1]].mean()) if len(step) else None


def strip(values: np.ndarray, middle: float, low: float, high: float, everything: np.ndarray, number: int) -> str:
    """The interval, its middle and the single runs on one scale for all groups."""
    begin, span = float(everything.min()), float(np.ptp(everything)) or 1.0

    def at(value: float) -> str:
        return f"{4 + 192 * (value - begin) / span:.1f}"

    color = f"var(--series-{number % 8})"
    dots = "".join(f'<circle cx="{at(v)}" cy="9" r="2.5" fill="{color}" opacity=".4"/>' for v in values.tolist())
    return (
        f'<svg width="200" height="18" role="img" aria-label="from {figure_of(low)} to {figure_of(high)}">'
        f'<line x1="4" x2="196" y1="9" y2="9" stroke="var(--grid)"/>'
        f'<line x1="{at(low)}" x2="{at(high)}" y1="9" y2="9" stroke="{color}" stroke-width="5" opacity=".45"/>'
        f'{dots}<circle cx="{at(middle)}" cy="9" r="5" fill="{color}"/></svg>'
    )


# what they are ----------------------------------------------------------------------------------------------------------


def differences(name: str, groups: Sequence[Group]) -> str:
    """Settings in which groups differ."""
    kinds = [group.settings for group in groups]
    names = [n for n in dict.fromkeys(n for kind in kinds for n in kind) if n not in NO_MATTER]
    different = [
        n for n in names if any(kind.get(n) != kinds[0].get(n) or (n in kind) != (n in kinds[0]) for kind in kinds)
    ]
    if not different:
        return ""
    head = ["setting", *(text(group.label) for group in groups)]
    rows = [[text(n), *(text(shown(kind[n]) if n in kind else NOTHING) for kind in kinds)] for n in different]
    content = f'<div class="settings">{table("Settings that differ", head, rows)}</div>'
    return section(f"{name}-settings", "Settings that differ", content)


def run_table(groups: Sequence[Group], beside: Path) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            found = health(run.columns, run.about.settings, run.about.target, run.last_score)
            page = None if run.about.run_dir is None else run.about.run_dir / "report.html"
            name = text(run.name)
            linked = f'<a href="{link(page, beside)}">{name}</a>' if page is not None and page.is_file() else name
            rows.append([
                f'<span class="swatch s{group.number % 8}"></span>{linked}', text(group.label),
                text(run.about.settings.get("seed")), f"{run.steps:,}",
                figure_of(final(run, all_scored(groups))), text(run.status.name),
                text(found[0].what),
            ])  # fmt: skip
    return table("Runs", ["run", "group", "seed", "steps", "score", "status", "health"], rows)
