"""Random orders and copies of rows, beside torch's own."""

from __future__ import annotations

import pytest
import torch

from tightrope import types
from tightrope.rows import rows_at, sorted_places
from tightrope.types import Batch


@pytest.mark.parametrize("shape", [(4, 512), (10, 2048), (3, 1), (2, 100)])
@pytest.mark.parametrize("values", [None, 7, 1000])  # None: any, seldom equal
def test_places_are_those_of_argsort_also_among_equal_keys(shape: tuple[int, int], values: int | None) -> None:
    random = torch.Generator().manual_seed(1)
    drawn = torch.rand(shape[0], shape[1] + 3, generator=random)
    keys = (drawn if values is None else (drawn * values).floor())[:, : shape[1]]
    assert torch.equal(sorted_places(keys), keys.argsort())
    odd = torch.cat([keys, torch.tensor([[-1.0, torch.nan, torch.inf, -0.0, 0.0]]).expand(shape[0], 5)], 1)
    assert torch.equal(sorted_places(odd), odd.argsort())


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64, torch.bool])
def test_rows_are_those_of_indexing(dtype: torch.dtype) -> None:
    index = torch.tensor([3, 0, 0, 4])
    for shape in ((5,), (5, 2), (5, 3, 4)):
        column = torch.randint(0, 2, shape).to(dtype)
        assert torch.equal(rows_at(column, index), column[index])
        assert torch.equal(rows_at(column.transpose(0, -1).contiguous().transpose(0, -1), index), column[index])


def test_rows_of_what_needs_a_gradient_have_one() -> None:
    column = torch.ones(3, 2, requires_grad=True)
    rows_at(column, torch.tensor([1, 1])).sum().backward()
    assert column.grad is not None
    assert column.grad.sum() == 4


@pytest.mark.parametrize("at_once", [0, 200, 1 << 18])  # bytes: one epoch, two epochs, all
def test_minibatches_are_the_rows_in_the_order_of_each_epoch(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(types, "COPIED_AT_ONCE", at_once)
    columns = torch.arange(7.0), torch.arange(7), *torch.arange(28.0).view(4, 7)
    batch, order = Batch(*columns), torch.rand(5, 7, generator=torch.Generator().manual_seed(1)).argsort()
    found = list(batch.minibatches(3, order))
    assert [len(minibatch) for minibatch in found] == [2, 2, 3] * 5
    for name, column in zip(Batch.__match_args__, columns, strict=True):
        assert torch.equal(torch.cat([getattr(minibatch, name) for minibatch in found]), column[order.flatten()])
