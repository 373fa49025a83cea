import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tightrope.functional import linear

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
