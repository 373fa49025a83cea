"""The C functions of learning, beside the same functions in NumPy and torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tightrope.engine.across_ranks import standardized_on_host
from tightrope.engine.optimize import Optimizer, clipped_adam_on_host
from tightrope.engine.update_in_c import clipped_adam_in_c, standardized_in_c

pytestmark = pytest.mark.usefixtures("c_compiler")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("x", [numbers(1), numbers(2), numbers(67) * 0.1 + 1, numbers(4, 33).T, numbers(9).double()])
def test_advantages_are_standardised_as_in_numpy(x: Tensor) -> None:
    before = x.clone()
    torch.testing.assert_close(standardized_in_c(x), standardized_on_host(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("limit", [None, 0.0, 0.5, 1e6])
@pytest.mark.parametrize("width", [3, 700])  # below and above the length of the partial sums
def test_steps_are_those_of_numpy_and_torch(limit: float | None, width: int) -> None:
    optimizers = [Optimizer(nn.Linear(width, 3)) for _ in range(2)]
    for i in range(5):
        norms = []
        for o, step in zip(optimizers, (clipped_adam_in_c, clipped_adam_on_host), strict=True):
            o.flat.copy_(numbers(len(o.flat), seed=99)) if i == 0 else None
            o.learning_rate.fill_(0.01 / (i + 1))
            o.grad.copy_(numbers(len(o.flat), seed=i) * 10.0 ** (i - 3))
            norms.append(step(o, limit, torch.zeros(()) if i else None))
        torch.testing.assert_close(*norms)
        mine, theirs = ([o.flat, o.grad, o.first_moment, o.second_moment, o.step_count] for o in optimizers)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_stopped_step_changes_nothing_and_numbers_that_are_not_finite_spread() -> None:
    o = Optimizer(nn.Linear(3, 2))
    o.learning_rate.fill_(0.1)
    o.grad.fill_(2.0)
    before = {name: x.clone() for name, x in vars(o).items() if isinstance(x, Tensor)}
    torch.testing.assert_close(clipped_adam_in_c(o, 0.5, torch.ones(())), torch.tensor(2.0 * 8**0.5))
    assert all(torch.equal(getattr(o, name), x) for name, x in before.items())
    o.grad[1] = torch.nan
    assert clipped_adam_in_c(o, 0.5, torch.zeros(())).isnan()
    assert o.flat.isnan().sum() == 1
