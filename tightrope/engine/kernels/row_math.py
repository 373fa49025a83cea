"""Functions of numbers that Triton lacks, or has with other rounding than torch, for kernels made from recordings."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

EVERYWHERE = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def row_smaller(a, b):
    return tl.minimum(a, b, EVERYWHERE)


@triton.jit
def row_larger(a, b):
    return tl.maximum(a, b, EVERYWHERE)


@triton.jit
def row_sign(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def row_isinf(a):
    return tl.abs(a) == float("inf")


@triton.jit
def row_trunc(a):
    return tl.where(a < 0, tl.ceil(a), tl.floor(a))


@triton.jit
def row_round(a):
    """The nearest whole number, the even one of two."""
    low = tl.floor(a)
    rest, odd = a - low, low - 2 * tl.floor(low / 2)
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), low + 1, low)


@triton.jit
def row_remainder(a, b):
    """As torch.remainder. For float32 the quotient is exact in float64."""
    x, y = a.to(tl.float64), b.to(tl.float64)
    return (x - tl.floor(x / y) * y).to(a.dtype)


@triton.jit
def row_floordiv(a, b):
    x, y = a.to(tl.float64), b.to(tl.float64)
    return tl.floor(x / y).to(a.dtype)


@triton.jit
def row_fmod(a, b):
    x, y = a.to(tl.float64), b.to(tl.float64)
    return (x - row_trunc(x / y) * y).to(a.dtype)


@triton.jit
def row_whole_remainder(a, b):
    rest = a % b  # has the sign of a
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def row_whole_quotient(a, b):
    return (a - row_whole_remainder(a, b)) // b


@triton.jit
def row_log2(a):
    return tl.log2(a)


@triton.jit
def row_log10(a):
    return (tl.log(a.to(tl.float64)) * 0.4342944819032518).to(a.dtype)


@triton.jit
def row_tanh(a):
    x = a.to(tl.float64)
    return (2 / (1 + tl.exp(-2 * x)) - 1).to(a.dtype)


@triton.jit
def row_expm1(a):
    return (tl.exp(a.to(tl.float64)) - 1).to(a.dtype)


@triton.jit
def row_log1p(a):
    return tl.log(1 + a.to(tl.float64)).to(a.dtype)


@triton.jit
def row_sinh(a):
    x = a.to(tl.float64)
    return ((tl.exp(x) - tl.exp(-x)) / 2).to(a.dtype)


@triton.jit
def row_cosh(a):
    x = a.to(tl.float64)
    return ((tl.exp(x) + tl.exp(-x)) / 2).to(a.dtype)


@triton.jit
def row_hypot(a, b):
    x, y = a.to(tl.float64), b.to(tl.float64)
    return tl.sqrt(x * x + y * y).to(a.dtype)


# these are CUDA's own functions, which Triton's interpreter does not have


@triton.jit
def row_pow(a, b):
    return libdevice.pow(a, b)


@triton.jit
def row_asin(a):
    return libdevice.asin(a)


@triton.jit
def row_acos(a):
    return libdevice.acos(a)


@triton.jit
def row_atan(a):
    return libdevice.atan(a)


@triton.jit
def row_atan2(a, b):
    return libdevice.atan2(a, b)
