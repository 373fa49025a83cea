"""Orders without a sort: bijections for any number of rows, uniform over keys, the same from the kernel and in PyTorch."""

import math
import os
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from tightrope.engine import Runtime
from tightrope.engine.kernels.orders import ROUNDS, keyed_order, orders_agree, permuted, seeds_of
from tightrope.types import Batch

INTERPRETER = not torch.cuda.is_available() and find_spec("triton") is not None and "triton" not in sys.modules
if INTERPRETER:
    os.environ["TRITON_INTERPRET"] = "1"

interpreted = pytest.mark.skipif(
    not (INTERPRETER or os.environ.get("TRITON_INTERPRET")), reason="Triton's interpreter is not here"
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 97, 1000, 1024, 4099)
KEYS = 20_000


def drawn(count: int, rows: int, seed: int = 1) -> Tensor:
    return permuted(seeds_of(torch.rand(count, rows, generator=torch.Generator().manual_seed(seed))), rows)


def surprise(counts: Tensor, freedom: int) -> float:
    """Chi-square against equal counts, in standard deviations from what it is on average."""
    expected = counts.sum() / counts.numel()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("rows", SIZES)
def test_every_row_comes_once(rows: int) -> None:
    assert torch.equal(drawn(5, rows).sort(1).values, torch.arange(rows).expand(5, -1))


@pytest.mark.parametrize("rows", [2, 3, 4, 5])
def test_all_orders_of_a_few_rows_are_as_frequent(rows: int) -> None:
    codes = (drawn(KEYS, rows) * rows ** torch.arange(rows)).sum(1)
    counts = torch.unique(codes, return_counts=True)[1].double()
    assert len(counts) == math.factorial(rows)
    assert surprise(counts, len(counts) - 1) < 4


@pytest.mark.parametrize("rows", [7, 10, 16])
def test_places_and_pairs_of_places_are_uniform(rows: int) -> None:
    order = drawn(KEYS, rows)
    places = torch.stack([(order == value).sum(0) for value in range(rows)]).double()
    assert surprise(places, (rows - 1) ** 2) < 4
    for a, b in ((0, 1), (0, rows - 1), (rows // 2, rows // 2 + 1)):  # neighbours too
        pairs = torch.bincount(order[:, a] * rows + order[:, b], minlength=rows * rows).view(rows, rows).double()
        assert not pairs.diagonal().any()
        others = pairs[~torch.eye(rows, dtype=torch.bool)]
        assert surprise(others, len(others) - 1) < 4


def test_a_long_order_has_no_structure() -> None:
    """Of a single key: where rows go, how far neighbours come apart, how many rise."""
    rows = 1 << 15
    for order in drawn(4, rows).double():
        place = torch.arange(rows).double()
        assert abs(float(torch.corrcoef(torch.stack([place, order]))[0, 1])) < 4 / math.sqrt(rows)
        assert abs(float(torch.corrcoef(torch.stack([order[1:], order[:-1]]))[0, 1])) < 4 / math.sqrt(rows)
        rises = float((order.diff() > 0).double().sum())
        assert abs(rises - rows / 2) < 4 * math.sqrt(rows / 12)
        assert float((order == place).sum()) < 12  # about one on average
        boxes = torch.bincount((place // 1024 * 32 + order // 1024).long(), minlength=32 * 32).double()
        assert surprise(boxes, 31 * 31) < 4


def test_orders_of_two_epochs_are_independent() -> None:
    rows = 8
    keys = torch.rand(2 * KEYS, rows, generator=torch.Generator().manual_seed(2))
    first, second = permuted(seeds_of(keys), rows).view(KEYS, 2, rows).unbind(1)
    together = torch.bincount(first[:, 0] * rows + second[:, 0], minlength=rows * rows).double()
    assert surprise(together, rows * rows - 1) < 4


def test_close_keys_give_unrelated_orders() -> None:
    rows, keys = 1000, torch.full((2, 1000), 0.5)
    keys[1, 3] += 2**-24
    assert float((drawn_from(keys, rows)[0] == drawn_from(keys, rows)[1]).float().mean()) < 0.01


def drawn_from(keys: Tensor, rows: int) -> Tensor:
    return permuted(seeds_of(keys), rows)


def test_the_cpu_sorts_so_that_saved_runs_go_on_as_they_were() -> None:
    keys, column = torch.rand(3, 50), torch.zeros(50)
    batch = Batch(column, column, column, column, column, column)
    assert torch.equal(Runtime().order(batch, keys), keys.argsort())
    assert ROUNDS >= 40  # a row stays where it was in every round with a chance of 2 ** -ROUNDS


@interpreted
@pytest.mark.parametrize("rows", [1, 2, 5, 31, 64, 257])
def test_the_kernel_gives_the_same_orders(rows: int) -> None:
    keys = torch.rand(3, rows + 5, generator=torch.Generator().manual_seed(rows))
    assert torch.equal(keyed_order(keys, rows), permuted(seeds_of(keys), rows))
    assert torch.equal(keyed_order(keys[:, :rows], rows), permuted(seeds_of(keys[:, :rows]), rows))


@pytest.mark.gpu
def test_the_kernel_works_on_a_device() -> None:
    device = torch.device("cuda")
    assert orders_agree(device)
    keys = torch.rand(4, 1 << 20, device=device)
    order = keyed_order(keys, 1 << 20)
    assert torch.equal(order.sort(1).values, torch.arange(1 << 20, device=device).expand(4, -1))
