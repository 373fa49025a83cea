"""Triton kernels for one layer of a multilayer perceptron: product, bias and activation in one pass over memory.

Names in capitals are compile-time constants. Rows, inputs and outputs may be any number; tiles are padded with zeros.
"""

import triton
import triton.language as tl

from .blocks import MINUS_2_LOG2_E, split_bf16

LOG2_E = tl.constexpr(1.4426950408889634)
INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """Return total + a @ b.T, as `product` in blocks.py multiplies, but added on the tensor cores."""
    if PRECISION == "bf16x6":
        a0, a1, a2 = split_bf16(a, False)
        b0, b1, b2 = split_bf16(b, True)
        total = tl.dot(a0, b2, tl.dot(a2, b0, tl.dot(a1, b1, total)))
        total = tl.dot(a0, b0, tl.dot(a0, b1, tl.dot(a1, b0, total)))
    else:
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION)
    return total


@triton.jit
def logistic(x):
    return 1 / (1 + tl.exp2(-x * LOG2_E))


@triton.jit
def activate_with_slope(x, ACTIVATION: tl.constexpr):
    """Return the activation of x and its derivative."""
    if ACTIVATION == "tanh":
        y = 2 / (1 + tl.exp2(x * MINUS_2_LOG2_E)) - 1
        slope = 1 - y * y
    elif ACTIVATION == "relu":
        y = tl.where(x <= 0, 0.0, x)  # NaN stays NaN
        slope = tl.where(x > 0, 1.0, 0.0)
    elif ACTIVATION == "elu":
        grown = tl.exp2(tl.minimum(x, 0.0) * LOG2_E)
        small = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x / 120))))  # exp(x) - 1 without cancellation
        y = tl.where(x > 0, x, tl.where(x > -0.1, small, grown - 1))
        slope = tl.where(x > 0, 1.0, grown)
    elif ACTIVATION == "silu":
        share = logistic(x)
        y = x * share
        slope = share * (1 + x * (1 - share))
    else:  # gelu
        share = 0.5 * (1 + tl.erf(x * INVERSE_SQRT_2))
        y = x * share
        slope = share + x * INVERSE_SQRT_2_PI * tl.exp2(-0.5 * x * x * LOG2_E)
    return y, slope


@triton.jit
def slope_of(y, ACTIVATION: tl.constexpr):
    """Return the derivative of an activation from its output (tanh, relu, elu), or y itself, which then is the derivative."""
    if ACTIVATION == "tanh":
        slope = 1 - y * y
    elif ACTIVATION == "relu":
        slope = tl.where(y > 0, 1.0, 0.0)
    elif ACTIVATION == "elu":
        slope = tl.where(y > 0, 1.0, y + 1)
    else:
        slope = y
    return slope


@triton.jit(do_not_specialize=["rows"])
def layer_kernel(
    x, weight, bias, out, slopes, rows,
    IN: tl.constexpr, OUT: tl.constexpr, ACTIVATION: tl.constexpr, STORE_SLOPES: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out = activation(x @ weight.T + bias), and its derivative if STORE_SLOPES. x (rows, IN), weight (OUT, IN)."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c, k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, IN, DEPTH):
        i = start + k
        some = tl.load(x + r * IN + i[None, :], mask=(r < rows) & (i[None, :] < IN), other=0.0)
        w = tl.load(weight + c[:, None] * IN + i[None, :], mask=(c[:, None] < OUT) & (i[None, :] < IN), other=0.0)
        total = add_product(total, some, w, PRECISION)
    y, slope = activate_with_slope(total + tl.load(bias + c, mask=c < OUT, other=0.0)[None, :], ACTIVATION)
    inside = (r < rows) & (c[None, :] < OUT)
    tl.store(out + r * OUT + c[None, :], y, mask=inside)
    if STORE_SLOPES:
        tl.store(slopes + r * OUT + c[None, :], slope, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def layer_backward_kernel(
    grad, weight, y, out, sums, rows,
    IN: tl.constexpr, OUT: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out = (grad @ weight) * slope(y), the gradient before the activation of the layer below; its sums over each tile of rows,
    for the bias. grad (rows, IN), weight transposed (OUT, IN), y and out (rows, OUT)."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c, k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, IN, DEPTH):
        i = start + k
        some = tl.load(grad + r * IN + i[None, :], mask=(r < rows) & (i[None, :] < IN), other=0.0)
        w = tl.load(weight + c[:, None] * IN + i[None, :], mask=(c[:, None] < OUT) & (i[None, :] < IN), other=0.0)
        total = add_product(total, some, w, PRECISION)
    inside = (r < rows) & (c[None, :] < OUT)
    below = total * slope_of(tl.load(y + r * OUT + c[None, :], mask=inside, other=0.0), ACTIVATION)
    tl.store(out + r * OUT + c[None, :], below, mask=inside)
    tl.store(sums + tl.program_id(0) * OUT + c, tl.sum(below, 0), mask=c < OUT)


@triton.jit(do_not_specialize=["rows"])
def slope_kernel(
    grad, y, out, sums, rows,
    OUT: tl.constexpr, ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out = grad * slope(y), and its sums over each tile of rows."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (r < rows) & (c[None, :] < OUT)
    g = tl.load(grad + r * OUT + c[None, :], mask=inside, other=0.0)
    below = g * slope_of(tl.load(y + r * OUT + c[None, :], mask=inside, other=0.0), ACTIVATION)
    tl.store(out + r * OUT + c[None, :], below, mask=inside)
    tl.store(sums + tl.program_id(0) * OUT + c, tl.sum(below, 0), mask=c < OUT)
