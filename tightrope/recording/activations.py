"""Activations, layer normalisation and their derivatives as simpler operations.

A compiled recording uses them: it then is one C function, without calls of torch in between. A replay by NumPy keeps torch's
own functions, which are one call each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .elementwise import aten

Weight = Tensor | None


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    share = x.sigmoid()
    return grad * (share * (1 + x * (1 - share)))


def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = (alpha * scale) * (x.clamp(max=0) * input_scale).expm1()
    return torch.where(x > 0, x * scale, below)


def elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    """`x` is the input, or the result if `is_result`."""
    if is_result:
        below = input_scale * (x + alpha * scale)
    else:
        below = (input_scale * alpha * scale) * (x.clamp(max=0) * input_scale).exp()
    return grad * torch.where(x > 0, scale, below)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return x * gelu_share(x, approximate)


def gelu_share(x: Tensor, approximate: str) -> Tensor:
    """Return gelu(x) / x: the probability that a standard normal number is less than x, or torch's approximation of it."""
    if approximate == "none":
        return 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    return 0.5 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


def gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    share = gelu_share(x, approximate)
    if approximate == "none":
        return grad * (share + x * ((x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))))
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return grad * (share + 2 * x * share * (1 - share) * slope)


def leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where(x > low, torch.where(x < high, grad, 0.0), 0.0)


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return torch.where(x * beta > threshold, x, (x * beta).clamp(max=threshold).exp().log1p() / beta)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    return torch.where(x * beta > threshold, grad, grad * (x * beta).sigmoid())


def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Weight, bias: Weight, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result, the means and the reciprocal standard deviations."""
    rows, kept = normalised_rows(x, shape), (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    size = rows.shape[1]
    mean = rows.sum(1, keepdim=True) / size
    centred = rows - mean
    scale = 1 / ((centred * centred).sum(1, keepdim=True) / size + eps).sqrt()
    result = (centred * scale).view(x.shape)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean.view(kept), scale.view(kept)


def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, weight: Weight, bias: Weight,
    wanted: Sequence[bool],
) -> tuple[Weight, Weight, Weight]:  # fmt: skip
    size, scale = math.prod(shape), scale.reshape(-1, 1)
    normal, given = (normalised_rows(x, shape) - mean.reshape(-1, 1)) * scale, normalised_rows(grad, shape)
    inner = given if weight is None else given * weight.reshape(1, -1)
    along = (inner * normal).sum(1, keepdim=True) / size
    below = scale * (inner - inner.sum(1, keepdim=True) / size - normal * along)
    return (
        below.view(x.shape) if wanted[0] else None,
        (given * normal).sum(0).view(tuple(shape)) if wanted[1] else None,
        given.sum(0).view(tuple(shape)) if wanted[2] else None,
    )


def normalised_rows(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a matrix of which each row is normalised."""
    return x.contiguous().view(-1, math.prod(shape))


ACTIVATIONS: dict[object, Callable[..., object]] = {
    aten.silu: lambda x: x * x.sigmoid(), aten.silu_backward: silu_backward, aten.elu: elu,
    aten.elu_backward: elu_backward, aten.gelu: gelu, aten.gelu_backward: gelu_backward,
    aten.celu: lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha),
    aten.leaky_relu: lambda x, slope=0.01: torch.where(x > 0, x, x * slope),
    aten.leaky_relu_backward: leaky_relu_backward,
    aten.hardtanh: lambda x, low=-1.0, high=1.0: x.clamp(low, high), aten.hardtanh_backward: hardtanh_backward,
    aten.softplus: softplus, aten.softplus_backward: softplus_backward, aten.native_layer_norm: layer_norm,
    aten.native_layer_norm_backward: layer_norm_backward,
}  # fmt: skip
