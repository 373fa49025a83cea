"""Statistics for the pages: thinning and smoothing of curves, the trend of returns, scores over several seeds.

The score of several runs is their interquartile mean with a percentile interval from a stratified bootstrap, as defined by
Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021), the paper of rliable:
runs are drawn anew, with replacement, within each task; scores of all tasks are pooled; a quarter is cut off at either end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

POINTS = 300  # of a curve on a page
BELL_WIDTH = 0.015  # of the bell that smooths a curve, as a share of it
NEAR = 2.0  # widths of the bell, beyond which a curve without values has a gap
FEWEST_OF_IQM = 4  # runs, of which a quarter at either end is one
RESAMPLES = 2000
LEVEL = 0.95
MIN_PHASES = 10  # with fewer there is nothing to judge
COLLAPSE, FLAT = 0.4, 0.1  # shares of the range of the returns
CLEAR = 4  # standard deviations of single phases, by which a smoothed curve does not rise by chance
ROUNDING = 1e-6  # relative difference that counts as equal

Curve = tuple[np.ndarray, np.ndarray]  # steps, values


def median(values: np.ndarray) -> float:
    """The median. numpy.median imports masked arrays, which takes as long as the rest of a page."""
    ordered, count = np.sort(values), len(values)
    return float((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)


def thin(x: np.ndarray, y: np.ndarray, points: int = POINTS) -> Curve:
    """The curve in at most 2 x `points` points: of each stretch the lowest and the highest, so that no peak is lost. NaN is a
    gap; a stretch without numbers stays one."""
    if len(x) <= 2 * points:
        return x, y
    kept = []
    for stretch in stretches(len(x), points):
        part = y[stretch]
        if np.isnan(part).all():
            kept.append(stretch.start)
        else:
            kept += sorted({stretch.start + int(np.nanargmin(part)), stretch.start + int(np.nanargmax(part))})
    return x[kept], y[kept]


def smooth(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None, points: int = POINTS) -> Curve:
    """At each point the value of a line through its neighbours, fitted by least squares that a bell weighs and, if given, the
    `weight` of each value, such as the number of episodes behind it. (A mean would lag where weights change along a slope.)
    Where all weights near a point are 0, the curve has a gap: NaN."""
    weight = np.ones(len(y)) if weight is None else np.where(np.isfinite(y), weight, 0.0)
    total, there = np.where(weight > 0, y, 0.0) * weight, weight > 0
    low, high = (float(f(y[there])) for f in (np.min, np.max)) if there.any() else (0.0, 0.0)
    if len(x) > points:
        parts = stretches(len(x), points)
        x = np.array([x[p].mean() for p in parts])
        total, weight = np.array([total[p].sum() for p in parts]), np.array([weight[p].sum() for p in parts])
    width = max(BELL_WIDTH * len(x), min(1.0, len(x) / 20))
    reach = np.arange(-int(4 * width) - 1, int(4 * width) + 2)
    bell = np.exp(-0.5 * (reach / width) ** 2)

    def near(values: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """The sum over the neighbours of each point, weighed by a kernel of their distance."""
        return np.convolve(values, kernel[::-1])[len(kernel) // 2 :][: len(values)]

    ones, mean = near(weight, bell), near(total, bell)
    first, second, slope = near(weight, bell * reach), near(weight, bell * reach**2), near(total, bell * reach)
    spread = ones * second - first**2
    flat = spread <= 1e-9 * ones * second  # one neighbour: no line goes through it
    with np.errstate(all="ignore"):
        line = np.where(flat, mean / ones, (second * mean - first * slope) / spread)
    found = near((weight > 0).astype(float), (np.abs(reach) <= NEAR * width).astype(float)) > 0.5
    return x, np.where(found, np.clip(line, low, high), np.nan)


def stretches(count: int, parts: int) -> list[slice]:
    """`count` rows in so many nearly equal parts, none of them empty."""
    edges = np.linspace(0, count, min(parts, count) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


@dataclass(frozen=True)
class ReturnSummary:
    """Smoothed returns. The very first phases are left out: only short episodes end there."""

    begin: float
    best: float
    end: float  # the mean of the last twentieth
    noise: float  # standard deviation of single phases around the smoothed curve
    rise: float  # from the first quarter to the last, in standard errors
    sprint: float  # gain in the very first phases
    error: float = 0.0  # standard error of `end`

    @property
    def range(self) -> float:
        return self.best - min(self.begin, self.end)

    @property
    def improved(self) -> bool:
        """Whether the return has risen by more than its noise."""
        return self.rise > 4 or self.best - self.begin > CLEAR * self.noise or self.sprint > 10 * self.noise

    @property
    def collapsed(self) -> bool:
        """Whether the return rose and then lost much of its gain."""
        lost = self.best - self.end
        return self.best - self.begin > CLEAR * self.noise and lost > max(COLLAPSE * self.range, 2 * self.noise)

    @property
    def near_its_best(self) -> bool:
        """Whether the return has risen and stayed near its maximum."""
        return self.improved and self.best - self.end < FLAT * self.range


def return_summary(step: np.ndarray, value: np.ndarray, weight: np.ndarray | None = None) -> ReturnSummary | None:
    """None for too few returns. `weight` is the number of episodes behind each of them."""
    if len(value) < 2 * MIN_PHASES:
        return None
    weight = np.ones(len(value)) if weight is None else weight
    x, y = smooth(step, value, weight)
    skipped, quarter, last = max(len(y) // 20, 1), len(value) // 4, len(value) // 20 + 1
    early, late = slice(len(value) // 20, quarter), slice(len(value) - quarter, None)
    rise, error = mean_difference((value[early], weight[early]), (value[late], weight[late]))
    residual = value - np.interp(step, x, y)
    off = np.average(residual**2, weights=weight) ** 0.5
    off = max(1.48 * median(np.abs(residual)), off / 10)  # a steep start is no noise
    noise = max(float(off), ROUNDING * float(np.abs(value).max()), 1e-12)
    return ReturnSummary(
        begin=float(y[skipped]),
        best=float(y[skipped:].max()),
        end=float(np.average(value[-last:], weights=weight[-last:])),
        noise=noise,
        rise=rise / max(error, 1e-12),
        sprint=float(y[skipped] - y[0]),
        error=noise / last**0.5,
    )


def mean_difference(first: Curve, second: Curve) -> tuple[float, float]:
    """(mean of the second minus that of the first, its standard error) of two samples, given as values and weights."""
    means, squares = [], 0.0
    for values, weights in (first, second):
        means.append(float(np.average(values, weights=weights)))
        effective = weights.sum() ** 2 / (weights**2).sum()
        squares += float(np.average((values - means[-1]) ** 2, weights=weights)) / effective
    return means[1] - means[0], squares**0.5


def at_common_steps(curves: Sequence[Curve], points: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """(steps, one row of values for each curve) over the steps that all of the curves cover; empty where there are none."""
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if begin >= end:
        return np.empty(0), np.empty((len(curves), 0))
    steps = np.linspace(begin, end, min(points, max(len(x) for x, _ in curves)))
    return steps, np.stack([np.interp(steps, x, y) for x, y in curves])


def mean_band(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high) over the rows, which are runs, with a bootstrap interval for the mean."""
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    share = np.stack([(drawn == run).mean(1) for run in range(len(values))], axis=1)  # of each run in each sample
    low, high = np.quantile(share @ values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return values.mean(0), low, high


def mean_interval(scores: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of the scores of some runs."""
    return tuple(float(part[0]) for part in mean_band(scores[:, None]))  # type: ignore[return-value]


def iqm(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean over the last axis: the mean without a quarter of the scores, rounded down, at either end."""
    ordered, cut = np.sort(scores, axis=-1), scores.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def iqm_interval(tasks: Sequence[np.ndarray], seed: int = 0) -> tuple[float, float, float]:
    """(IQM, low, high) of the scores of all tasks; runs are drawn anew within each task."""
    draw = np.random.default_rng(seed)
    samples = [scores[draw.integers(len(scores), size=(RESAMPLES, len(scores)))] for scores in tasks]
    low, high = np.quantile(iqm(np.concatenate(samples, axis=1)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(iqm(np.concatenate(list(tasks)))), float(low), float(high)
