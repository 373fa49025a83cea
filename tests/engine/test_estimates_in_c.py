"""The C functions for advantages, orders and statistics, beside the same functions in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tightrope.engine import across_ranks
from tightrope.engine.estimates_in_c import (
    explained_variance_in_c,
    gae_in_c,
    gae_is_exact,
    masked_mean_in_c,
    order_in_c,
    recursion_in_c,
    recursion_is_exact,
    sums_in_c,
)
from tightrope.functional import explained_variance, gae, masked_mean
from tightrope.functional.estimators import LONG, NARROW, backward_recursion
from tightrope.rows import sorted_places

pytestmark = pytest.mark.usefixtures("c_compiler")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 1), (LONG - 1, 5), (LONG, 3), (200, 1), (LONG, NARROW + 1), (77, NARROW)])
def test_sums_backward_in_time_have_the_bits_of_torch(shape: tuple[int, int]) -> None:
    x, decay = numbers(*shape), numbers(*shape, seed=1).clamp(min=0)  # a trace is cut where it is 0
    x[0, 0] = torch.inf
    before = x.clone(), decay.clone()
    assert torch.equal(recursion_in_c(x, decay), backward_recursion(x, decay))
    assert all(map(torch.equal, (x, decay), before))
    doubles = x.double(), decay.double()
    assert torch.equal(recursion_in_c(*doubles), backward_recursion(*doubles))


def test_another_rounding_than_that_of_torch_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    recursion_is_exact.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(
            "tightrope.engine.estimates_in_c.c_recursion", lambda x, decay: backward_recursion(x, decay) * (1 + 1e-7)
        )
        x, decay = numbers(50, 2), numbers(50, 2, seed=1).sigmoid()
        assert torch.equal(recursion_in_c(x, decay), backward_recursion(x, decay))
    recursion_is_exact.cache_clear()


def rollout(length: int, width: int) -> tuple[Tensor, ...]:
    """Rewards, values, values of successors, terminations and ends."""
    terminated, truncated = numbers(2, length, width, seed=5) > 1.2
    return *numbers(3, length, width), terminated & ~truncated, terminated | truncated


@pytest.mark.parametrize("shape", [(1, 1), (LONG - 1, 5), (LONG, 3), (128, 4), (LONG, NARROW + 1), (2048, 1)])
def test_advantages_have_the_bits_of_torch(shape: tuple[int, int]) -> None:
    given = rollout(*shape)
    before = [x.clone() for x in given]
    assert gae_is_exact()
    for gamma, gae_lambda in ((0.99, 0.95), (1.0, 0.0), (0.3, 1.0)):
        assert torch.equal(gae_in_c(*given, gamma, gae_lambda), gae(*given, gamma, gae_lambda))
    assert all(map(torch.equal, given, before))


def test_advantages_of_other_tensors_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = rollout(6, 4)
    views = [x.t().contiguous().t() for x in given]
    doubles = [x.double() if x.is_floating_point() else x for x in given]
    for inputs in (views, doubles):
        assert torch.equal(gae_in_c(*inputs, 0.99, 0.95), gae(*inputs, 0.99, 0.95))
    given[0][2, 1] = torch.nan
    given[2][3, 0] = torch.inf
    torch.testing.assert_close(gae_in_c(*given, 0.9, 0.8), gae(*given, 0.9, 0.8), rtol=0, atol=0, equal_nan=True)
    gae_is_exact.cache_clear()
    with monkeypatch.context() as patch:  # as if the C function rounded otherwise
        patch.setattr("tightrope.engine.estimates_in_c.c_gae", lambda *inputs: gae(*inputs) * (1 + 1e-6))
        assert torch.equal(gae_in_c(*rollout(6, 4), 0.9, 0.8), gae(*rollout(6, 4), 0.9, 0.8))
    gae_is_exact.cache_clear()


@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (4, 512), (2, 4096), (2, 5000)])
@pytest.mark.parametrize("values", [None, 7])  # None: any, seldom equal
def test_orders_are_those_of_numpy(shape: tuple[int, int], values: int | None) -> None:
    drawn = torch.rand(shape[0], shape[1] + 3, generator=torch.Generator().manual_seed(1))
    keys = (drawn if values is None else (drawn * values).floor())[:, : shape[1]]
    assert torch.equal(order_in_c(keys), sorted_places(keys))
    assert torch.equal(order_in_c(keys * 3e38), sorted_places(keys * 3e38))
    odd = torch.cat([keys, torch.tensor([[-1.0, torch.nan, torch.inf, -0.0]]).expand(shape[0], 4)], 1)
    assert torch.equal(order_in_c(odd), sorted_places(odd))
    assert torch.equal(order_in_c(keys.double()), keys.double().argsort())


def test_sums_are_those_of_torch() -> None:
    floats, flags = numbers(7, 5), numbers(9) > 0
    tensors = [floats, flags, torch.zeros(0), torch.tensor(3.0)]
    torch.testing.assert_close(sums_in_c(tensors), across_ranks.sums(tensors))
    others = [*tensors, torch.arange(5), floats.t(), floats.double()]
    assert torch.equal(sums_in_c(others), across_ranks.sums(others))
    floats[3, 2] = torch.nan
    assert sums_in_c(tensors).isnan().tolist() == [True, False, False, False]
    assert sums_in_c([torch.full((4,), 2e38)]).isinf()


@pytest.mark.parametrize("size", [1, 2, 513])
def test_the_explained_variance_is_that_of_torch(size: int) -> None:
    prediction, target = numbers(size), numbers(size, seed=1) * 0.1 + 3
    for wanted in (target, torch.full((size,), 0.1), prediction):
        torch.testing.assert_close(explained_variance_in_c(prediction, wanted), explained_variance(prediction, wanted))
    target[0] = torch.nan
    assert size == 1 or explained_variance_in_c(prediction, target).isnan()


def test_a_mean_over_a_mask_is_that_of_torch() -> None:
    x = numbers(6, 7)
    for mask in (x > 0, x > 9, x < 9, (x > 0).t().contiguous().t()):
        torch.testing.assert_close(masked_mean_in_c(x, mask), masked_mean(x, mask))
    masked = torch.where(x > 0, x, torch.nan)
    torch.testing.assert_close(masked_mean_in_c(masked, x > 0), masked_mean(x, x > 0))
