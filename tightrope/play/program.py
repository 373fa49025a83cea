"""A function of tensors as a list of operations that a browser can run: data, and no code.

Memory is a list of buffers. A view is a part of one, as in torch: (buffer, offset, shape, strides). An operation is a kernel,
the view that it writes, and its arguments: views, numbers, or `Constant`s, expressions of an environment's attributes. Kernels
compute in double precision and round to the type of the buffer that they write. emitted.py makes programs of recordings.
"""

from __future__ import annotations

import base64
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

DTYPES = {
    torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip
Expression = float | str | tuple[object, ...]  # a number, the name of an attribute, or (operator, expressions)
Json = object
OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
}  # fmt: skip


class View(NamedTuple):
    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def expanded(self, shape: Sequence[int]) -> View:
        """Broadcast, as by torch."""
        missing = len(shape) - len(self.shape)
        own = [*(1 for _ in range(missing)), *self.shape]
        strides = [0 for _ in range(missing)] + list(self.strides)
        wide = tuple(0 if mine == 1 else stride for mine, stride in zip(own, strides, strict=True))
        return View(self.buffer, self.offset, tuple(shape), wide)

    def permuted(self, order: Sequence[int]) -> View:
        shape, strides = (tuple(values[i] for i in order) for values in (self.shape, self.strides))
        return View(self.buffer, self.offset, shape, strides)

    def selected(self, dim: int, index: int) -> View:
        shape, strides = ((*values[:dim], *values[dim + 1 :]) for values in (self.shape, self.strides))
        return View(self.buffer, self.offset + index * self.strides[dim], shape, strides)

    @property
    def column(self) -> View:
        """A vector as a matrix."""
        return View(self.buffer, self.offset, (*self.shape, 1), (*self.strides, 0))


class Constant(NamedTuple):
    """A number that depends on attributes, `rounded` to float32 where an operation would round it."""

    expression: Expression
    rounded: bool


Argument = View | float | Constant


class Operation(NamedTuple):
    kernel: str
    out: View
    arguments: tuple[Argument, ...]


@dataclass
class Program:
    """Operations from named inputs to named outputs."""

    buffers: list[tuple[torch.dtype, int]]  # type and number of elements
    contents: dict[int, Tensor]  # of the buffers that never change
    inputs: dict[str, View]
    outputs: dict[str, View]
    operations: list[Operation]

    @property
    def attributes(self) -> set[str]:
        """The names of the attributes that it depends on."""
        constants = (x for each in self.operations for x in each.arguments if isinstance(x, Constant))
        return {name for constant in constants for name in names_in(constant.expression)}

    def as_json(self) -> Json:
        return {
            "buffers": [
                [DTYPES[dtype], size, base64_of(self.contents[i])] if i in self.contents else [DTYPES[dtype], size]
                for i, (dtype, size) in enumerate(self.buffers)
            ],
            "inputs": {name: view_json(view) for name, view in self.inputs.items()},
            "outputs": {name: view_json(view) for name, view in self.outputs.items()},
            "operations": [
                [k, view_json(out), *map(argument_json, arguments)] for k, out, arguments in self.operations
            ],
        }


class Attribute(float):
    """A number that remembers how it was computed from an environment's attributes. Its value, a little off the true one,
    stands for it in the arguments of operations; `table` has the expression of each such value."""

    expression: Expression
    table: dict[float, Expression]

    def __new__(cls, value: float, expression: Expression, table: dict[float, Expression]) -> Attribute:
        made = super().__new__(cls, value)
        made.expression, made.table = expression, table
        table[float(value)] = expression
        return made

    def joined(self, operator: str, a: object, b: object) -> Attribute:
        """The number that an operator makes of two others, one of which is this one."""
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return NotImplemented
        parts = [x.expression if isinstance(x, Attribute) else float(x) for x in (a, b)]
        return Attribute(OPERATORS[operator](float(a), float(b)), (operator, *parts), self.table)

    def __neg__(self) -> Attribute:
        return Attribute(-float(self), ("neg", self.expression), self.table)

    def __abs__(self) -> Attribute:
        return Attribute(abs(float(self)), ("abs", self.expression), self.table)


def overload(name: str, operator: str) -> None:
    """Let Attribute compute `a operator b` by its method of that name, wherever it stands."""
    setattr(Attribute, f"__{name}__", lambda self, other: self.joined(operator, self, other))
    setattr(Attribute, f"__r{name}__", lambda self, other: self.joined(operator, other, self))


for _name, _operator in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}.items():
    overload(_name, _operator)


def as_float32(value: float) -> float:
    try:
        return cast(float, struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def names_in(expression: Expression) -> set[str]:
    if isinstance(expression, tuple):
        return {name for part in expression[1:] for name in names_in(part)}  # type: ignore[arg-type]
    return {expression} if isinstance(expression, str) else set()


def view_json(view: View) -> Json:
    return [view.buffer, view.offset, list(view.shape), list(view.strides)]


def number_json(value: float) -> Json:
    return value if math.isfinite(value) else str(float(value))  # JSON has no infinities


def expression_json(expression: Expression) -> Json:
    if isinstance(expression, tuple):
        return [expression[0], *(expression_json(part) for part in expression[1:])]  # type: ignore[arg-type]
    return {"name": expression} if isinstance(expression, str) else number_json(expression)


def argument_json(argument: Argument) -> Json:
    if isinstance(argument, View):
        return view_json(argument)
    if isinstance(argument, Constant):
        return {"expression": expression_json(argument.expression), "rounded": argument.rounded}
    return number_json(argument)


def base64_of(content: Tensor) -> str:
    """The numbers in the byte order of every browser; int64 as doubles, which hold whole numbers up to 2^53."""
    array = content.contiguous().cpu().numpy().ravel()
    array = array.astype(np.float64) if array.dtype == np.int64 else array
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def expression_value(expression: Expression, values: Mapping[str, float]) -> float:
    """The value of an expression of attributes."""
    if isinstance(expression, str):
        return float(values[expression])
    if not isinstance(expression, tuple):
        return float(expression)
    name, *parts = expression
    a, *rest = (expression_value(part, values) for part in parts)  # type: ignore[arg-type]
    if not rest:
        return -a if name == "neg" else abs(a)
    try:
        return OPERATORS[str(name)](a, rest[0])
    except (ZeroDivisionError, OverflowError):
        return math.nan
