"""Operations of recordings that another language runs, which cannot leave any to torch: NumPy calls for more of them, and how
the others are made of simpler ones. Recordings that Python replays leave all these to torch, whose bits they keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

from .activations import ACTIVATIONS
from .call import Call, Function, Unrecordable, array, call_of
from .elementwise import Builder, Context, Entries, Operand, aten, common_type, elementwise

Own = TypeVar("Own", bound=Function)
Dims = int | list[int] | tuple[int, ...] | None
Indices = Sequence[Tensor | None]
PORTABLE = Entries()
SIMPLER: dict[object, Function] = {**ACTIVATIONS}  # operations as functions of simpler ones
SAME_TYPE = {  # results have the type in which they are computed
    aten.floor: np.floor, aten.ceil: np.ceil, aten.round: np.rint, aten.trunc: np.trunc, aten.tan: np.tan,
    aten.asin: np.arcsin, aten.acos: np.arccos, aten.atan: np.arctan, aten.sinh: np.sinh, aten.cosh: np.cosh,
    aten.log2: np.log2, aten.log10: np.log10, aten.atan2: np.arctan2, aten.hypot: np.hypot, aten.fmod: np.fmod,
    aten.remainder: np.remainder, aten.pow: np.power, aten.floor_divide: np.floor_divide,
}  # fmt: skip
REDUCED = {
    aten.amax: np.maximum, aten.amin: np.minimum, aten.max: np.maximum, aten.min: np.minimum, aten.prod: np.multiply,
    aten.any: np.logical_or, aten.all: np.logical_and,
}  # fmt: skip
VALUE_AT = {aten.full: 1, aten.full_like: 1, aten.new_full: 2, aten.scalar_tensor: 0}  # where the value stands


def same_type(function: Function) -> Builder:
    def build(context: Context, out: Tensor, *args: Operand) -> list[Call]:
        return elementwise(context, function, args, out, out.dtype)

    return build


def reduction(function: np.ufunc) -> Builder:
    def build(
        context: Context, out: Tensor, a: Tensor, dims: Dims = None, keepdim: bool = False,
        dtype: object = None,
    ) -> list[Call] | None:  # fmt: skip
        given = [dims] if isinstance(dims, int) else dims or range(a.dim())
        axes = tuple(d % max(a.dim(), 1) for d in given) if a.dim() else ()
        target = array(out)
        return [Call(function.reduce, (array(a), axes, target.dtype, target, keepdim), (3,))]

    return build


def filling(place: int) -> Builder:
    def build(context: Context, out: Tensor, *args: object, **kwargs: object) -> list[Call]:
        value = kwargs.get("fill_value", args[place] if len(args) > place else 0)
        return [call_of(np.copyto, array(out), context.number(value), "unsafe", written=0)]

    return build


PORTABLE |= {packet: same_type(function) for packet, function in SAME_TYPE.items()}
PORTABLE |= {packet: reduction(function) for packet, function in REDUCED.items()}
PORTABLE |= {packet: filling(place) for packet, place in VALUE_AT.items()}


@PORTABLE.add(aten.isnan)
def is_nan(context: Context, out: Tensor, a: Tensor) -> list[Call]:
    return elementwise(context, np.isnan, (a,), out, common_type((a,)))


@PORTABLE.add(aten.isinf)
def is_infinite(context: Context, out: Tensor, a: Tensor) -> list[Call]:
    return elementwise(context, np.isinf, (a,), out, common_type((a,)))


@PORTABLE.add(aten.erf)
def error_function(context: Context, out: Tensor, a: Tensor) -> list[Call]:
    return [call_of(torch.erf, a.detach(), out.detach())]


def position_by(function: Function) -> Builder:
    def build(context: Context, out: Tensor, a: Tensor, dim: int | None = None, keepdim: bool = False) -> list[Call]:
        given, axis = (array(a).reshape(-1), 0) if dim is None else (array(a), dim % a.dim())
        shape = given.shape[:axis] + given.shape[axis + 1 :]
        return [call_of(function, given, axis, array(out).reshape(shape))]

    return build


PORTABLE |= {aten.argmax: position_by(np.argmax), aten.argmin: position_by(np.argmin)}


@PORTABLE.add(aten.take)
def take_flat(context: Context, out: Tensor, a: Tensor, at: Tensor) -> list[Call]:
    return [Call(np.take, (array(a).reshape(-1), array(at), None, array(out), "clip"), (3,))]


@PORTABLE.add(aten.put)
def put_flat(context: Context, out: Tensor, a: Tensor, at: Tensor, values: Tensor, add: bool = False) -> list[Call]:
    copied = call_of(np.copyto, array(out), array(a), written=0)
    return [copied, call_of(np.put, array(out).reshape(-1), array(at), array(values), "clip", written=0)]


def simplified(operation: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> object:
    """Do an operation as simpler ones; one that writes to a tensor returns what it would write."""
    packet = operation.overloadpacket
    if operation._schema.is_mutable:
        functional = getattr(aten, packet.__name__.removesuffix("_"), None)
        if functional is not None:
            return functional(*args, **kwargs)
    elif packet in SIMPLER:
        return SIMPLER[packet](*args, **kwargs)
    else:
        from torch._decomp import decomposition_table

        found = decomposition_table.get(operation, operation.decompose)(*args, **kwargs)
        if found is not NotImplemented:
            return found
    raise Unrecordable(f"{operation} is not an operation that recordings know")


def simpler(*packets: object) -> Callable[[Own], Own]:
    def decorate(function: Own) -> Own:
        SIMPLER.update(dict.fromkeys(packets, function))
        return function

    return decorate


# arithmetic and moments ---------------------------------------------------------------------------------------------------

SIMPLER |= {
    aten.add: lambda a, b, alpha=1: a + alpha * b,
    aten.sub: lambda a, b, alpha=1: a - alpha * b,
    aten.rsub: lambda a, b, alpha=1: b - alpha * a,
    aten.rsqrt: lambda a: 1 / a.sqrt(),
    aten.addmm: lambda bias, a, b, beta=1, alpha=1: beta * bias + alpha * (a @ b),
    aten.max: lambda a, dim, keepdim=False: (a.amax(dim, keepdim), a.argmax(dim, keepdim)),
    aten.min: lambda a, dim, keepdim=False: (a.amin(dim, keepdim), a.argmin(dim, keepdim)),
    aten.flip: lambda a, dims: flipped(a, dims),
    aten.embedding: lambda weight, i, *others, **options: weight[i],
}


@simpler(aten.div)
def rounded_quotient(a: Tensor, b: Tensor | float, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode == "floor":
        return torch.floor_divide(a, b)
    return (a / b).trunc().to(torch.result_type(a, b))  # of any mode but None, for which there are calls


@simpler(aten.mean)
def mean_along(a: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    total = a.sum(dim, keepdim=keepdim, dtype=dtype) if dim is not None else a.sum(dtype=dtype)
    return total / (a.numel() / max(total.numel(), 1))


@simpler(aten.var)
def moment(a: Tensor, dim: Dims = None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = tuple(range(a.dim())) if dim is None or dim == [] else dim
    squares = (a - a.mean(dims, keepdim=True)).square().sum(dims, keepdim=keepdim)
    freedom = a.numel() / max(squares.numel(), 1) - (1 if correction is None else correction)
    return squares / max(freedom, 0)


@simpler(aten.var_mean)
def moment_and_mean(
    a: Tensor, dim: Dims = None, correction: float | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = tuple(range(a.dim())) if dim is None or dim == [] else dim
    return moment(a, dims, correction, keepdim), a.mean(dims, keepdim=keepdim)


@simpler(aten.constant_pad_nd)
def pad_with(x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    if min(widths, default=0) < 0:
        raise Unrecordable("padding by less than 0 is not known")
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)][::-1]
    pairs = [(0, 0)] * (x.dim() - len(pairs)) + pairs
    wide = torch.full([n + sum(pair) for n, pair in zip(x.shape, pairs, strict=True)], value, dtype=x.dtype)
    wide[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, pairs, strict=True))] = x
    return wide


@simpler(aten.convolution)
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, _: object, groups: int,
) -> Tensor:  # fmt: skip
    """As a product with the patches of the image."""
    if transposed or groups != 1 or {*dilation} != {1}:
        raise Unrecordable("a convolution that is transposed, grouped or dilated is not known")
    x = torch.nn.functional.pad(x, [p for each in reversed(padding) for p in (each, each)])
    axes = weight.dim() - 2
    for d in range(axes):
        x = x.unfold(2 + d, weight.shape[2 + d], stride[d])
    places, inner = x.shape[2 : 2 + axes], math.prod(weight.shape[1:])
    order = [0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes)]
    rows = x.permute(order).reshape(-1, inner) @ weight.reshape(-1, inner).T
    rows = rows if bias is None else rows + bias
    return rows.view(x.shape[0], *places, -1).movedim(-1, 1)


# indexing: a place in the memory of a contiguous tensor, computed from all indices ------------------------------------------


def places_of(x: Tensor, indices: Indices) -> Tensor:
    """Return where the entries of x[indices] are."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for _, i in given):
        raise Unrecordable("it selects by a mask, whose size may change: use torch.where")
    count, dims = math.prod(x.shape), [d for d, _ in given]
    first = [None if i is None else torch.zeros_like(i) for i in indices]
    start: Tensor = aten.index(torch.arange(count).view(x.shape), first)
    joined = dims == list(range(dims[0], dims[0] + len(dims)))
    after = x.dim() - dims[-1] - 1 if joined else x.dim() - len(dims)
    total = torch.zeros((), dtype=torch.int64)
    for d, i in given:
        inside = torch.where(i < 0, i + x.shape[d], i).long()
        total = total + inside * math.prod(x.shape[d + 1 :])
    return start + total.view(*total.shape, *[1] * after)


@simpler(aten.index, aten._unsafe_index)
def indexed(x: Tensor, indices: Indices) -> Tensor:
    return torch.take(x.contiguous(), places_of(x, indices))


@simpler(aten.index_put, aten._unsafe_index_put, aten._index_put_impl)
def index_put(x: Tensor, indices: Indices, values: Tensor, add: bool = False, *_: object) -> Tensor:
    if add:
        raise Unrecordable("adding to entries that are given by indices is not known")
    first = indices[0]
    if len(indices) == 1 and first is not None and first.dtype == torch.bool and values.dim() == 0:
        return torch.where(first.view(*first.shape, *[1] * (x.dim() - first.dim())), values, x)
    at = places_of(x, indices)
    return x.contiguous().put(at, values.expand(at.shape).contiguous())


@simpler(aten.index_select)
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.movedim(dim, 0)[index].movedim(0, dim)


def flipped(x: Tensor, dims: Sequence[int]) -> Tensor:
    for d in dims:
        x = index_select(x, d, torch.arange(x.shape[d] - 1, -1, -1))
    return x


def along(dim: int, index: Tensor) -> list[Tensor]:
    """Return indices for every dimension: `index` along one, its own place along the others."""
    sizes, dim = index.shape, dim % index.dim()
    grids = [torch.arange(n).view([n if k == d else 1 for k in range(len(sizes))]) for d, n in enumerate(sizes)]
    return [index if d == dim else grid for d, grid in enumerate(grids)]


@simpler(aten.gather)
def gather_along(x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return x[tuple(along(dim, index))]


@simpler(aten.scatter)
def scatter_along(x: Tensor, dim: int, index: Tensor, values: Tensor | float, reduce: str | None = None) -> Tensor:
    if reduce is not None:
        raise Unrecordable("adding to entries that are given by indices is not known")
    wide = (
        values[tuple(map(slice, index.shape))] if isinstance(values, Tensor) else torch.full((), values, dtype=x.dtype)
    )
    return x.index_put(tuple(along(dim, index)), wide)
