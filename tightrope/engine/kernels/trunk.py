"""A multilayer perceptron as fused layers: the same function of the same parameters, for autograd and for acting.

Each layer is one kernel forward and one backward (see layers.py). Gradients of weights are products by cuBLAS. The kernels take
layers of any width; loss, heads and everything else stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...models import MLP
from ..precision import KernelPrecision, arithmetic, uses_tf32
from .layout import SPLITS, has_tensor_cores, linears, multiprocessors
from .layout import activation as activation_name

ROWS_OF_CHECK, TOLERANCE = 100, 1e-3  # of the comparison with plain layers, relative to the norm
FROM_OUTPUT = ("tanh", "relu", "elu")  # the derivative follows from the output; others store it


class Tiles(NamedTuple):
    rows: int
    columns: int
    depth: int
    warps: int


def tiles_for(rows: int, width: int, depth: int, device: torch.device) -> Tiles:
    """Choose the tiles from the sizes alone, so that sums always have the same order. Few rows get small tiles, so that all
    multiprocessors have work."""
    columns = min(128, power_of_two(width))
    across, most = -(-width // columns), multiprocessors(device)
    height = next((size for size in (64, 32) if -(-rows // size) * across >= most), 16)
    return Tiles(height, columns, min(32, power_of_two(depth)), 4)


def power_of_two(size: int) -> int:
    """Return the next power of two, at least 16, the smallest size that tensor cores accept."""
    return max(16, 1 << (size - 1).bit_length())


class Activations(NamedTuple):
    """The input and the outputs of layers, and for each layer what its derivative is computed from (see FROM_OUTPUT)."""

    outputs: list[Tensor]
    slopes: list[Tensor]


def layers_forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], activation: str, precision: str, slopes: bool
) -> Activations:
    """Compute activation(x @ weight.T + bias) layer by layer, with what `layers_backward` needs if `slopes`."""
    from .layers import layer_kernel

    found, rows, stores = Activations([x], []), x.shape[0], slopes and activation not in FROM_OUTPUT
    for weight, bias in zip(weights, biases, strict=True):
        width, depth = weight.shape
        tiles, out = tiles_for(rows, width, depth, x.device), x.new_empty(rows, width)
        slope = torch.empty_like(out) if stores else out
        layer_kernel[-(-rows // tiles.rows), -(-width // tiles.columns)](
            found.outputs[-1], weight, bias, out, slope, rows, IN=depth, OUT=width, ACTIVATION=activation,
            STORE_SLOPES=stores, PRECISION=precision, ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth,
            num_warps=tiles.warps,
        )  # fmt: skip
        found.outputs.append(out)
        found.slopes.append(slope)
    return found


def layers_backward(
    found: Activations, grad: Tensor, head: Tensor, weights: Sequence[Tensor], activation: str, precision: str,
    weight_grads: Sequence[Tensor], bias_grads: Sequence[Tensor],
) -> Tensor:  # fmt: skip
    """Write the gradients of all layers, given that of head(outputs), where `head` is the weight of a linear layer. Return the
    gradient before the first activation."""
    from .layers import layer_backward_kernel

    rows, above = len(grad), [head, *reversed(weights[1:])]
    for i, weight in zip(range(len(weights) - 1, -1, -1), above, strict=True):
        depth, width = weight.shape
        tiles, below = tiles_for(rows, width, depth, grad.device), torch.empty_like(found.outputs[i + 1])
        sums = below.new_empty(-(-rows // tiles.rows), width)
        layer_backward_kernel[len(sums), -(-width // tiles.columns)](
            grad, weight.t().contiguous(), found.slopes[i], below, sums, rows,
            IN=depth, OUT=width, ACTIVATION=activation, PRECISION=precision,
            ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, num_warps=tiles.warps,
        )  # fmt: skip
        torch.mm(below.t(), found.outputs[i], out=weight_grads[i])
        torch.sum(sums, 0, out=bias_grads[i])
        grad = below
    return grad


class FusedLayers(torch.autograd.Function):
    """The layers for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, precision: str, count: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        found = layers_forward(x.contiguous(), weights, biases, activation, precision, any(ctx.needs_input_grad))
        ctx.save_for_backward(*weights, *found.outputs, *found.slopes)
        ctx.activation, ctx.precision, ctx.count = activation, precision, count
        return found.outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from .layers import slope_kernel

        count, saved, rows = ctx.count, list(ctx.saved_tensors), len(grad)
        weights, found = saved[:count], Activations(saved[count : 2 * count + 1], saved[2 * count + 1 :])
        width = weights[-1].shape[0]
        tiles, below = tiles_for(rows, width, width, grad.device), torch.empty_like(found.outputs[-1])
        sums = grad.new_empty(-(-rows // tiles.rows), width)
        slope_kernel[len(sums), -(-width // tiles.columns)](
            grad.contiguous(), found.slopes[-1], below, sums, rows,
            OUT=width, ACTIVATION=ctx.activation, ROWS=tiles.rows, COLUMNS=tiles.columns, num_warps=tiles.warps,
        )  # fmt: skip
        last = below.t() @ found.outputs[-2], sums.sum(0)
        weight_grads = [torch.empty_like(weight) for weight in weights[:-1]]
        bias_grads = [weight.new_empty(len(weight)) for weight in weights[:-1]]
        if count > 1:
            inner = Activations(found.outputs[:-1], found.slopes[:-1])
            below = layers_backward(
                inner, below, weights[-1], weights[:-1], ctx.activation, ctx.precision, weight_grads, bias_grads
            )
        first = below @ weights[0] if ctx.needs_input_grad[0] else None
        return first, None, None, None, *weight_grads, last[0], *bias_grads, last[1]


def products_in(precision: KernelPrecision, device: torch.device) -> str:
    """Return how layers multiply, as layers.py takes it. Triton's interpreter multiplies only in float32."""
    return "ieee" if device.type != "cuda" else "tf32" if precision == "tf32" else SPLITS["fp32"]


def fused_layers(layers: Sequence[nn.Linear], activation: nn.Module, x: Tensor) -> Tensor:
    """Return the output of linear layers that are each followed by the activation, in the precision that torch is set to."""
    parameters = [*(layer.weight for layer in layers), *(layer.bias for layer in layers)]
    how = products_in("tf32" if uses_tf32() else "fp32", x.device)
    result: Tensor = FusedLayers.apply(x, activation_name(activation), how, len(layers), *parameters)  # type: ignore[no-untyped-call]
    return result


def fuse_trunks(policy: nn.Module, compiles: bool) -> bool:
    """Let every multilayer perceptron of a policy on a CUDA device compute its layers in kernels. Return False if they fail or
    give other numbers than plain layers. torch.compile leaves kernels alone: it would assume aligned addresses."""
    if not has_tensor_cores(next(policy.parameters()).device):
        return True
    found = [module for module in policy.modules() if type(module) is MLP and is_known(module)]
    try:
        if not all(map(matches_plain_layers, found)):
            return False
    except Exception:  # such as an error of Triton's compiler on a device that it does not support
        return False
    for module in found:
        module.fused = torch.compiler.disable(fused_layers) if compiles else fused_layers  # type: ignore[no-untyped-call]
    return True


def is_known(trunk: MLP) -> bool:
    """Whether the kernels compute the layers of this trunk."""
    named = {activation_name(part) for part in list(trunk)[2::2]}
    plain = all(layer.bias is not None and layer.weight.dtype == torch.float32 for layer in linears(trunk))
    return len(named) == 1 and None not in named and plain


def matches_plain_layers(trunk: MLP) -> bool:
    """Whether fused layers give the output and the gradient of the trunk, for random inputs and in float32."""
    layers, act = linears(trunk), trunk[2]
    parameters = [p for layer in layers for p in (layer.weight, layer.bias) if p.requires_grad]
    device, generator = layers[0].weight.device, torch.Generator().manual_seed(0)
    x = torch.randn(ROWS_OF_CHECK, layers[0].in_features, generator=generator).to(device)

    def results(output: Tensor) -> list[Tensor]:
        return [output, *torch.autograd.grad(output.square().sum(), parameters)] if parameters else [output]

    with torch.enable_grad(), arithmetic("fp32", device):
        plain = x
        for layer in layers:
            plain = act(layer(plain))
        pairs = zip(results(fused_layers(layers, act, x)), results(plain), strict=True)
        return all(bool((a - b).norm() <= TOLERANCE * b.norm() + 1e-6) for a, b in pairs)


@contextmanager
def plain_trunks(policy: nn.Module) -> Iterator[None]:
    """Inside, the policy computes its layers in plain PyTorch."""
    fused = [(module, module.fused) for module in policy.modules() if type(module) is MLP]
    for module, _ in fused:
        module.fused = None
    try:
        yield
    finally:
        for module, function in fused:
            module.fused = function
