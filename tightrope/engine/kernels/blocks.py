"""Building blocks of the Triton kernels: layers and heads for a tile of rows, in on-chip memory.

Names in capitals are compile-time constants: IN inputs, WIDTH of both hidden layers, OUT outputs of the policy head, and
PAD_IN, PAD_WIDTH, PAD_OUT, the same rounded up to powers of two for tensor cores. Padding is zero in weights, activations and
gradients.
"""

import math

import triton
import triton.language as tl

from ...models.distributions import LOG_2PI
from ...models.normalizer import CLIP, EPS

HALF_LOG_2PI = tl.constexpr(LOG_2PI / 2)
MINUS_2_LOG2_E = tl.constexpr(-2 * math.log2(math.e))
OBS_CLIP = tl.constexpr(CLIP)
OBS_EPS = tl.constexpr(EPS)
EVERYWHERE = tl.constexpr(tl.PropagateNan.ALL)  # propagate NaN, as torch does


@triton.jit
def load_linear(flat, at, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr):
    """Load the layer at offset `at`: its weight, transposed to (in, out), and its bias, which follows the weight."""
    i, o = tl.arange(0, PAD_IN)[:, None], tl.arange(0, PAD_OUT)
    inside = (i < IN) & (o[None, :] < OUT)
    weight = tl.load(flat + at + o[None, :] * IN + i, mask=inside, other=0.0)
    return weight, tl.load(flat + at + IN * OUT + o, mask=o < OUT, other=0.0)


@triton.jit
def first_linear(flat, at, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr):
    """Load the first layer, with the bias as the weight of the constant input 1 that `load_observations` appends."""
    i, o = tl.arange(0, PAD_IN)[:, None], tl.arange(0, PAD_OUT)[None, :]
    return tl.load(flat + first_entry(at, i, o, IN, OUT), mask=(i <= IN) & (o < OUT), other=0.0)


@triton.jit
def first_entry(at, i, o, IN: tl.constexpr, OUT: tl.constexpr):
    """Return the offset of the weight of input i for output o. Input IN is the constant 1, whose weight is the bias."""
    return at + tl.where(i < IN, o * IN + i, IN * OUT + o)


@triton.jit
def column(flat, at, IN: tl.constexpr, PAD_IN: tl.constexpr):
    """Load a layer with a single output, which is too narrow for tensor cores."""
    i = tl.arange(0, PAD_IN)
    return tl.load(flat + at + i, mask=i < IN, other=0.0), tl.load(flat + at + IN)


@triton.jit
def write_linear(
    part, at, weight, bias, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr
):
    """Write the gradients of a layer's weight (in, out) and bias."""
    i, o = tl.arange(0, PAD_IN)[:, None], tl.arange(0, PAD_OUT)
    tl.store(part + at + o[None, :] * IN + i, weight, mask=(i < IN) & (o[None, :] < OUT))
    tl.store(part + at + IN * OUT + o, bias, mask=o < OUT)


@triton.jit
def write_first_linear(
    part, at, weight, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr
):
    """Write the gradient (out, in) of the first layer, which includes the bias."""
    i, o = tl.arange(0, PAD_IN)[None, :], tl.arange(0, PAD_OUT)[:, None]
    tl.store(part + first_entry(at, i, o, IN, OUT), weight, mask=(i <= IN) & (o < OUT))


@triton.jit
def load_observations(
    obs, mean, variance, first, rows, IN: tl.constexpr, PAD_IN: tl.constexpr, NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Load a tile of observations that starts at row `first`, normalise it if NORMALIZE, and append the constant 1."""
    r, i = tl.arange(0, BLOCK)[:, None], tl.arange(0, PAD_IN)[None, :]
    inside = (r < rows - first) & (i < IN)
    x = tl.load(obs + first.to(tl.int64) * IN + r * IN + i, mask=inside, other=0.0)
    if NORMALIZE:
        std = tl.sqrt(tl.load(variance + i, mask=i < IN, other=1.0) + OBS_EPS)
        x = clamp((x - tl.load(mean + i, mask=i < IN, other=0.0)) / std, -OBS_CLIP, OBS_CLIP)
        x = tl.where(inside, x, 0.0)
    return tl.where(i == IN, 1.0, x)


@triton.jit
def clamp(x, low, high):
    return tl.minimum(tl.maximum(x, low, EVERYWHERE), high, EVERYWHERE)


@triton.jit
def activate(x, RELU: tl.constexpr):
    if RELU:
        return tl.maximum(x, 0.0, EVERYWHERE)
    return 2 / (1 + tl.exp2(x * MINUS_2_LOG2_E)) - 1  # tanh


@triton.jit
def slope(out, RELU: tl.constexpr):
    """Return the activation's derivative, computed from its output."""
    if RELU:
        return tl.where(out > 0, 1.0, 0.0)
    return 1 - out * out


@triton.jit
def product(a, b, TRANS_A: tl.constexpr, TRANS_B: tl.constexpr, PRECISION: tl.constexpr):
    """Return the matrix product, with either factor transposed.

    For float32 accuracy each factor is split into three bfloat16, and the six largest products are added, smallest first.
    Tensor cores can transpose bfloat16, so forward and backward share one copy of a weight.
    """
    if PRECISION == "bf16x6" or PRECISION == "bf16x3":
        a0, a1, a2 = split_bf16(a, TRANS_A)
        b0, b1, b2 = split_bf16(b, TRANS_B)
        if PRECISION == "bf16x6":
            out = tl.dot(a0, b1, tl.dot(a1, b0, tl.dot(a0, b2, tl.dot(a2, b0, tl.dot(a1, b1)))))
        else:
            out = tl.dot(a0, b1, tl.dot(a1, b0))
        out = tl.dot(a0, b0, out)
    else:
        out = tl.dot(tl.trans(a) if TRANS_A else a, tl.trans(b) if TRANS_B else b, input_precision=PRECISION)
    return out


@triton.jit
def split_bf16(x, TRANS: tl.constexpr):
    """Split x into three bfloat16 whose sum is x, largest first."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    if TRANS:
        high, middle, low = tl.trans(high), tl.trans(middle), tl.trans(low)
    return high, middle, low


@triton.jit
def first_hidden(x, weight, RELU: tl.constexpr, PRECISION: tl.constexpr):
    """Compute the first hidden layer, whose bias is part of its weight."""
    return activate(product(x, weight, False, False, PRECISION), RELU)


@triton.jit
def hidden(x, weight, bias, RELU: tl.constexpr, PRECISION: tl.constexpr):
    """Compute the second hidden layer."""
    return activate(product(x, weight, False, False, PRECISION) + bias[None, :], RELU)


@triton.jit
def log_softmax(logits, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """Return log-probabilities and probabilities, both 0 in the padding."""
    exists = tl.arange(0, PAD_OUT)[None, :] < OUT
    shifted = logits - tl.max(tl.where(exists, logits, float("-inf")), 1)[:, None]
    weight = tl.where(exists, tl.exp(shifted), 0.0)
    total = tl.sum(weight, 1)[:, None]
    return tl.where(exists, shifted - tl.log(total), 0.0), weight / total


@triton.jit
def one_hot_action(action, first, rows, BLOCK: tl.constexpr, PAD_OUT: tl.constexpr):
    """Return the action of each row as one-hot booleans."""
    r = tl.arange(0, BLOCK)
    taken = tl.load(action + first + r, mask=r < rows - first, other=0)
    return tl.arange(0, PAD_OUT)[None, :] == taken[:, None]


@triton.jit
def log_deviations(flat, LOG_STD: tl.constexpr, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """Load the log standard deviations of the Gaussian."""
    o = tl.arange(0, PAD_OUT)
    return tl.load(flat + LOG_STD + o, mask=o < OUT, other=0.0)


@triton.jit
def deviations(mean, action, log_std, first, rows, BLOCK: tl.constexpr, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """Return (action - mean) / std for each action."""
    r, o = tl.arange(0, BLOCK)[:, None], tl.arange(0, PAD_OUT)[None, :]
    inside = (r < rows - first) & (o < OUT)
    taken = tl.load(action + first.to(tl.int64) * OUT + r * OUT + o, mask=inside, other=0.0)
    return tl.where(inside, (taken - mean) * tl.exp(-log_std)[None, :], 0.0)


@triton.jit
def gaussian_log_prob(z, log_std, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    exists = tl.arange(0, PAD_OUT)[None, :] < OUT
    return tl.sum(tl.where(exists, -0.5 * z * z - HALF_LOG_2PI - log_std[None, :], 0.0), 1)
