"""Running moments: exact under any split into batches, clipped, and blind to rows that do not count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightrope.models.normalizer import ObservationNormalizer, RewardScaler, RunningMoments


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000))
def test_merging_batches_of_any_size_equals_the_two_pass_definition(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    everything = 3 + 2 * torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    moments = RunningMoments((3,)).double()
    for batch in everything.split(sizes):
        moments.merge(batch)
    assert torch.allclose(moments.mean, everything.mean(0), atol=1e-10)
    assert torch.allclose(moments.variance, everything.var(0, correction=0), atol=1e-10)
    assert moments.count == len(everything)


def test_rows_outside_the_mask_do_not_count():
    x, mask = torch.randn(50, 2), torch.arange(50) % 3 == 0
    x[~mask] = float("nan")
    masked, plain = RunningMoments((2,)), RunningMoments((2,))
    masked.merge(x, mask)
    plain.merge(x[mask])
    assert torch.allclose(masked.mean, plain.mean)
    assert torch.allclose(masked.variance, plain.variance)
    assert masked.count == plain.count == int(mask.sum())


def test_an_empty_batch_changes_nothing():
    moments = RunningMoments((2,))
    moments.merge(torch.randn(4, 2), torch.zeros(4, dtype=torch.bool))
    assert (moments.mean.tolist(), moments.variance.tolist(), moments.count.item()) == ([0, 0], [1, 1], 0)


def test_observations_are_standardised_and_clipped_to_10():
    normalizer = ObservationNormalizer(torch.tensor([True]))
    normalizer.merge(torch.tensor([[1.0], [3.0]]))
    out = normalizer(torch.tensor([[2.0], [3.0], [1000.0], [-1000.0]]))
    assert out.flatten().tolist() == pytest.approx([0, 1, 10, -10])


def test_rewards_are_scaled_but_not_centred_and_clipped_to_10():
    scaler = RewardScaler()
    scaler.merge(torch.tensor([0.0, 4.0]))
    assert scaler(torch.tensor([2.0, 0.0, 1000.0, -1000.0])).tolist() == pytest.approx([1, 0, 10, -10])


def test_statistics_are_saved_with_the_model():
    first, second = RunningMoments((2,)), RunningMoments((2,))
    first.merge(torch.randn(10, 2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.variance, second.variance)
    assert first.count == second.count
