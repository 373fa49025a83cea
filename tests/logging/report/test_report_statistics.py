"""The numbers behind curves and scores, against their definitions."""

import itertools

import numpy as np
import pytest

from tightrope.logging.report.statistics import (
    POINTS,
    at_common_steps,
    iqm,
    iqm_interval,
    mean_band,
    mean_difference,
    mean_interval,
    smooth,
    thin,
)


def test_thinning_keeps_every_extreme_and_the_order() -> None:
    x, y = np.arange(100_000.0), np.random.default_rng(1).normal(size=100_000)
    y[[777, 50_001]] = 99, -99
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= 2 * POINTS
    assert (thin_y.max(), thin_y.min()) == (99, -99)
    assert (np.diff(thin_x) > 0).all()
    assert all(y[int(a)] == b for a, b in zip(thin_x, thin_y, strict=True))
    assert thin(x[:50], y[:50])[0].tolist() == list(range(50))  # few points are left alone


def test_smoothing_keeps_a_constant_and_quiets_noise() -> None:
    x = np.arange(5000.0)
    np.testing.assert_allclose(smooth(x, np.full(5000, 7.0))[1], 7.0)
    noise = np.random.default_rng(1).normal(size=5000)
    assert smooth(x, noise)[1].std() < 0.1
    assert len(smooth(x, noise)[0]) == POINTS


@pytest.mark.parametrize("count", [1, 2, 3, 10, 299, 300, 301])
def test_smoothing_works_on_any_number_of_points(count: int) -> None:
    x, y = smooth(np.arange(count, dtype=float), np.linspace(0, 1, count))
    assert len(x) == len(y) == min(count, POINTS)
    assert np.isfinite(y).all()
    assert (np.diff(y) >= 0).all()


def test_smoothing_fits_weighted_lines() -> None:
    """Against the definition, with a bell cut where the code cuts it; and doubling all weights changes nothing."""
    draw = np.random.default_rng(3)
    y, weight = draw.normal(size=40), draw.integers(0, 4, size=40).astype(float)
    y[:2] = -9, 9  # what is found is kept between the lowest and the highest value
    weight[:2] = 1
    x, out = smooth(np.arange(40.0), np.where(weight > 0, y, np.nan), weight)
    for i in range(40):
        away = np.arange(40) - i
        bell = np.exp(-0.5 * away**2) * (np.abs(away) <= 5)
        line = np.polynomial.polynomial.polyfit(away, y, 1, w=np.sqrt(bell * weight))
        assert out[i] == pytest.approx(np.clip(line[0], -9, 9), abs=1e-6)
    np.testing.assert_allclose(smooth(x, y, 2 * weight)[1], out)


def test_weights_that_change_along_a_slope_shift_nothing() -> None:
    """Early in training many short episodes end in a phase, later few long ones."""
    y = np.linspace(0, 500, 60)
    np.testing.assert_allclose(smooth(np.arange(60.0), y, np.geomspace(50, 1, 60))[1], y, atol=1e-6)


def test_far_from_all_weight_a_smoothed_curve_has_a_gap() -> None:
    weight = np.ones(100)
    weight[40:60] = 0
    gaps = np.isnan(smooth(np.arange(100.0), np.ones(100), weight)[1])
    assert gaps[45:55].all()
    assert not gaps[:40].any()
    assert not gaps[60:].any()


def test_the_error_of_a_difference_counts_weights_as_repeats() -> None:
    draw = np.random.default_rng(4)
    first, second, one = draw.normal(size=50), 1 + draw.normal(size=80), np.ones
    difference, error = mean_difference((first, one(50)), (second, one(80)))
    assert difference == pytest.approx(second.mean() - first.mean())
    assert error == pytest.approx((first.var() / 50 + second.var() / 80) ** 0.5)
    halves = np.r_[one(40), np.zeros(40)]
    assert mean_difference((first, one(50)), (second, halves)) == pytest.approx(
        mean_difference((first, one(50)), (second[:40], one(40)))
    )


def test_the_mean_of_few_runs_has_an_interval_of_its_own() -> None:
    middle, low, high = mean_interval(np.array([0.0, 3.0, 9.0]))
    assert middle == 4
    assert low < middle < high


def test_common_steps_are_those_that_all_cover() -> None:
    first = (np.array([0.0, 10, 20]), np.array([0.0, 10, 20]))
    second = (np.array([5.0, 15, 25]), np.array([10.0, 10, 10]))
    steps, values = at_common_steps([first, second])
    assert (steps[0], steps[-1]) == (5, 20)
    np.testing.assert_allclose(values[0], steps)
    np.testing.assert_allclose(values[1], 10)
    steps, values = at_common_steps([first, (np.array([21.0, 22]), np.zeros(2))])
    assert (len(steps), values.shape) == (0, (2, 0))  # runs that never met have none


def test_the_band_is_that_of_all_resamples() -> None:
    values = np.array([[0.0, 1], [3.0, 1], [9.0, 1]])
    every = [np.mean(draw) for draw in itertools.product([0, 3, 9], repeat=3)]  # all 27 samples are equally likely
    mean, low, high = mean_band(values)
    np.testing.assert_allclose(mean, [4, 1])
    np.testing.assert_allclose([low[0], high[0]], np.quantile(every, [0.025, 0.975], method="inverted_cdf"), atol=1e-9)
    assert (low[1], high[1]) == (1, 1)


def test_iqm_is_the_mean_of_the_middle_half() -> None:
    assert iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == np.mean([2, 3, 4, 5])
    assert iqm(np.array([5.0, 1, 9, 2, 3])) == np.mean([2, 3, 5])  # a quarter of five, rounded down, is one
    assert iqm(np.array([1.0, 2, 30])) == 11
    assert iqm(np.array([4.0])) == 4


def test_iqm_agrees_with_the_trimmed_mean_that_rliable_takes() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(2)
    for count in range(1, 40):
        scores = draw.normal(size=count)
        assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_the_interval_draws_within_tasks() -> None:
    """Two tasks, each always the same score: a stratified sample never varies, a pooled one would."""
    middle, low, high = iqm_interval([np.zeros(4), np.ones(4)])
    assert middle == low == high == 0.5


def test_the_interval_is_that_of_all_resamples() -> None:
    scores = np.array([0.0, 1, 5, 20])
    every = [iqm(np.array(draw)) for draw in itertools.product(scores, repeat=4)]
    middle, low, high = iqm_interval([scores])
    assert middle == 3
    np.testing.assert_allclose([low, high], np.quantile(every, [0.025, 0.975], method="inverted_cdf"), atol=0.6)
    assert iqm_interval([scores]) == (middle, low, high)  # the same runs, the same interval
