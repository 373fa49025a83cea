"""The page of several runs. Runs that differ only in their seed form a group, and groups are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..metrics import RETURN, SCORE
from . import html
from .charts import PLOTS, Chart, Plot, Trace, line, rounded, smoothed
from .data import RunRecord
from .groups import Group, differing_settings, group_runs, seed_text
from .html import format_number, format_setting, section, settings_table, table, text
from .run import MAX_VIDEOS, curves, link, videos
from .score_table import all_scored, final_score, run_verdict, score_table
from .statistics import Curve, at_common_steps, mean_band, thin

RETURNS = Plot("Return", (RETURN,), "In training, with sampled actions.")
GREEDY = Plot("Greedy evaluations", (SCORE,), "Fresh environments, no sampling. Each run by itself.")
COMPARED = ("charts/episodic_length", "losses/approx_kl", "losses/explained_variance", "losses/entropy", "losses/value_loss",
            "charts/SPS")  # fmt: skip


def comparison_page(runs: Sequence[RunRecord], beside: Path) -> str:
    """The whole page, one part for each environment."""
    envs = list(dict.fromkeys(str(run.info.settings.get("env")) for run in runs))
    drawn: list[Chart] = []
    parts = []
    for env in envs:
        groups = group_runs([run for run in runs if str(run.info.settings.get("env")) == env])
        parts.append(env_part(env, groups, drawn, beside))
    count = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
    title = f"{', '.join(envs[:3])}{' and more' if len(envs) > 3 else ''}"
    hint = "Drag across a curve to zoom; click a name in the legend to hide it."
    body = [html.page_header(title, count, f"compared {html.now()}"), "<main>", *parts, "</main>", html.footer(hint)]
    return html.document(f"{title}: {count}", body, [chart.data() for chart in drawn])


def env_part(env: str, groups: list[Group], drawn: list[Chart], beside: Path) -> str:
    """The part of the page for one environment; its charts are added to `drawn`."""
    first, made = len(drawn), chosen_charts(groups)
    name = f"env-{first}"
    drawn += made
    note = (
        "Over environment steps. Line: mean over seeds. Band: 95 % bootstrap interval of the mean. Faint: single runs."
    )
    if min(len(group.runs) for group in groups) < 5:
        note += " With fewer than five seeds an interval says little."
    newest = [
        (video.place, f"{group.label}, {seed_text(run)}, {run.label(video)}")
        for group in groups
        for run in group.runs[:1]
        for video in run.files.videos[-1:]
        if video.place.is_file()
    ]
    shaped = sorted({str(other) for group in groups if (other := group.settings.get("train_env"))})
    if shaped:
        note += f" Returns in training of {text(' and '.join(shaped))} are paid otherwise: compare greedy evaluations."
    parts = [
        section(f"{name}-scores", f"{text(env)}: final scores", *score_table(groups)),
        curves(made, f"{name}-", first, note),
        settings_that_differ(name, groups),
        section(f"{name}-runs", "Runs", run_table(groups, beside)),
        videos((newest[:MAX_VIDEOS], newest[MAX_VIDEOS:]), beside, f"{name}-videos"),
    ]
    return "".join(parts)


# curves ---------------------------------------------------------------------------------------------------------------


def chosen_charts(groups: Sequence[Group]) -> list[Chart]:
    plots = [RETURNS, GREEDY, *(plot for plot in PLOTS if plot.tags[0] in COMPARED)]
    drawn = {plot: single_runs(groups) if plot is GREEDY else group_traces(groups, plot) for plot in plots}
    made = [Chart(plot, found, summary=summary_text(groups, plot)).fitting() for plot, found in drawn.items()]
    return [chart for chart in made if chart.traces or chart.plot is RETURNS]


def single_runs(groups: Sequence[Group]) -> list[Trace]:
    """The evaluations of every run. No mean is drawn: there are few, and at different steps."""
    found: list[Trace] = []
    for group in groups:
        name = text(group.label)
        for run in group.runs:
            steps, scores = run_curve(run, SCORE)
            if len(steps):
                one = line("scores", steps, scores, f"{name}, {text(seed_text(run))}", group.number)
                found.append(one | {"group": name})
    return found


def group_traces(groups: Sequence[Group], plot: Plot) -> list[Trace]:
    """For each group, its runs as faint lines, a band and a mean."""
    found: list[Trace] = []
    for group in groups:
        runs = [run for run in group.runs if len(run_curve(run, plot.tags[0])[0])]
        curves = [run_curve(run, plot.tags[0]) for run in runs]
        if not curves:
            continue
        name = text(group.label)  # plotly reads tags in names
        if plot is RETURNS and len(curves) > 1:
            for run, curve in zip(runs, curves, strict=True):
                one = line("run", *thin(*curve, points=60), text(seed_text(run)), group.number)
                found.append(one | {"group": name})
        steps, values = at_common_steps(curves)
        if len(curves) > 1 and len(steps):
            mean, low, high = mean_band(values)
            for kind, y in (("low", low), ("high", high)):
                found.append(line(kind, steps, y, name, group.number) | {"group": name})
            bounds = [list(pair) for pair in zip(rounded(low), rounded(high), strict=True)]
            middle = line("mean", steps, mean, name, group.number)
            found.append(middle | {"legend": plot is RETURNS, "interval": bounds})
        else:
            found += [line("mean", *curve, name, group.number) | {"legend": plot is RETURNS} for curve in curves]
    return found


def run_curve(run: RunRecord, tag: str) -> Curve:
    if tag == SCORE:
        scores = run.scores
        return np.array([score.step for score in scores], float), np.array([score.mean for score in scores], float)
    return smoothed(run.columns, tag)


def summary_text(groups: Sequence[Group], plot: Plot) -> str:
    ends = [f"{group.label} ends at {format_number(mean_at_end(group, plot.tags[0]))}" for group in groups]
    return f"{plot.title}: {'; '.join(ends)}"


def mean_at_end(group: Group, tag: str) -> float | None:
    values = [float(y[-1]) for run in group.runs if len(y := run_curve(run, tag)[1])]
    return float(np.mean(values)) if values else None


# what they are ----------------------------------------------------------------------------------------------------------


def settings_that_differ(name: str, groups: Sequence[Group]) -> str:
    """Settings in which groups differ."""
    kinds = [group.settings for group in groups]
    rows = [[text(n), *(text(format_setting(kind.get(n))) for kind in kinds)] for n in differing_settings(kinds)]
    if not rows:
        return ""
    head = ["setting", *(text(group.label) for group in groups)]
    content = settings_table("Settings that differ", head, rows)
    return section(f"{name}-settings", "Settings that differ", content)


def score_text(run: RunRecord, greedy: bool) -> str:
    own = run.scores[-1].own if greedy else ""
    return format_number(final_score(run, greedy)) + (f" ({text(own)})" if own else "")


def run_table(groups: Sequence[Group], beside: Path) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            page = None if run.info.run_dir is None else run.info.run_dir / "report.html"
            name = text(run.name)
            linked = f'<a href="{link(page, beside)}">{name}</a>' if page is not None and page.is_file() else name
            rows.append([
                f'<span class="swatch s{group.number % 8}"></span>{linked}', text(group.label),
                text(run.info.settings.get("seed")), f"{run.steps:,}",
                score_text(run, all_scored(groups)), text(run.status.name),
                text(run_verdict(run).headline or run_verdict(run).what),
            ])  # fmt: skip
    return table("Runs", ["run", "group", "seed", "steps", "score", "status", "outcome"], rows)
