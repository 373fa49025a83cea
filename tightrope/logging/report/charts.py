"""The charts of a page and their points. The page's script turns them into plotly traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..metrics import RETURN, SCORE, Columns
from .data import RunRecord
from .html import format_number
from .statistics import median, smooth, thin

Trace = dict[str, Any]
MAX_OTHERS = 24  # charts of unknown tags
LOG_RATIO = 200  # of a curve's maximum to its median, from which on the axis is logarithmic


@dataclass(frozen=True)
class Plot:
    """What is drawn together."""

    title: str
    tags: tuple[str, ...]
    says: str  # an explanation for the reader
    limit: float | None = None  # drawn as a dashed line: beyond it something is wrong
    window: tuple[float, float] | None = None  # initial y-range if the curve exceeds it


@dataclass(frozen=True)
class Chart:
    """A plot with its points."""

    plot: Plot
    traces: list[Trace] = field(default_factory=list)
    log: bool = False
    summary: str = ""  # for those who do not see it

    def fitting(self) -> Chart:
        """Drop a limit far above all points and a window that contains all points."""
        heights = [y for trace in self.traces for y in trace["y"]]
        limit, window = self.plot.limit, self.plot.window
        if limit is not None and max(heights, default=0.0) < limit / 2:
            limit = None
        if window is not None and all(window[0] <= y <= window[1] for y in heights):
            window = None
        return replace(self, plot=replace(self.plot, limit=limit, window=window))

    def data(self) -> Trace:
        plot = self.plot
        found = {"title": plot.title, "traces": self.traces, "log": self.log}
        return found | {"limit": plot.limit, "window": plot.window}


MAIN = Plot("Return", (RETURN,), "Mean of the episodes that ended in a phase; diamonds are greedy evaluations.")
PLOTS = [
    Plot("Episode length", ("charts/episodic_length",), "Steps."),
    Plot("KL divergence", ("losses/approx_kl",), "How far a phase moves the policy. Healthy: 0.001 to 0.02.", 0.05),
    Plot("Clip fraction", ("losses/clipfrac",), "Samples beyond the clip interval. Healthy: 0.02 to 0.3."),
    Plot("Explained variance", ("losses/explained_variance",), "Of returns, by the critic: 1 is all, 0 is nothing.", None,
         (-1.05, 1.05)),
    Plot("Entropy", ("losses/entropy",), "Of the policy: should fall slowly."),
    Plot("Policy loss", ("losses/policy_loss",), "Its size says little; jumps do."),
    Plot("Objective", ("losses/objective",), "VPG's surrogate."),
    Plot("Importance weight", ("losses/importance_weight",), "Near 1, or the rollout is stale."),
    Plot("Lifespan", ("charts/lifespan_mean", "charts/lifespan_max"), "Steps lived in a rollout: mean and longest."),
    Plot("Value loss", ("losses/value_loss",), "Of the critic; grows with the returns."),
    Plot("Gradient norm", ("losses/grad_norm",), "Before clipping. Healthy: steady."),
    Plot("Learning rate", ("charts/learning_rate",), "As scheduled."),
    Plot("Clip coefficient", ("charts/clip_coef",), "As scheduled."),
    Plot("Entropy coefficient", ("charts/ent_coef",), "As scheduled."),
    Plot("Reward per step", ("charts/reward",), "What training was paid, shaped or scaled."),
    Plot("Speed", ("charts/SPS",), "Environment steps per second of training."),
]  # fmt: skip
SCHEDULED = ("charts/learning_rate", "charts/clip_coef", "charts/ent_coef")  # not measured, so not smoothed
DULL = ("charts/reward", "losses/value_loss", "losses/importance_weight")  # where they are always the same
NOT_DRAWN = (
    "step", "phase", "time", "charts/episodes", "charts/solved", SCORE, "eval/episodic_length", "eval/return_std",
    "eval/return_min", "eval/return_max", "eval/episodes",
)  # fmt: skip


def main_chart(record: RunRecord) -> Chart:
    """Returns, with the evaluations on top."""
    traces = tag_traces(record.columns, RETURN, 0)
    scores = record.scores
    if scores:
        traces.append({
            "kind": "points", "name": "greedy", "color": 1,
            "x": [score.step for score in scores], "y": rounded([score.mean for score in scores]),
        })  # fmt: skip
    return Chart(MAIN, traces, summary=chart_summary(record.columns, MAIN))


def charts(columns: Columns) -> list[Chart]:
    """The charts of all other metrics; unknown tags come last."""
    known = {tag for plot in PLOTS for tag in plot.tags} | {RETURN, *NOT_DRAWN}
    others = [Plot(tag, (tag,), "") for tag in columns.tags if tag not in known][:MAX_OTHERS]
    there = [plot for plot in [*PLOTS, *others] if any(tag in columns for tag in plot.tags)]
    return [chart(columns, plot) for plot in there if plot.tags[0] not in DULL or np.ptp(columns.values(plot.tags[0]))]


def chart(columns: Columns, plot: Plot) -> Chart:
    traces = [trace for i, tag in enumerate(plot.tags) for trace in tag_traces(columns, tag, i)]
    return Chart(plot, traces, needs_log(columns, plot), chart_summary(columns, plot)).fitting()


def tag_traces(columns: Columns, tag: str, color: int) -> list[Trace]:
    """A faint line of the measured values and a clear smoothed line; a single line if there are few points."""
    x, y = columns.curve(tag)
    name = tag.rpartition("/")[2].replace("_", " ")
    if len(x) == 0:
        return []
    if len(x) < 8 or np.ptp(y) == 0 or tag in SCHEDULED:
        return [line("smooth", *thin(x, y), name, color)]
    return [line("raw", *thin(x, y), f"{name}, as measured", color), line("smooth", *smooth(x, y), name, color)]


def line(kind: str, x: np.ndarray, y: np.ndarray, name: str, color: int) -> Trace:
    return {"kind": kind, "name": name, "color": color, "x": [round(step) for step in x.tolist()], "y": rounded(y)}


def needs_log(columns: Columns, plot: Plot) -> bool:
    values = np.concatenate([columns.curve(tag)[1] for tag in plot.tags])
    return len(values) > 0 and bool(values.min() > 0 and values.max() > LOG_RATIO * median(values))


def rounded(values: Sequence[float] | np.ndarray) -> list[float]:
    """Five digits are more than a screen has."""
    return [float(f"{value:.5g}") for value in np.asarray(values, float).tolist()]


def chart_summary(columns: Columns, plot: Plot) -> str:
    x, y = columns.curve(plot.tags[0])
    if len(x) == 0:
        return f"{plot.title}: no numbers yet"
    return (
        f"{plot.title} over {x[-1]:,.0f} steps: {format_number(y[0])} at first, {format_number(y[-1])} at last, "
        f"between {format_number(y.min())} and {format_number(y.max())}"
    )
