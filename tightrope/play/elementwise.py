"""Kernels for operations on each element, and for tensors that are filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .program import Argument, Untranslatable, View
from .recorder import Args, Kwargs, ProgramRecorder

Emit = Callable[[ProgramRecorder, View, Args, Kwargs], object]


def operands(recorder: ProgramRecorder, values: Args) -> list[Argument]:
    """Tensors and numbers in the type in which torch combines them."""
    dtype, so_far = (values[0].dtype if isinstance(values[0], Tensor) else torch.float32), values[0]
    for i, value in enumerate(values[1:], 1):
        dtype = torch.result_type(so_far, value)
        wide = any(isinstance(x, Tensor) and x.dim() for x in values[: i + 1])
        so_far = torch.empty((1,) if wide else (), dtype=dtype)
    return [operand(recorder, value, dtype) for value in values]


def operand(recorder: ProgramRecorder, value: Any, dtype: torch.dtype) -> Argument:
    if not isinstance(value, Tensor):
        return recorder.number(value, dtype)
    view = recorder.view(value)
    if value.dtype == torch.float64 and dtype == torch.float32:
        return recorder.map("copy", recorder.temporary(view.shape, dtype), view)
    return view


def unary(kernel: str) -> Emit:
    return lambda recorder, out, args, kwargs: recorder.map(kernel, out, recorder.view(args[0]))


def binary(kernel: str) -> Emit:
    return lambda recorder, out, args, kwargs: recorder.map(kernel, out, *operands(recorder, args[:2]))


def logical(kernel: str) -> Emit:
    def emit(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
        if recorder.dtype(out) != torch.bool:
            raise Untranslatable("it combines the bits of whole numbers")
        recorder.map(kernel, out, *operands(recorder, args))

    return emit


def emit_add(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs, kernel: str = "add") -> None:
    a, b = operands(recorder, args[:2])
    scale = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
    if scale != 1:
        shape = b.shape if isinstance(b, View) else ()
        b = recorder.map(
            "mul", recorder.temporary(shape, recorder.dtype(out)), b, recorder.number(scale, recorder.dtype(out))
        )
    recorder.map(kernel, out, a, b)


def emit_subtract(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    emit_add(recorder, out, args, kwargs, "sub")


def emit_rsub(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    emit_add(recorder, out, (args[1], args[0], *args[2:]), kwargs, "sub")


def emit_divide(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    mode = kwargs.get("rounding_mode")
    pair = operands(recorder, args[:2])
    if mode == "trunc":
        quotient = recorder.map("div", recorder.temporary(out.shape, torch.float64), *pair)
        recorder.map("trunc", out, quotient)
    else:
        recorder.map("floordiv" if mode == "floor" else "div", out, *pair)


def emit_reciprocal(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    recorder.map("div", out, 1.0, recorder.view(args[0]))


def emit_square_root_below(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    root = recorder.map("sqrt", recorder.temporary(out.shape, torch.float64), recorder.view(args[0]))
    recorder.map("div", out, 1.0, root)


def emit_where(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    recorder.map("where", out, recorder.view(args[0]), *operands(recorder, args[1:3]))


def emit_masked_fill(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    recorder.map("where", out, recorder.view(args[1]), *operands(recorder, (args[2], args[0])))


def emit_clamp(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    low, high = (kwargs.get(name, args[i] if len(args) > i else None) for i, name in ((1, "min"), (2, "max")))
    given = [x for x in (args[0], low, high) if x is not None]
    x, *bounds = operands(recorder, given)
    if low is not None:
        x = recorder.map("max", out, x, bounds.pop(0))
    if high is not None:
        recorder.map("min", out, x, bounds.pop(0))


def emit_relu(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    recorder.map("max", out, recorder.view(args[0]), 0.0)


def multiply_add(kernel: str) -> Emit:
    """x + value * a * b, or divided by b."""

    def emit(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
        x, a, b = operands(recorder, args[:3])
        part = recorder.map(kernel, recorder.temporary(out.shape, torch.float64), a, b)
        if (value := kwargs.get("value", 1)) != 1:
            recorder.map("mul", part, part, recorder.number(value, recorder.dtype(out)))
        recorder.map("add", out, x, part)

    return emit


def emit_copy_into(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    recorder.map("copy", out, recorder.view(args[1]))


def constant_fill(value: float) -> Emit:
    return lambda recorder, out, args, kwargs: recorder.map("copy", out, float(value))


def value_fill(place: int) -> Emit:
    def emit(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
        value = kwargs.get("fill_value", args[place] if len(args) > place else 0)
        recorder.map("copy", out, operand(recorder, value, recorder.dtype(out)))

    return emit


def emit_known(recorder: ProgramRecorder, out: View, args: Args, kwargs: Kwargs) -> None:
    """A result that depends on no tensor."""
    result = kwargs["results"][0]
    number = recorder.allocate(result.dtype, result.numel())
    recorder.contents[number] = result.detach().clone(memory_format=torch.contiguous_format)
    strides = torch.empty(result.shape, device="meta").stride()
    recorder.map("copy", out, View(number, 0, tuple(result.shape), strides))
