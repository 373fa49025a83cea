"""NumPy calls for matrix products, sums, softmax and indexing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, array, call_of, empty, tensor
from .elementwise import FEW, Context, Entries, aten, by_columns, elementwise

MANY = 1 << 16  # entries, from which torch computes the sum
SMALL = 64**3  # multiplications, up to which OpenBLAS uses one thread
SHORTEST, MAX_BLOCKS = 32, 8  # rows of a block, blocks: within these limits a product in blocks is faster than torch's
REDUCTIONS = Entries()


def product_calls(context: Context, left: Tensor, right: Tensor, result: Tensor) -> list[Call]:
    """Return calls that write left @ right into `result`, in one call or in blocks."""
    a, b, out = array(left), array(right), array(result)
    (rows, inner), width = a.shape, b.shape[1]
    before: list[Call] = []
    if not b.flags.c_contiguous and (context.is_steady(right) or rows >= SHORTEST) and inner > 1 and width > 1:
        b = contiguous(context, right, before)  # the faster product makes up for the copy
    work = rows * inner * width
    if work <= SMALL or (context.compiled and torch.get_num_threads() == 1):
        return [*before, call_of(np.dot, a, b, out)]
    count = -(-work // SMALL)
    if count <= MAX_BLOCKS and cuts(rows, count) and a.flags.c_contiguous:
        cut = (count, rows // count, -1)
        return [*before, call_of(np.matmul, a.reshape(cut), b, out.reshape(cut))]
    if count <= MAX_BLOCKS and cuts(inner, count) and a.T.flags.c_contiguous and b.flags.c_contiguous:
        cut, parts = (count, inner // count, -1), empty((count, rows, width), out.dtype)
        blocks = a.T.reshape(cut).transpose(0, 2, 1), b.reshape(cut)
        added = call_of(np.add, *parts, out) if count == 2 else Call(np.add.reduce, (parts, 0, None, out), (3,))
        return [*before, call_of(np.matmul, *blocks, parts), added]
    return [*before, call_of(torch.mm, *map(tensor, (a, b, out)))]


def contiguous(context: Context, x: Tensor, calls: list[Call]) -> Array:
    """Return a contiguous copy of a matrix, which is made once for all products that read the same numbers, such as those with
    the weights of a memory at each step of a sequence."""
    key = "contiguous", context.identity(x)
    if key not in context.shared:
        context.shared[key] = empty(tuple(x.shape), array(x).dtype)
        calls.append(call_of(np.copyto, context.shared[key], array(x), written=0))
    return context.shared[key]


def product_and_sum(a: Array, b: Array, added: Array, out: Array) -> None:
    np.add(added, np.dot(a, b), out)


def cuts(length: int, count: int) -> bool:
    return length % count == 0 and length // count >= SHORTEST


@REDUCTIONS.add(aten.mm)
def mm(context: Context, out: Tensor, a: Tensor, b: Tensor) -> list[Call]:
    return product_calls(context, a, b, out)


@REDUCTIONS.add(aten.addmm)
def addmm(
    context: Context, out: Tensor, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> list[Call] | None:
    if beta != 1 or alpha != 1:
        return None
    return mm(context, out, a, b) + (elementwise(context, np.add, (out, bias), out, out.dtype))


@REDUCTIONS.add(aten.bmm)
def bmm(context: Context, out: Tensor, a: Tensor, b: Tensor) -> list[Call]:
    return [call_of(np.matmul, array(a), array(b), array(out))]


def axis_sum_call(a: Array, axis: int, weight: float, out: Array) -> Call:
    """Return a call for the weighted sum over one axis of a matrix: a product, or torch's sum if it is large."""
    if a.size > MANY and weight == 1:
        return call_of(torch.sum, tensor(a), axis, tensor(out))
    weights = np.full(a.shape[axis], weight, a.dtype)
    return call_of(np.dot, *((weights, a) if axis == 0 else (a, weights)), out)


@REDUCTIONS.add(aten.sum)
def sum_calls(
    context: Context,
    out: Tensor,
    a: Tensor,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: object = None,
) -> list[Call]:
    axes = tuple(range(a.dim())) if not dims else tuple(d % a.dim() for d in dims)
    given, target = array(a), array(out)
    if a.dtype == out.dtype and a.is_floating_point() and out.is_contiguous():
        if len(axes) == a.dim() and a.is_contiguous():
            return [axis_sum_call(given.reshape(1, -1), 1, 1.0, target.reshape(1))]
        if a.dim() == 2 and len(axes) == 1:
            return [axis_sum_call(given, axes[0], 1.0, target.reshape(-1))]
        if axes == (a.dim() - 1,) and a.is_contiguous():
            return [axis_sum_call(given.reshape(-1, a.shape[-1]), 1, 1.0, target.reshape(-1))]
    return [Call(np.add.reduce, (given, axes, target.dtype, target, keepdim), (3,))]


@REDUCTIONS.add(aten.mean)
def mean(context: Context, out: Tensor, a: Tensor, *others: object, **kwargs: object) -> list[Call] | None:
    if others or kwargs or not a.is_contiguous() or a.dtype != out.dtype:
        return None
    return [axis_sum_call(array(a).reshape(1, -1), 1, 1 / max(a.numel(), 1), array(out).reshape(1))]


@REDUCTIONS.add(aten.cumsum)
def cumsum(context: Context, out: Tensor, a: Tensor, dim: int, dtype: object = None) -> list[Call]:
    return [Call(np.add.accumulate, (array(a), dim, array(out).dtype, array(out)), (3,))]


# softmax and indexing ---------------------------------------------------------------------------------------------------------


def as_rows(x: Tensor, dim: int) -> Array:
    """Return x as a matrix whose rows run along its last dimension. Raises TypeError if `dim` is another dimension."""
    if dim % x.dim() != x.dim() - 1 or not x.is_contiguous():
        raise TypeError(dim)
    return array(x).reshape(-1, x.shape[-1])


def row_maximum(a: Array, out: Array) -> list[Call]:
    """Return calls that write the maximum of each row, (B, K) to (B, 1)."""
    if not 1 < a.shape[1] <= FEW:
        return [Call(np.maximum.reduce, (a, 1, None, out, True), (3,))]
    column = out[:, 0]
    first = call_of(np.maximum, a[:, 0], a[:, 1], column)
    return [first, *(call_of(np.maximum, column, a[:, k], column) for k in range(2, a.shape[1]))]


@REDUCTIONS.add(aten._softmax)
def softmax(context: Context, out: Tensor, logits: Tensor, dim: int, half: bool) -> list[Call]:
    a, target = as_rows(logits, dim), as_rows(out, dim)
    top = empty((len(a), 1), a.dtype)
    return [
        *row_maximum(a, top),
        *by_columns(np.subtract, (a, top), target),
        call_of(np.exp, target, target),
        axis_sum_call(target, 1, 1.0, top.reshape(-1)),
        *by_columns(np.true_divide, (target, top), target),
    ]


@REDUCTIONS.add(aten._log_softmax)
def log_softmax_calls(context: Context, out: Tensor, logits: Tensor, dim: int, half: bool) -> list[Call]:
    a, target = as_rows(logits, dim), as_rows(out, dim)
    top, powers = empty((len(a), 1), a.dtype), empty(a.shape, a.dtype)
    return [
        *row_maximum(a, top),
        *by_columns(np.subtract, (a, top), target),
        call_of(np.exp, target, powers),
        axis_sum_call(powers, 1, 1.0, top.reshape(-1)),
        call_of(np.log, top, top),
        *by_columns(np.subtract, (target, top), target),
    ]


@REDUCTIONS.add(aten._softmax_backward_data)
def softmax_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor, dim: int, dtype: object) -> list[Call]:
    g, p, target = as_rows(grad, dim), as_rows(y, dim), as_rows(out, dim)
    both, sums = empty(g.shape, g.dtype), empty((len(g), 1), g.dtype)
    return [
        call_of(np.multiply, g, p, both),
        axis_sum_call(both, 1, 1.0, sums.reshape(-1)),
        *by_columns(np.multiply, (p, sums), target),
        call_of(np.subtract, both, target, target),
    ]


@REDUCTIONS.add(aten._log_softmax_backward_data)
def log_softmax_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor, dim: int, dtype: object) -> list[Call]:
    g, logs, target = as_rows(grad, dim), as_rows(y, dim), as_rows(out, dim)
    sums, probs = empty((len(g), 1), g.dtype), empty(g.shape, g.dtype)
    return [
        call_of(np.exp, logs, probs),
        axis_sum_call(g, 1, 1.0, sums.reshape(-1)),
        *by_columns(np.multiply, (probs, sums), probs),
        call_of(np.subtract, g, probs, target),
    ]


def flat_index(context: Context, index: Tensor, width: int, calls: list[Call]) -> Array:
    """Return the positions in a flattened (B, width) matrix of the entries that an index (B, 1) selects."""
    key = "index", index.data_ptr(), tuple(index.shape), index.stride(), width
    if key not in context.shared:
        given = array(index).reshape(-1)
        context.shared[key] = empty(given.shape, np.int64)
        calls.append(call_of(np.add, np.arange(len(given)) * width, given, context.shared[key]))
    return context.shared[key]


@REDUCTIONS.add(aten.gather)
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


@REDUCTIONS.add(aten.scatter_add)
def scatter_add(context: Context, out: Tensor, a: Tensor, dim: int, index: Tensor, source: Tensor) -> list[Call]:
    rows, added = as_rows(out, dim), as_rows(source, dim)
    if added.shape != (len(rows), 1) or index.shape != source.shape or not (context.is_constant(a) and not a.any()):
        raise TypeError(index)
    calls: list[Call] = []
    at = flat_index(context, index, rows.shape[1], calls)
    return [*calls, call_of(put, np.zeros((), rows.dtype), at, added.reshape(-1), rows.reshape(-1))]
