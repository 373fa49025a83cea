"""Kernels that sum the partial gradients, clip and take the Adam step, and standardise advantages."""

import triton
import triton.language as tl

from .blocks import EVERYWHERE, clamp


@triton.jit(do_not_specialize=["count"])
def sum_kernel(
    parts, grad, terms, squares, count,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, TERMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the rows of `parts` into the gradient and the terms, and write each block's part of the squared gradient norm."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, ROWS)[:, None]
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, count, ROWS):
        inside = (r < count - first) & (column[None, :] < SIZE + TERMS)
        total += tl.load(parts + (first + r) * STRIDE + column[None, :], mask=inside, other=0.0)
    whole = tl.sum(total, 0)
    is_gradient = column < SIZE
    tl.store(grad + column, whole, mask=is_gradient)
    tl.store(terms + (column - SIZE), whole, mask=(column >= SIZE) & (column < SIZE + TERMS))
    tl.store(squares + tl.program_id(0), tl.sum(tl.where(is_gradient, whole * whole, 0.0), 0))


@triton.jit(do_not_specialize=["count"])
def adam_kernel(
    flat, grad, first_moment, second_moment, step, learning_rate, stopped, squares, norm, arrivals, max_grad_norm, count,
    SIZE: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
    EPS: tl.constexpr, CLIPS: tl.constexpr, STOPS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Clip by the global norm, then take one Adam step.

    Every program computes the norm itself from `squares`, the parts of the squared norm. The last program to finish increases
    the step count, after all others have read it.
    """
    total = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, count, CHUNK):
        at = start + tl.arange(0, CHUNK)
        total += tl.load(squares + at, mask=at < count, other=0.0)
    length = tl.sqrt(tl.sum(total, 0))
    scale = tl.minimum(max_grad_norm / (length + 1e-6), 1.0, EVERYWHERE) if CLIPS else 1.0

    moving = tl.where(tl.load(stopped) == 1, 0, SIZE) if STOPS else SIZE  # number of entries to update
    steps = tl.load(step) + 1
    rate = tl.load(learning_rate) / (1 - tl.exp(steps.to(tl.float64) * LOG_BETA1)).to(tl.float32)
    correction = tl.sqrt((1 - tl.exp(steps.to(tl.float64) * LOG_BETA2)).to(tl.float32))

    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = at < moving
    g = tl.load(grad + at, mask=mine, other=0.0) * scale
    m, v = tl.load(first_moment + at, mask=mine, other=0.0), tl.load(second_moment + at, mask=mine, other=0.0)
    m += (1 - BETA1) * (g - m)
    v += (1 - BETA2) * (g * g - v)
    p = tl.load(flat + at, mask=mine, other=0.0) - rate * m / (tl.sqrt(v) / correction + EPS)
    tl.store(first_moment + at, m, mask=mine)
    tl.store(second_moment + at, v, mask=mine)
    tl.store(flat + at, p, mask=mine)

    tl.debug_barrier()  # all threads of this program have read the step
    if tl.atomic_add(arrivals, 1) == tl.num_programs(0) - 1:
        tl.store(step, tl.where(moving > 0, steps, steps - 1))
        tl.store(norm, length)
        tl.store(arrivals, 0)


@triton.jit(do_not_specialize=["rows"])
def moments_kernel(x, means, squares, rows, BLOCK: tl.constexpr):
    """Write mean and sum of squared deviations of each block of numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    some = tl.load(x + at, mask=inside, other=0.0)
    mean = tl.sum(some, 0) / tl.minimum(BLOCK, rows - tl.program_id(0) * BLOCK)
    off = tl.where(inside, some - mean, 0.0)
    tl.store(means + tl.program_id(0), mean)
    tl.store(squares + tl.program_id(0), tl.sum(off * off, 0))


@triton.jit(do_not_specialize=["rows"])
def standardize_kernel(x, means, squares, out, rows, eps, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Combine the moments of all blocks (Chan et al. 1983) in every program, then standardise the program's block."""
    b = tl.arange(0, BLOCKS)
    sizes = clamp((rows - b * BLOCK).to(tl.float32), 0.0, BLOCK)
    block_mean = tl.load(means + b, mask=sizes > 0, other=0.0)
    mean = tl.sum(sizes * block_mean, 0) / rows
    off = block_mean - mean
    square = tl.load(squares + b, mask=sizes > 0, other=0.0) + sizes * off * off
    std = tl.sqrt(tl.sum(square, 0) / tl.maximum(rows - 1, 1))
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    some = tl.load(x + at, mask=at < rows, other=0.0)
    tl.store(out + at, (some - mean) / (std + eps), mask=at < rows)
