"""Kernels for sums and other reductions, products of matrices, and tensors that are put together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .elementwise import Emit, operands
from .program import Untranslatable, View
from .recorder import Args, Kwargs, ProgramRecorder


def dims_of(given: Any, rank: int) -> list[int]:
    if given is None or given == []:
        return list(range(rank))
    return sorted(d % rank if rank else 0 for d in ([given] if isinstance(given, int) else given))[: rank or 0]


def reduce_dims(recorder: ProgramRecorder, kernel: str, out: View, x: View, dims: Sequence[int]) -> View:
    order = [d for d in range(len(x.shape)) if d not in dims] + list(dims)
    return recorder.add(kernel, out, x.permuted(order))


def reduction(kernel: str) -> Emit:
    def emit(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
        if len(args) > 1 and isinstance(args[1], Tensor):  # max and min of two tensors
            recorder.map(kernel.removeprefix("a"), out, *operands(recorder, args[:2]))
            return
        x = recorder.view(args[0])
        dims = dims_of(kwargs.get("dim", args[1] if len(args) > 1 else None), len(x.shape))
        reduce_dims(recorder, kernel, out, x, dims)
        if len(kwargs["results"]) > 1:  # max and min along a dimension also return the places
            reduce_dims(recorder, f"arg{kernel[1:]}", recorder.declare(kwargs["results"][1]), x, dims)

    return emit


def emit_mean(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x = recorder.view(args[0])
    dims = dims_of(kwargs.get("dim", args[1] if len(args) > 1 else None), len(x.shape))
    total = recorder.temporary(out.shape, torch.float64)
    reduce_dims(recorder, "sum", total, x, dims)
    recorder.map("div", out, total, float(max(x.size // max(out.size, 1), 1)))


def emit_softmax(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs, log: bool = False) -> None:
    x = recorder.view(args[0])
    dims = dims_of(args[1], len(x.shape))
    narrow = [1 if i in dims else n for i, n in enumerate(x.shape)]
    most, total = (recorder.temporary(narrow, torch.float64) for _ in range(2))
    reduce_dims(recorder, "amax", most, x, dims)
    shifted, powers = (recorder.temporary(x.shape, torch.float64) for _ in range(2))
    recorder.map("sub", shifted, x, most)
    recorder.map("exp", powers, shifted)
    reduce_dims(recorder, "sum", total, powers, dims)
    if log:
        recorder.map("sub", out, shifted, recorder.map("log", most, total))
    else:
        recorder.map("div", out, powers, total)


def emit_log_softmax(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    emit_softmax(recorder, out, args, kwargs, log=True)


def emit_cumulative_sum(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x, dim = recorder.view(args[0]), dims_of(args[1], args[0].dim())[0]
    for i in range(x.shape[dim]):
        before = [out.selected(dim, i - 1)] if i else [0.0]
        recorder.map("add", out.selected(dim, i), *before, x.selected(dim, i))


def emit_variance(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x = recorder.view(args[0])
    dims = dims_of(kwargs.get("dim", args[1] if len(args) > 1 else None), len(x.shape))
    correction = kwargs.get("correction", args[2] if len(args) > 2 else 1)
    count = math.prod(x.shape[d] for d in dims)
    narrow = [1 if i in dims else n for i, n in enumerate(x.shape)]
    middle, squares = recorder.temporary(narrow, torch.float64), recorder.temporary(x.shape, torch.float64)
    recorder.map("div", middle, reduce_dims(recorder, "sum", middle, x, dims), float(count))
    recorder.map("sub", squares, x, middle)
    recorder.map("mul", squares, squares, squares)
    reduce_dims(recorder, "sum", middle, squares, dims)
    flat = View(middle.buffer, 0, out.shape, recorder.temporary(out.shape, torch.float64).strides)
    recorder.map("div", out, flat, float(max(count - (1 if correction is None else correction), 0)))


def batched_product(recorder: ProgramRecorder, out: View, a: View, b: View, bias: View | None = None) -> None:
    """Matrices, or batches of them."""
    while len(out.shape) > 2:
        for i in range(out.shape[0]):
            row, extra = a.selected(0, i), None if bias is None else bias.selected(0, i)
            batched_product(recorder, out.selected(0, i), row, b.selected(0, i), extra)
        return
    recorder.add("matmul", out, a, b, *([] if bias is None else [bias.expanded(out.shape)]))


def emit_matmul(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    batched_product(recorder, out, recorder.view(args[0]), recorder.view(args[1]))


def emit_add_matmul(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    if kwargs.get("beta", 1) != 1 or kwargs.get("alpha", 1) != 1:
        raise Untranslatable("it scales a product of matrices by alpha or beta")
    bias, a, b = map(recorder.view, args[:3])
    batched_product(recorder, out, a, b, bias.expanded(out.shape))


def emit_vector_product(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    """Matrix and vector, or two vectors."""
    a, b = map(recorder.view, args[:2])
    a = a if len(a.shape) == 2 else a.expanded((1, *a.shape))
    column = View(b.buffer, b.offset, (*b.shape, 1), (*b.strides, 0))
    recorder.add("matmul", View(out.buffer, out.offset, (a.shape[0], 1), (*(out.strides or (0,)), 0)), a, column)


def emit_concatenate(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    start, dim = 0, (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(out.shape)
    for piece in map(recorder.view, args[0]):
        if piece.shape != (0,):
            recorder.map("copy", out.narrowed(dim, start, piece.shape[dim]), piece)
            start += piece.shape[dim]


def emit_stack(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % len(out.shape)
    for i, piece in enumerate(map(recorder.view, args[0])):
        recorder.map("copy", out.selected(dim, i), piece)


def emit_pad(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x, inner, widths = recorder.view(args[0]), out, args[1]
    recorder.map("copy", out, recorder.number(args[2] if len(args) > 2 else 0.0, recorder.dtype(out)))
    for i in range(len(widths) // 2):
        dim = len(out.shape) - 1 - i
        inner = inner.narrowed(dim, max(widths[2 * i], 0), x.shape[dim])
    if min(widths) < 0:
        raise Untranslatable("it pads by less than nothing")
    recorder.map("copy", inner, x)


def emit_flip(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    x = recorder.view(args[0])
    for dim in dims_of(args[1], len(x.shape)):
        strides = (*x.strides[:dim], -x.strides[dim], *x.strides[dim + 1 :])
        x = View(x.buffer, x.offset + (x.shape[dim] - 1) * x.strides[dim], x.shape, strides)
    recorder.map("copy", out, x)


def emit_convolution(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    """As a product with the patches of the image."""
    image, weight, bias, stride, padding, dilation, transposed, _, groups = args
    x, w = recorder.view(image), recorder.view(weight)
    if transposed or groups != 1 or {*dilation} != {1}:
        raise Untranslatable("it uses a convolution that is transposed, grouped or dilated")
    if any(padding):
        shape = (*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)))
        inner = wide = recorder.temporary(shape, recorder.dtype(x))
        recorder.map("copy", wide, 0.0)
        for i, p in enumerate(padding):
            inner = inner.narrowed(2 + i, p, x.shape[2 + i])
        recorder.map("copy", inner, x)
        x = wide
    places, kernel = out.shape[2:], w.shape[2:]
    count, inside = math.prod(places), math.prod(w.shape[1:])
    steps = [s * t for s, t in zip(x.strides[2:], stride, strict=True)]
    for row in range(x.shape[0]):
        patches = View(
            x.buffer, x.offset + row * x.strides[0], (*places, x.shape[1], *kernel), (*steps, *x.strides[1:])
        )
        rows = recorder.temporary((count, inside), recorder.dtype(x))
        recorder.map(
            "copy", View(rows.buffer, 0, patches.shape, recorder.temporary(patches.shape, torch.bool).strides), patches
        )
        columns = recorder.temporary(w.shape, recorder.dtype(w))
        recorder.map("copy", columns, w)
        flat = View(columns.buffer, 0, (inside, w.shape[0]), (1, inside))
        answer = recorder.temporary((count, w.shape[0]), recorder.dtype(out))
        extra = None if bias is None else recorder.view(bias).expanded(answer.shape)
        batched_product(recorder, answer, rows, flat, extra)
        shaped = View(
            answer.buffer, 0, (*places, w.shape[0]), recorder.temporary((*places, w.shape[0]), torch.bool).strides
        )
        recorder.map("copy", out.selected(0, row), shaped.permuted([len(places), *range(len(places))]))
