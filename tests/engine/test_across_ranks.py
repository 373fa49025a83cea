"""Statistics over the ranks of a run, against their definitions; with one process, the plain computation."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tightrope.engine import Runtime, masked_moments, moments
from tightrope.functional import standardize

shapes = st.tuples(st.integers(1, 6), st.integers(2, 4))


def numbers(shape):
    return arrays(np.float64, shape, elements=st.floats(-100, 100)).map(torch.from_numpy)


@given(shapes.flatmap(numbers))
def test_moments_are_the_mean_and_the_unbiased_deviation(x):
    mean, std = moments(x)
    entries = x.flatten().tolist()
    assert float(mean) == pytest.approx(statistics.fmean(entries), abs=1e-9)
    assert float(std) == pytest.approx(statistics.stdev(entries), abs=1e-9)


@given(shapes.flatmap(lambda shape: st.tuples(numbers(shape), arrays(np.bool_, shape).map(torch.from_numpy))))
def test_masked_moments_are_those_of_the_selected_entries(case):
    x, mask = case
    mean, std = masked_moments(x, mask)
    selected = x[mask].tolist()
    assert float(mean) == pytest.approx(statistics.fmean(selected) if selected else 0, abs=1e-9)
    assert float(std) == pytest.approx(statistics.stdev(selected) if len(selected) > 1 else 0, abs=1e-9)


@given(shapes.flatmap(numbers))
def test_masked_moments_of_everything_are_the_moments(x):
    everything = torch.ones_like(x, dtype=torch.bool)
    torch.testing.assert_close(masked_moments(x, everything), moments(x), rtol=1e-9, atol=1e-9)


def test_what_the_mask_hides_has_no_influence():
    x, mask = torch.tensor([1.0, 3.0, 1e9]), torch.tensor([True, True, False])
    assert [float(m) for m in masked_moments(x, mask)] == pytest.approx([2, 2**0.5])


def test_one_entry_has_no_deviation():
    """A minibatch of one transition has an advantage to standardise too; it must not become NaN."""
    x = torch.tensor([3.0])
    assert [float(m) for m in masked_moments(x, x > 0)] == [3, 0]
    assert [float(m) for m in moments(x)] == [3, 0]


@pytest.mark.parametrize("rows", [1, 2, 64, 5000])
def test_standardized_is_standardize_of_the_moments(rows):
    x = 30 * torch.randn(rows, generator=torch.Generator().manual_seed(0)) + 7
    kept = x.clone()
    torch.testing.assert_close(Runtime().standardized(x), standardize(x, *moments(x)), rtol=1e-5, atol=1e-6)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number_spreads_without_a_word(odd, recwarn):
    assert Runtime().standardized(torch.tensor([1.0, odd, 2.0])).isnan().any()
    assert not list(recwarn)
