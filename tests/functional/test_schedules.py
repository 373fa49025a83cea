import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tightrope.functional import Schedule, cosine, linear, piecewise

rates = st.floats(1e-6, 1.0)
counts = st.integers(1, 5000)


@given(rates, rates, counts)
def test_starts_exactly_at_its_start_and_ends_exactly_at_its_end(start, end, phases):
    assert linear(start, end, 0, phases) == start
    assert linear(start, end, phases, phases) == end


@given(rates, rates, counts, st.integers(1, 5000))
def test_stays_at_its_end_afterwards(start, end, phases, more):
    assert linear(start, end, phases + more, phases) == end


@given(rates, rates, counts, st.data())
def test_is_a_straight_line(start, end, phases, data):
    k = data.draw(st.integers(0, phases))
    assert linear(start, end, k, phases) == pytest.approx(start + (k / phases) * (end - start), rel=1e-12, abs=1e-18)


@given(rates, rates, st.integers(1, 200))
def test_moves_towards_its_end_in_every_phase(start, end, phases):
    assume(abs(end - start) > 1e-6)
    path = [linear(start, end, k, phases) for k in range(phases + 1)]
    assert path == sorted(set(path), reverse=end < start)


@given(rates, counts)
def test_the_last_phase_trained_is_not_yet_at_the_end(start, phases):
    assert 0 < linear(start, 0.0, phases - 1, phases) <= start


@given(rates, counts, st.data())
def test_between_equal_ends_it_is_constant(rate, phases, data):
    k = data.draw(st.integers(0, phases))
    assert linear(rate, rate, k, phases) == rate


def test_decays_over_phases_whatever_their_number():
    assert [linear(1.0, 0.0, k, 4) for k in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert linear(1.0, 0.0, 5000, 10_000) == 0.5


# cosine, piecewise, and schedules of progress -----------------------------------------------------------------------------

progress = st.floats(0.0, 1.0)


@given(rates, rates, counts, st.data())
def test_cosine_is_half_a_wave_between_exact_ends(start, end, phases, data):
    k = data.draw(st.integers(0, phases))
    assert cosine(start, end, 0, phases) == start
    assert cosine(start, end, phases, phases) == end
    expected = end + 0.5 * (start - end) * (1 + math.cos(math.pi * k / phases))
    assert cosine(start, end, k, phases) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.lists(progress, min_size=1, max_size=6, unique=True), st.data())
def test_piecewise_is_numpys_interpolation_and_exact_at_its_points(places, data):
    points = tuple((x, data.draw(rates)) for x in sorted(places))
    x = data.draw(progress)
    assert piecewise(points, x) == pytest.approx(float(np.interp(x, *zip(*points, strict=True))), rel=1e-9, abs=1e-12)
    for place, value in points:
        assert piecewise(points, place) == value


@given(rates, rates, progress)
def test_a_schedule_is_the_function_that_it_names(start, end, x):
    ends = ((0.0, start), (1.0, end))
    assert Schedule("linear", ends)(x) == linear(start, end, x, 1.0)
    assert Schedule("cosine", ends)(x) == cosine(start, end, x, 1.0)
    assert Schedule("piecewise", ends)(x) == piecewise(ends, x)
    assert Schedule("constant", ((0.0, start),))(x) == start
    assert Schedule("function f", function=lambda p: start * p)(x) == start * x


def test_the_text_of_a_schedule_is_as_one_would_write_it():
    assert str(Schedule("linear", ((0.0, 3e-4), (1.0, 0.0)))) == "linear(0.0003, 0)"
    assert str(Schedule("piecewise", ((0.0, 1.0), (0.5, 1 / 3)))) == "piecewise(0: 1, 0.5: 0.3333333333333333)"
