"""The table of operations: how NumPy does what torch's operations do, into memory that is there already.

Each entry takes the operation's arguments and its first result, and answers with the calls that write this result again; or
None, where there is nothing better than torch's own call. In an exact recording only those are used that give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, array, call, empty
from .products import product

aten = torch.ops.aten
Builder = Callable[..., "list[Call] | None"]
ARITHMETIC = {  # results have the type in which they are computed
    aten.mul: np.multiply, aten.div: np.true_divide, aten.minimum: np.minimum, aten.maximum: np.maximum,
    aten.bitwise_or: np.bitwise_or, aten.bitwise_and: np.bitwise_and, aten.bitwise_xor: np.bitwise_xor,
    aten.neg: np.negative, aten.abs: np.absolute, aten.bitwise_not: np.bitwise_not, aten.sqrt: np.sqrt,
}  # fmt: skip
COMPARISONS = {
    aten.gt: np.greater, aten.ge: np.greater_equal, aten.lt: np.less, aten.le: np.less_equal, aten.eq: np.equal,
    aten.ne: np.not_equal, aten.logical_and: np.logical_and, aten.logical_or: np.logical_or, aten.logical_not: np.logical_not,
}  # fmt: skip
ROUNDED = {  # otherwise than torch does
    aten.exp: np.exp, aten.expm1: np.expm1, aten.log: np.log, aten.log1p: np.log1p, aten.tanh: np.tanh, aten.sin: np.sin,
    aten.cos: np.cos, aten.reciprocal: np.reciprocal, aten.sign: np.sign, aten.sgn: np.sign,
}  # fmt: skip
TORCH_EXACT = {aten.exp: torch.exp, aten.tanh: torch.tanh, aten.sin: torch.sin, aten.cos: torch.cos}
FEW = 8  # columns, up to which a reduction goes column by column
TALL = 128  # rows for each column, from which on broadcasting does so too
MANY = 1 << 16  # numbers, from which on torch adds them up
TILED = 8192  # numbers, up to which a broadcast operand that seldom changes is kept at full size


@dataclass
class Context:
    """What is known while an operation is translated."""

    exact: bool  # only what gives the same bits
    is_steady: Callable[[Tensor], bool]  # whether a tensor stays as it is over many replays
    is_constant: Callable[[Tensor], bool]  # whether it is the same in every replay
    shared: dict[Any, Array] = field(default_factory=dict)  # helpers that several operations read


def calls_for(
    context: Context, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Tensor
) -> list[Call] | None:
    """NumPy's calls for one operation, written into `out`; None where there are none."""
    packet = operation.overloadpacket
    try:
        if packet in ARITHMETIC and not kwargs:
            return elementwise(context, ARITHMETIC[packet], args, out, out.dtype)
        if packet in COMPARISONS and not kwargs:
            return elementwise(context, COMPARISONS[packet], args, out, common_type(args))
        if context.exact and packet in TORCH_EXACT and not kwargs:
            return [call(TORCH_EXACT[packet], args[0].detach(), out.detach())]
        if context.exact and packet not in EXACT:
            return None
        if packet in ROUNDED and not kwargs:
            return elementwise(context, ROUNDED[packet], args, out, out.dtype) if out.is_floating_point() else None
        builder = BUILDERS.get(packet)
        return None if builder is None else builder(context, out, *args, **kwargs)
    except TypeError:  # arguments or types of numbers that are not known here
        return None


# element by element ----------------------------------------------------------------------------------------------------


def common_type(args: Sequence[Any]) -> torch.dtype:
    if len(args) == 1:
        return args[0].dtype  # type: ignore[no-any-return]
    return torch.result_type(*args)


def elementwise(
    context: Context, function: Any, args: Sequence[Any], out: Tensor, dtype: torch.dtype
) -> list[Call] | None:
    """One of NumPy's functions over operands that are first brought to one type, as torch does."""
    target = array(out)
    calls: list[Call] = []
    operands = []
    for x in args:
        if isinstance(x, Tensor):
            operands.append(typed(context, x, dtype, target.shape, calls))
        elif isinstance(x, (bool, int, float)):
            operands.append(np.array(x, numpy_type(dtype)))
        else:
            raise TypeError(x)
    return [*calls, *by_columns(function, operands, target)]


def typed(context: Context, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...], calls: list[Call]) -> Array:
    """A tensor's array in another type, and at full size where it is broadcast but seldom changes."""
    given = array(x)
    wide = 0 < x.dim() and given.shape != shape and context.is_steady(x) and int(np.prod(shape)) <= TILED
    if x.dtype == dtype and not wide:
        return given
    made = empty(shape if wide else given.shape, numpy_type(dtype))
    calls.append(call(np.copyto, made, given, "unsafe", written=0))
    return made


def numpy_type(dtype: torch.dtype) -> Any:
    return array(torch.empty(0, dtype=dtype)).dtype


def by_columns(function: Any, operands: Sequence[Array], target: Array) -> list[Call]:
    """One call; or one for each of few long columns, where an operand is broadcast and NumPy would go row by row."""
    broadcast = any(x.ndim and x.shape != target.shape for x in operands)
    if not broadcast or target.ndim != 2 or target.shape[1] > FEW or target.shape[0] < TALL * target.shape[1]:
        return [call(function, *operands, target)]
    calls = []
    for k in range(target.shape[1]):
        columns = [x if x.ndim == 0 else np.broadcast_to(x, target.shape)[:, k] for x in operands]
        calls.append(call(function, *columns, target[:, k]))
    return calls


# one entry each --------------------------------------------------------------------------------------------------------

BUILDERS: dict[Any, Builder] = {}


def entry(*packets: Any) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(packets, builder))
        return builder

    return add


@entry(aten.add)
def add(context: Context, out: Tensor, a: Any, b: Any, alpha: float = 1) -> list[Call] | None:
    return elementwise(context, np.add, (a, b), out, out.dtype) if alpha == 1 else None


@entry(aten.sub)
def sub(context: Context, out: Tensor, a: Any, b: Any, alpha: float = 1) -> list[Call] | None:
    return elementwise(context, np.subtract, (a, b), out, out.dtype) if alpha == 1 else None


@entry(aten.rsub)
def rsub(context: Context, out: Tensor, a: Any, b: Any, alpha: float = 1) -> list[Call] | None:
    return elementwise(context, np.subtract, (b, a), out, out.dtype) if alpha == 1 else None


@entry(aten.pow)
def power(context: Context, out: Tensor, a: Any, exponent: Any) -> list[Call] | None:
    if exponent == 2:
        return elementwise(context, np.multiply, (a, a), out, out.dtype)
    return [call(np.copyto, array(out), array(a), written=0)] if exponent == 1 else None


@entry(aten.addcmul)
def addcmul(context: Context, out: Tensor, a: Tensor, b: Tensor, c: Tensor, value: float = 1) -> list[Call] | None:
    if value != 1 or not a.dtype == b.dtype == c.dtype == out.dtype:
        return None
    between = torch.empty(torch.broadcast_shapes(b.shape, c.shape), dtype=out.dtype)
    first = elementwise(context, np.multiply, (b, c), between, out.dtype) or []
    return [*first, *(elementwise(context, np.add, (a, between), out, out.dtype) or [])]


@entry(aten.clamp)
def clamp(context: Context, out: Tensor, a: Tensor, low: Any = None, high: Any = None) -> list[Call]:
    calls = [] if low is None else elementwise(context, np.maximum, (a, low), out, out.dtype) or []
    below = a if low is None else out
    return calls + ([] if high is None else elementwise(context, np.minimum, (below, high), out, out.dtype) or [])


@entry(aten.relu)
def relu(context: Context, out: Tensor, a: Tensor) -> list[Call] | None:
    return elementwise(context, np.maximum, (a, 0), out, out.dtype)


@entry(aten.threshold_backward)
def threshold_backward(context: Context, out: Tensor, grad: Tensor, a: Tensor, threshold: float) -> list[Call]:
    passed = empty(tuple(a.shape))
    return [
        call(np.greater, array(a), np.array(threshold, array(a).dtype), passed),
        call(np.multiply, array(grad), passed, array(out)),
    ]


@entry(aten.tanh_backward)
def tanh_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor) -> list[Call]:
    slope, one = empty(tuple(y.shape), array(y).dtype), np.array(1, array(y).dtype)
    return [
        call(np.multiply, array(y), array(y), slope),
        call(np.subtract, one, slope, slope),
        call(np.multiply, array(grad), slope, array(out)),
    ]


@entry(aten.sigmoid)
def sigmoid(context: Context, out: Tensor, a: Tensor) -> list[Call]:
    target, one = array(out), np.array(1, array(out).dtype)
    return [
        call(np.negative, array(a), target),
        call(np.exp, target, target),
        call(np.add, target, one, target),
        call(np.true_divide, one, target, target),
    ]


@entry(aten.where)
def where(context: Context, out: Tensor, choice: Tensor, a: Any, b: Any) -> list[Call]:
    calls: list[Call] = []
    target = array(out)
    chosen, other = (
        typed(context, x, out.dtype, target.shape, calls) if isinstance(x, Tensor) else np.array(x, target.dtype)
        for x in (a, b)
    )
    copied = call(np.copyto, target, other, written=0)
    return [*calls, copied, call(np.copyto, target, chosen, "same_kind", array(choice), written=0)]


@entry(aten.masked_fill)
def masked_fill(context: Context, out: Tensor, a: Tensor, mask: Tensor, value: Any) -> list[Call]:
    return where(context, out, mask, value, a)


@entry(aten.clone, aten._to_copy, aten.copy)
def copied(context: Context, out: Tensor, a: Tensor, *others: Any, **kwargs: Any) -> list[Call]:
    given = others[0] if others and isinstance(others[0], Tensor) else a  # copy(old, new)
    return [call(np.copyto, array(out), array(given), "unsafe", written=0)]


@entry(aten.stack)
def stack(context: Context, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> list[Call]:
    places = out.unbind(dim)
    return [call(np.copyto, array(a), array(b), "unsafe", written=0) for a, b in zip(places, parts, strict=True)]


@entry(aten.cat)
def cat(context: Context, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> list[Call]:
    places = out.split([part.shape[dim] for part in parts], dim)
    return [call(np.copyto, array(a), array(b), "unsafe", written=0) for a, b in zip(places, parts, strict=True)]


@entry(aten.select_backward, aten.slice_backward)
def part_backward(context: Context, out: Tensor, grad: Tensor, sizes: Any, dim: int, *where: int) -> list[Call]:
    part = out.select(dim, *where) if len(where) == 1 else out[(slice(None),) * (dim % out.dim()) + (slice(*where),)]
    zero = np.zeros((), array(out).dtype)
    return [call(np.copyto, array(out), zero, written=0), call(np.copyto, array(part), array(grad), written=0)]


# products and sums -----------------------------------------------------------------------------------------------------


@entry(aten.mm)
def mm(context: Context, out: Tensor, a: Tensor, b: Tensor) -> list[Call]:
    return product(array(a), array(b), array(out), context.is_steady(b))


@entry(aten.addmm)
def addmm(
    context: Context, out: Tensor, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> list[Call] | None:
    if beta != 1 or alpha != 1:
        return None
    return mm(context, out, a, b) + (elementwise(context, np.add, (out, bias), out, out.dtype) or [])


@entry(aten.bmm)
def bmm(context: Context, out: Tensor, a: Tensor, b: Tensor) -> list[Call]:
    return [call(np.matmul, array(a), array(b), array(out))]


def summed(a: Array, axis: int, weight: float, out: Array) -> Call:
    """A weighted sum over one axis of a matrix: as a product, which is quicker, up to where NumPy would use several threads."""
    if a.size > MANY and weight == 1:
        return call(torch.sum, torch.from_numpy(a), axis, torch.from_numpy(out))
    weights = np.full(a.shape[axis], weight, a.dtype)
    return call(np.dot, *((weights, a) if axis == 0 else (a, weights)), out)


@entry(aten.sum)
def total(
    context: Context, out: Tensor, a: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> list[Call] | None:
    axes = tuple(range(a.dim())) if not dims else tuple(d % a.dim() for d in dims)
    given, target = array(a), array(out)
    if a.dtype == out.dtype and a.is_floating_point() and out.is_contiguous():
        if len(axes) == a.dim() and a.is_contiguous():
            return [summed(given.reshape(1, -1), 1, 1.0, target.reshape(1))]
        if a.dim() == 2 and len(axes) == 1:
            return [summed(given, axes[0], 1.0, target.reshape(-1))]
        if axes == (a.dim() - 1,) and a.is_contiguous():
            return [summed(given.reshape(-1, a.shape[-1]), 1, 1.0, target.reshape(-1))]
    return [Call(np.add.reduce, (given, axes, target.dtype, target, keepdim), (3,))]


@entry(aten.mean)
def mean(context: Context, out: Tensor, a: Tensor, *others: Any, **kwargs: Any) -> list[Call] | None:
    if others or kwargs or not a.is_contiguous() or a.dtype != out.dtype:
        return None
    return [summed(array(a).reshape(1, -1), 1, 1 / max(a.numel(), 1), array(out).reshape(1))]


@entry(aten.cumsum)
def cumsum(context: Context, out: Tensor, a: Tensor, dim: int, dtype: Any = None) -> list[Call]:
    return [Call(np.add.accumulate, (array(a), dim, array(out).dtype, array(out)), (3,))]


# categories ------------------------------------------------------------------------------------------------------------


def as_rows(x: Tensor, dim: int) -> Array:
    """Of the last dimension of any number; TypeError for another."""
    if dim % x.dim() != x.dim() - 1 or not x.is_contiguous():
        raise TypeError(dim)
    return array(x).reshape(-1, x.shape[-1])


def largest(a: Array, out: Array) -> list[Call]:
    """Of each row, (B, K) to (B, 1)."""
    if not 1 < a.shape[1] <= FEW:
        return [Call(np.maximum.reduce, (a, 1, None, out, True), (3,))]
    column = out[:, 0]
    first = call(np.maximum, a[:, 0], a[:, 1], column)
    return [first, *(call(np.maximum, column, a[:, k], column) for k in range(2, a.shape[1]))]


@entry(aten._softmax)
def softmax(context: Context, out: Tensor, logits: Tensor, dim: int, half: bool) -> list[Call]:
    a, target = as_rows(logits, dim), as_rows(out, dim)
    top = empty((len(a), 1), a.dtype)
    return [
        *largest(a, top),
        *by_columns(np.subtract, (a, top), target),
        call(np.exp, target, target),
        summed(target, 1, 1.0, top.reshape(-1)),
        *by_columns(np.true_divide, (target, top), target),
    ]


@entry(aten._log_softmax)
def log_softmax(context: Context, out: Tensor, logits: Tensor, dim: int, half: bool) -> list[Call]:
    a, target = as_rows(logits, dim), as_rows(out, dim)
    top, powers = empty((len(a), 1), a.dtype), empty(a.shape, a.dtype)
    return [
        *largest(a, top),
        *by_columns(np.subtract, (a, top), target),
        call(np.exp, target, powers),
        summed(powers, 1, 1.0, top.reshape(-1)),
        call(np.log, top, top),
        *by_columns(np.subtract, (target, top), target),
    ]


@entry(aten._softmax_backward_data)
def softmax_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor, dim: int, dtype: Any) -> list[Call]:
    g, p, target = as_rows(grad, dim), as_rows(y, dim), as_rows(out, dim)
    both, sums = empty(g.shape, g.dtype), empty((len(g), 1), g.dtype)
    return [
        call(np.multiply, g, p, both),
        summed(both, 1, 1.0, sums.reshape(-1)),
        *by_columns(np.multiply, (p, sums), target),
        call(np.subtract, both, target, target),
    ]


@entry(aten._log_softmax_backward_data)
def log_softmax_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor, dim: int, dtype: Any) -> list[Call]:
    g, logs, target = as_rows(grad, dim), as_rows(y, dim), as_rows(out, dim)
    sums, probs = empty((len(g), 1), g.dtype), empty(g.shape, g.dtype)
    return [
        call(np.exp, logs, probs),
        summed(g, 1, 1.0, sums.reshape(-1)),
        *by_columns(np.multiply, (probs, sums), probs),
        call(np.subtract, g, probs, target),
    ]


def flat_index(context: Context, index: Tensor, width: int, calls: list[Call]) -> Array:
    """Where in a flat (B, width) the entries lie that an index (B, 1) names."""
    key = "index", index.data_ptr(), tuple(index.shape), index.stride(), width
    if key not in context.shared:
        given = array(index).reshape(-1)
        context.shared[key] = empty(given.shape, np.int64)
        calls.append(call(np.add, np.arange(len(given)) * width, given, context.shared[key]))
    return context.shared[key]


@entry(aten.gather)
def gather(context: Context, out: Tensor, a: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> list[Call]:
    rows, target = as_rows(a, dim), as_rows(out, dim)
    if target.shape[1] != 1:
        raise TypeError(index)
    calls: list[Call] = []
    at = flat_index(context, index, rows.shape[1], calls)
    return [*calls, Call(np.take, (rows.reshape(-1), at, None, target.reshape(-1), "clip"), (3,))]


def put(zero: Array, at: Array, values: Array, out: Array) -> None:
    out[...] = zero
    out[at] = values


@entry(aten.scatter_add)
def scatter_add(context: Context, out: Tensor, a: Tensor, dim: int, index: Tensor, source: Tensor) -> list[Call]:
    rows, added = as_rows(out, dim), as_rows(source, dim)
    if added.shape != (len(rows), 1) or index.shape != source.shape or not (context.is_constant(a) and not a.any()):
        raise TypeError(index)
    calls: list[Call] = []
    at = flat_index(context, index, rows.shape[1], calls)
    return [*calls, call(put, np.zeros((), rows.dtype), at, added.reshape(-1), rows.reshape(-1))]


EXACT = {
    aten.add, aten.sub, aten.rsub, aten.pow, aten.clamp, aten.relu, aten.where, aten.masked_fill, aten.clone, aten._to_copy,
    aten.copy, aten.stack, aten.cat, aten.select_backward, aten.slice_backward,
}  # fmt: skip
