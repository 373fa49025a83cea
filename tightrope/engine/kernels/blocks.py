"""What the kernels are built from: layers, trunks and heads of a tile of rows, on chip. Triton's dialect of Python.

Sizes in capitals are compile-time constants: IN inputs, WIDTH of both hidden layers, OUT outputs of the policy head, and the
same with PAD_ in front, rounded up to powers of two that tensor cores accept. What is padded is zero, in weights and in
activations alike, and stays zero on the way back.
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
EVERYWHERE = tl.constexpr(tl.PropagateNan.ALL)  # a number that is none must be seen, as torch shows it


@triton.jit
def linear(flat, at, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr):
    """The layer that starts at `at`: its weight transposed (in, out) and its bias, which lies right behind."""
    i, o = tl.arange(0, PAD_IN)[:, None], tl.arange(0, PAD_OUT)
    inside = (i < IN) & (o[None, :] < OUT)
    weight = tl.load(flat + at + o[None, :] * IN + i, mask=inside, other=0.0)
    return weight, tl.load(flat + at + IN * OUT + o, mask=o < OUT, other=0.0)


@triton.jit
def column(flat, at, IN: tl.constexpr, PAD_IN: tl.constexpr):
    """A layer with a single output, too narrow for tensor cores to be worth it."""
    i = tl.arange(0, PAD_IN)
    return tl.load(flat + at + i, mask=i < IN, other=0.0), tl.load(flat + at + IN)


@triton.jit
def write_linear(
    out, at, weight, bias, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr
):
    """The same way back, of a gradient (in, out)."""
    i, o = tl.arange(0, PAD_IN)[:, None], tl.arange(0, PAD_OUT)
    tl.store(out + at + o[None, :] * IN + i, weight, mask=(i < IN) & (o[None, :] < OUT))
    tl.store(out + at + IN * OUT + o, bias, mask=o < OUT)


@triton.jit
def observations(
    obs, mean, variance, first, rows, IN: tl.constexpr, PAD_IN: tl.constexpr, NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of observations from row `first` on, normalised where the policy does so."""
    r, i = tl.arange(0, BLOCK)[:, None], tl.arange(0, PAD_IN)[None, :]
    inside = (r < rows - first) & (i < IN)
    x = tl.load(obs + first.to(tl.int64) * IN + r * IN + i, mask=inside, other=0.0)
    if NORMALIZE:
        std = tl.sqrt(tl.load(variance + i, mask=i < IN, other=1.0) + OBS_EPS)
        x = clamp((x - tl.load(mean + i, mask=i < IN, other=0.0)) / std, -OBS_CLIP, OBS_CLIP)
        x = tl.where(inside, x, 0.0)
    return x


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
    """The activation's derivative, from what it gave."""
    if RELU:
        return tl.where(out > 0, 1.0, 0.0)
    return 1 - out * out


@triton.jit
def hidden(x, weight, bias, RELU: tl.constexpr, PRECISION: tl.constexpr):
    """A hidden layer."""
    return activate(tl.dot(x, weight, input_precision=PRECISION) + bias[None, :], RELU)


@triton.jit
def log_softmax(logits, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """Log-probabilities and probabilities; both 0 where there is no such action."""
    exists = tl.arange(0, PAD_OUT)[None, :] < OUT
    shifted = logits - tl.max(tl.where(exists, logits, float("-inf")), 1)[:, None]
    weight = tl.where(exists, tl.exp(shifted), 0.0)
    total = tl.sum(weight, 1)[:, None]
    return tl.where(exists, shifted - tl.log(total), 0.0), weight / total


@triton.jit
def chosen(action, first, rows, BLOCK: tl.constexpr, PAD_OUT: tl.constexpr):
    """The action taken in each row, as one-hot booleans."""
    r = tl.arange(0, BLOCK)
    taken = tl.load(action + first + r, mask=r < rows - first, other=0)
    return tl.arange(0, PAD_OUT)[None, :] == taken[:, None]


@triton.jit
def log_deviations(flat, LOG_STD: tl.constexpr, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """The Gaussian's log standard deviations."""
    o = tl.arange(0, PAD_OUT)
    return tl.load(flat + LOG_STD + o, mask=o < OUT, other=0.0)


@triton.jit
def deviations(mean, action, log_std, first, rows, BLOCK: tl.constexpr, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    """How far each action lies from its mean, in standard deviations."""
    r, o = tl.arange(0, BLOCK)[:, None], tl.arange(0, PAD_OUT)[None, :]
    inside = (r < rows - first) & (o < OUT)
    taken = tl.load(action + first.to(tl.int64) * OUT + r * OUT + o, mask=inside, other=0.0)
    return tl.where(inside, (taken - mean) * tl.exp(-log_std)[None, :], 0.0)


@triton.jit
def gaussian_log_prob(z, log_std, OUT: tl.constexpr, PAD_OUT: tl.constexpr):
    exists = tl.arange(0, PAD_OUT)[None, :] < OUT
    return tl.sum(tl.where(exists, -0.5 * z * z - HALF_LOG_2PI - log_std[None, :], 0.0), 1)
