"""The page of several runs. Runs that differ only in their seed form a group, and groups are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...types import Settings
from ..metrics import RETURN, SCORE
from . import html
from .charts import PLOTS, Chart, Plot, Trace, line, rounded, smoothed
from .data import RunRecord, mean_in_unit
from .html import NO_NUMBER, format_number, format_setting, section, settings_table, table, text
from .outcome import HealthFinding, outcome
from .run import MAX_VIDEOS, curves, link, videos
from .statistics import FEWEST_OF_IQM, Curve, at_common_steps, iqm_interval, mean_band, mean_interval, thin

RETURNS = Plot("Return", (RETURN,), "In training, with sampled actions.")
GREEDY = Plot("Greedy evaluations", (SCORE,), "Fresh environments, no sampling. Each run by itself.")
COMPARED = ("charts/episodic_length", "losses/approx_kl", "losses/explained_variance", "losses/entropy", "losses/value_loss",
            "charts/SPS")  # fmt: skip
# settings that do not change what is learned, besides the seed
IGNORED = {
    "seed", "device", "threads", "accelerate", "save_seconds", "save_every", "keep_checkpoints", "rank_timeout", "eval_every",
    "eval_episodes", "eval_envs", "eval_seconds",
    "video_every", "log", "project", "entity", "run_name", "watch", "tags",
}  # fmt: skip
FINAL_SHARE = 0.1  # share of a run whose returns are its score, where there are no evaluations


def comparison_page(runs: Sequence[RunRecord], beside: Path) -> str:
    """The whole page, one part for each environment."""
    by_env: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_env.setdefault(str(run.info.settings.get("env")), []).append(run)
    envs, drawn = list(by_env), list[Chart]()
    parts = [env_part(env, group_runs(some), drawn, beside) for env, some in by_env.items()]
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
        (video.place, f"{group.label}, {seed_text(group.runs[0])}, {group.runs[0].label(video)}")
        for group in groups
        for video in group.runs[0].files.videos[-1:]
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


# groups -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    number: int  # decides its colour
    runs: list[RunRecord]

    @property
    def settings(self) -> Settings:
        return self.runs[0].info.settings


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Groups in the order of the runs, each named by the settings in which it differs."""
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        relevant = {name: value for name, value in run.info.settings.items() if name not in IGNORED}
        found.setdefault(json.dumps(relevant, sort_keys=True, default=str), []).append(run)
    for members in found.values():
        members.sort(key=lambda run: str(run.info.settings.get("seed")).zfill(20))
    kinds = [members[0].info.settings for members in found.values()]
    return [Group(group_label(kinds[i], kinds), i, members) for i, members in enumerate(found.values())]


def differing_settings(kinds: Sequence[Settings]) -> list[str]:
    """Settings that do not have the same value everywhere."""
    names = dict.fromkeys(name for kind in kinds for name in kind if name not in IGNORED)
    return [name for name in names if any(kind.get(name) != kinds[0].get(name) for kind in kinds)]


def group_label(kind: Settings, kinds: Sequence[Settings]) -> str:
    algo = str(kind.get("algo"))
    alike = [other for other in kinds if other.get("algo") == kind.get("algo")]
    words = [f"{name} {format_setting(kind.get(name))}" for name in differing_settings(alike)]
    if len(alike) < len(kinds) or not words:
        words.insert(0, algo)
    return ", ".join(words[:4]) + (", ..." if len(words) > 4 else "")


def seed_text(run: RunRecord) -> str:
    return f"seed {run.info.settings.get('seed')}"


# scores -----------------------------------------------------------------------------------------------------------------


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
    head = ["group", "runs", "IQM" if robust else "mean", "95 % interval", "range", ""]
    head += ["own unit"] * any(own) + ["solved"] * any(solved)
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
