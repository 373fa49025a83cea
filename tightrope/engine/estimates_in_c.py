"""Sums backward in time, generalised advantage estimates, orders of minibatches and statistics of a phase as C functions. With
small rollouts, the calls of torch for them take longer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, wraps
from itertools import product

import torch
from torch import Tensor

from ..functional.estimators import LONG, NARROW, backward_recursion, explained_variance, gae, masked_mean
from ..rows import MOST_SORTED, sorted_places
from .across_ranks import sums
from .update_in_c import Address, Whole, function, is_readable

KINDS = {torch.float32: 0, torch.bool: 1}  # of tensors that `sums` in update.c reads


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


def c_gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, gae_lambda: float
) -> Tensor:  # fmt: skip
    """Return `gae` by the C function."""
    length, width = reward.shape
    memory, result = torch.empty(2, length, width), torch.empty(length, width)
    doubles = length >= LONG and width <= NARROW
    given = (x.data_ptr() for x in (reward, value, next_value, terminated, done))
    places = memory.data_ptr(), result.data_ptr()
    function("gae")(*given, gamma, gamma * gae_lambda, *places, length, width, doubles)
    return result


@cache
def gae_is_exact() -> bool:
    """Whether the C function gives the bits of torch."""
    generator = torch.Generator().manual_seed(0)

    def same(length: int, width: int) -> bool:
        reward, value, next_value = torch.randn(3, length, width, generator=generator)
        terminated, done = torch.rand(2, length, width, generator=generator) < 0.1
        inputs = reward, value, next_value, terminated, done
        return torch.equal(c_gae(*inputs, 0.99, 0.95), gae(*inputs, 0.99, 0.95))

    return recursion_is_exact() and all(same(*shape) for shape in product((1, LONG - 1, 5 * LONG), (1, 5, NARROW + 9)))


@wraps(gae)
def gae_in_c(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, gae_lambda: float
) -> Tensor:  # fmt: skip
    floats, ends = (reward, value, next_value), (terminated, done)
    fits = all(x.dtype is torch.bool and x.is_contiguous() for x in ends) and all(map(is_readable, floats))
    if fits and reward.dim() == 2 and len({x.shape for x in (*floats, *ends)}) == 1 and gae_is_exact():
        return c_gae(*floats, *ends, gamma, gae_lambda)
    return gae(*floats, *ends, gamma, gae_lambda)


def order_in_c(keys: Tensor) -> Tensor:
    """Return `sorted_places(keys)`."""
    rows, n = keys.shape
    if keys.dtype is not torch.float32 or keys.stride(1) != 1 or n > MOST_SORTED:
        return sorted_places(keys)
    order, memory = torch.empty(rows, n, dtype=torch.int64), torch.empty(2 * n, dtype=torch.int64)
    unique = function("places")(keys.data_ptr(), keys.stride(0), rows, n, order.data_ptr(), memory.data_ptr())
    return order if unique else sorted_places(keys)


def sums_in_c(tensors: Sequence[Tensor]) -> Tensor:
    """Return `sums` of across_ranks.py."""
    if not all(x.dtype in KINDS and x.is_contiguous() for x in tensors):
        return sums(tensors)
    result, count = torch.empty(len(tensors)), len(tensors)
    addresses = (Address * count)(*[x.data_ptr() for x in tensors])
    sizes = (Whole * count)(*[x.numel() for x in tensors])
    kinds = (Whole * count)(*[KINDS[x.dtype] for x in tensors])
    function("sums")(addresses, sizes, kinds, count, result.data_ptr())
    return result


def explained_variance_in_c(prediction: Tensor, target: Tensor) -> Tensor:
    """Return `explained_variance`."""
    if not (is_readable(prediction) and is_readable(target) and prediction.shape == target.shape):
        return explained_variance(prediction, target)
    result = torch.empty(())
    function("explained_variance")(prediction.data_ptr(), target.data_ptr(), target.numel(), result.data_ptr())
    return result


def masked_mean_in_c(x: Tensor, mask: Tensor) -> Tensor:
    """Return `masked_mean`."""
    if not (is_readable(x) and mask.is_contiguous() and mask.dtype is torch.bool and x.shape == mask.shape):
        return masked_mean(x, mask)
    result = torch.empty(())
    function("masked_mean")(x.data_ptr(), mask.data_ptr(), x.numel(), result.data_ptr())
    return result
