"""The charts of a page and their points. The page's script turns them into plotly traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..metrics import EPISODES, LENGTH, MEASURED, RETURN, SCORE, Columns
from .data import RunRecord
from .html import format_number
from .statistics import Curve, median, smooth, thin

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
        heights = [y for trace in self.traces for y in trace["y"] if y is not None]
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


MAIN = Plot(
    "Return",
    (RETURN,),
    "In training, with sampled actions; diamonds are greedy evaluations. Every episode counts alike.",
)
SCORES = Plot("Greedy evaluations", (SCORE,), "")
PLOTS = [
    Plot("Episode length", (LENGTH,), "Steps of the episodes that ended. Every episode counts alike."),
    Plot("KL divergence", ("losses/approx_kl",), "How far a phase moves the policy. Healthy: 0.001 to 0.02.", 0.05),
    Plot("Clip fraction", ("losses/clipfrac",), "Samples beyond the clip interval. Healthy: 0.02 to 0.3."),
    Plot("Explained variance", ("losses/explained_variance",), "Of returns, by the critic: 1 is all, 0 is nothing.", None,
         (-1.05, 1.05)),
    Plot("Entropy", ("losses/entropy",), "Of the policy: should fall slowly."),
    Plot("Policy loss", ("losses/policy_loss",), "Its size says little; jumps do."),
    Plot("Objective", ("losses/objective",), "VPG's surrogate."),
    Plot("Importance weight", ("losses/importance_weight",), "Near 1, or the rollout is stale."),
    Plot("Lifespan", ("charts/lifespan_mean", "charts/lifespan_max"), "Steps lived in a rollout: mean and longest."),
    Plot("Spread of lifespans", ("charts/lifespan_std",), "Standard deviation of the steps lived in a rollout."),
    Plot("Value loss", ("losses/value_loss",), "Of the critic; grows with the returns."),
    Plot("Mean value", ("losses/value_mean",), "What the critic expects of a step: the discounted return from there on."),
    Plot("Total loss", ("losses/total_loss",), "What gradient steps minimised: policy, value and entropy terms together."),
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
    "step", "phase", "time", EPISODES, "charts/solved", SCORE, "eval/episodic_length", "eval/return_std",
    "eval/return_min", "eval/return_max", "eval/episodes", "eval/cut_off", MEASURED,
)  # fmt: skip


def main_charts(record: RunRecord) -> list[Chart]:
    """Returns with the evaluations on top; two charts if training is paid otherwise than the score."""
    columns, other = record.columns, record.info.settings.get("train_env")
    traces, points = tag_traces(columns, RETURN, 0), score_points(record)
    if not other:
        return [Chart(MAIN, traces + points, summary=chart_summary(columns, MAIN))]
    says = f"Of {other}, which pays otherwise than the task: not to be compared with the score."
    shaped = Chart(Plot("Return in training", (RETURN,), says), traces, summary=chart_summary(columns, MAIN))
    plain = replace(SCORES, says=f"Greedy, of {record.info.settings.get('env')} itself.")
    several = len(record.scores) > 1  # a single one is among the numbers at the top
    return [shaped, *([Chart(plain, points, summary=chart_summary(columns, plain))] if several else [])]


def score_points(record: RunRecord) -> list[Trace]:
    scores = record.scores
    if not scores:
        return []
    x, y = [score.step for score in scores], rounded([score.mean for score in scores])
    return [{"kind": "points", "name": "greedy", "color": 1, "x": x, "y": y}]


def charts(columns: Columns) -> list[Chart]:
    """The charts of all other metrics; unknown tags come last."""
    known = {tag for plot in PLOTS for tag in plot.tags} | {RETURN, *NOT_DRAWN}
    others = [Plot(title_of(tag), (tag,), tag) for tag in columns.tags if tag not in known][:MAX_OTHERS]
    there = [plot for plot in [*PLOTS, *others] if any(tag in columns for tag in plot.tags)]
    return [chart(columns, plot) for plot in there if plot.tags[0] not in DULL or np.ptp(columns.values(plot.tags[0]))]


def title_of(tag: str) -> str:
    """'Forward speed' for my/forward_speed."""
    words = (tag.rpartition("/")[2] or tag).replace("_", " ").strip() or tag
    return words[0].upper() + words[1:]


def chart(columns: Columns, plot: Plot) -> Chart:
    log = needs_log(columns, plot)
    traces = [trace for i, tag in enumerate(plot.tags) for trace in tag_traces(columns, tag, i, log)]
    return Chart(plot, traces, log, chart_summary(columns, plot)).fitting()


def tag_traces(columns: Columns, tag: str, color: int, log: bool = False) -> list[Trace]:
    """A faint line of the measured values and a clear smoothed line; a single line if there are few points. In phases in which
    no episode ended the curve of a mean over episodes has a gap, which a dotted line bridges."""
    x, y, weight = by_phase(columns, tag) if tag in (RETURN, LENGTH) else (*columns.curve(tag), None)
    name = tag.rpartition("/")[2].replace("_", " ")
    there = np.isfinite(y)
    if not there.any():
        return []
    if tag in SCHEDULED or there.sum() < 8 or (np.ptp(y[there]) == 0 and there.all()):
        return [line("smooth", *thin(x[there], y[there]), name, color)]
    if log:
        x_smooth, y_smooth = smooth(x, np.log(y), weight)
        y_smooth = np.exp(y_smooth)
    else:
        x_smooth, y_smooth = smooth(x, y, weight)
    gaps, drawn = np.isnan(y_smooth), "raw" if there.all() else "dots"
    bridge = [line("gap", x_smooth[~gaps], y_smooth[~gaps], name, color)] if gaps.any() else []
    raw = line(drawn, *thin(x, y) if there.all() else thin(x[there], y[there]), f"{name}, as measured", color)
    return [raw, *bridge, line("smooth", x_smooth, y_smooth, name, color)]


def by_phase(columns: Columns, tag: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps, values, weights) of all phases from the first to the last with a value. NaN where no episode ended."""
    step, value, weight = columns["step"], columns[tag], np.zeros(columns.count)
    there = np.isfinite(step) & np.isfinite(value)
    weight[there] = columns.weights(tag)
    kept = np.isfinite(step) & (np.cumsum(there) > 0) & (np.cumsum(there[::-1])[::-1] > 0)
    return step[kept], value[kept], weight[kept]


def line(kind: str, x: np.ndarray, y: np.ndarray, name: str, color: int) -> Trace:
    return {"kind": kind, "name": name, "color": color, "x": [round(step) for step in x.tolist()], "y": rounded(y)}


def smoothed(columns: Columns, tag: str) -> Curve:
    x, y = columns.curve(tag)
    return smooth(x, y, columns.weights(tag)) if len(x) else (x, y)


def needs_log(columns: Columns, plot: Plot) -> bool:
    values = np.concatenate([columns.curve(tag)[1] for tag in plot.tags])
    return len(values) > 0 and bool(values.min() > 0 and values.max() > LOG_RATIO * median(values))


def rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Five digits are more than a screen has. NaN, a gap, is None."""
    return [float(f"{value:.5g}") if value == value else None for value in np.asarray(values, float).tolist()]


def chart_summary(columns: Columns, plot: Plot) -> str:
    x, y = columns.curve(plot.tags[0])
    if len(x) == 0:
        return f"{plot.title}: no numbers yet"
    return (
        f"{plot.title} over {x[-1]:,.0f} steps: {format_number(y[0])} at first, {format_number(y[-1])} at last, "
        f"between {format_number(y.min())} and {format_number(y.max())}"
    )
