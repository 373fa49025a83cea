"""The C functions for sums backward in time and orders, beside the same functions in torch and NumPy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tightrope.engine.estimates_in_c import order_in_c, recursion_in_c, recursion_is_exact
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
