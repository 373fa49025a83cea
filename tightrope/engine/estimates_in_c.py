"""Sums backward in time and orders of minibatches as C functions: with small rollouts, calls of torch take longer."""

from __future__ import annotations

from functools import cache
from itertools import product

import torch
from torch import Tensor

from ..functional.estimators import LONG, NARROW, backward_recursion
from ..rows import MOST_SORTED, sorted_places
from .update_in_c import function, is_readable


def c_recursion(x: Tensor, decay: Tensor) -> Tensor:
    """Return `backward_recursion` by the C function, which overwrites a copy of `decay`."""
    (length, width), decay, result = x.shape, decay.clone(), torch.empty_like(x)
    doubles = length >= LONG and width <= NARROW
    function("backward_recursion")(x.data_ptr(), decay.data_ptr(), result.data_ptr(), length, width, doubles)
    return result


@cache
def recursion_is_exact() -> bool:
    """Whether the C function gives the bits of torch, which depend on the processor."""
    generator = torch.Generator().manual_seed(0)
    shapes = product((LONG - 1, 5 * LONG), (1, 5, 64, NARROW + 9))
    pairs = [torch.randn(2, *shape, generator=generator) for shape in shapes]
    return all(torch.equal(c_recursion(*pair), backward_recursion(*pair)) for pair in pairs)


def recursion_in_c(x: Tensor, decay: Tensor) -> Tensor:
    """Return y_t = x_t + decay_t y_{t+1}, bit for bit as `backward_recursion` does."""
    if is_readable(x) and is_readable(decay) and recursion_is_exact():
        return c_recursion(x, decay)
    return backward_recursion(x, decay)


def order_in_c(keys: Tensor) -> Tensor:
    """Return `sorted_places(keys)`."""
    rows, n = keys.shape
    if keys.dtype is not torch.float32 or keys.stride(1) != 1 or n > MOST_SORTED:
        return sorted_places(keys)
    order, memory = torch.empty(rows, n, dtype=torch.int64), torch.empty(2 * n, dtype=torch.int64)
    unique = function("places")(keys.data_ptr(), keys.stride(0), rows, n, order.data_ptr(), memory.data_ptr())
    return order if unique else sorted_places(keys)
