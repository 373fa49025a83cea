"""Record a function of tensors as a `Program`: run it once, and note each operation below autograd with its views of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from .program import DTYPES, OPERATORS, Argument, Constant, Expression, Operation, Untranslatable, View, as_float32

Constants = Mapping[float, Expression]  # the values of numbers that depend on attributes, which are all different
Function = Callable[..., Mapping[str, Tensor]]
Args = Sequence[Any]
Kwargs = Mapping[str, Any]


class Attribute(float):
    """A number that remembers how it was computed from attributes. Its value, a little off the true one, stands for it in the
    arguments of operations; `table` has the expression of each such value."""

    expression: Expression
    table: dict[float, Expression]

    def __new__(cls, value: float, expression: Expression, table: dict[float, Expression]) -> Attribute:
        made = super().__new__(cls, value)
        made.expression, made.table = expression, table
        table[float(value)] = expression
        return made

    def _joined(self, operator: str, a: object, b: object) -> Attribute:
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return NotImplemented
        parts = [x.expression if isinstance(x, Attribute) else float(x) for x in (a, b)]
        return Attribute(OPERATORS[operator](float(a), float(b)), (operator, *parts), self.table)

    def __add__(self, other: object) -> Attribute:
        return self._joined("+", self, other)

    def __radd__(self, other: object) -> Attribute:
        return self._joined("+", other, self)

    def __sub__(self, other: object) -> Attribute:
        return self._joined("-", self, other)

    def __rsub__(self, other: object) -> Attribute:
        return self._joined("-", other, self)

    def __mul__(self, other: object) -> Attribute:
        return self._joined("*", self, other)

    def __rmul__(self, other: object) -> Attribute:
        return self._joined("*", other, self)

    def __truediv__(self, other: object) -> Attribute:
        return self._joined("/", self, other)

    def __rtruediv__(self, other: object) -> Attribute:
        return self._joined("/", other, self)

    def __pow__(self, other: object, modulus: None = None) -> Attribute:
        return self._joined("**", self, other)

    def __rpow__(self, other: object, modulus: None = None) -> Attribute:
        return self._joined("**", other, self)

    def __neg__(self) -> Attribute:
        return Attribute(-float(self), ("neg", self.expression), self.table)

    def __abs__(self) -> Attribute:
        return Attribute(abs(float(self)), ("abs", self.expression), self.table)


Note = Callable[["ProgramRecorder", OpOverload, Args, Kwargs], object]


class ProgramRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that run inside it."""

    def __init__(self, constants: Constants, note: Note) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.constants, self.note = constants, note
        self.buffers: list[tuple[torch.dtype, int]] = []
        self.contents: dict[int, Tensor] = {}
        self.operations: list[Operation] = []
        self.numbers: dict[int, int] = {}  # of buffers, by storage
        self.captured: dict[tuple[object, ...], int] = {}  # tensors from outside, by their memory
        self.kept: list[object] = []  # so that no memory is used twice

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return self.note(self, func, args, kwargs or {})

    # memory ----------------------------------------------------------------------------------------------------------

    def allocate(self, dtype: torch.dtype, size: int) -> int:
        if dtype not in DTYPES:
            raise Untranslatable(f"numbers of {str(dtype).removeprefix('torch.')} are not known in the browser")
        self.buffers.append((dtype, size))
        return len(self.buffers) - 1

    def temporary(self, shape: Sequence[int], dtype: torch.dtype) -> View:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return View(self.allocate(dtype, math.prod(shape)), 0, tuple(shape), tuple(strides))

    def is_known(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self.numbers

    def declare(self, tensor: Tensor) -> View:
        """Give a new tensor's memory a buffer."""
        if not self.is_known(tensor):
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.numbers[storage_of(tensor)] = self.allocate(tensor.dtype, size)
            self.kept.append(tensor)
        return self.view(tensor)

    def view(self, tensor: Tensor) -> View:
        """The view of a tensor. One from outside becomes a buffer that never changes."""
        if self.is_known(tensor):
            number = self.numbers[storage_of(tensor)]
            if self.buffers[number][0] != tensor.dtype:
                raise Untranslatable("memory is read as numbers of another type")
            return View(number, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())
        key = (storage_of(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        view = View(-1, 0, tuple(tensor.shape), torch.empty(tensor.shape, device="meta").stride())
        if key not in self.captured:
            self.captured[key] = self.allocate(tensor.dtype, tensor.numel())
            self.contents[self.captured[key]] = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.kept.append(tensor)
        return view._replace(buffer=self.captured[key])

    def dtype(self, view: View) -> torch.dtype:
        return self.buffers[view.buffer][0]

    # operations ------------------------------------------------------------------------------------------------------

    def number(self, value: float, dtype: torch.dtype) -> Argument:
        """A number as an operation on tensors of that type takes it."""
        rounded = dtype == torch.float32
        if type(value) is float and value in self.constants:
            return Constant(self.constants[value], rounded)
        value = float(value)
        return as_float32(value) if rounded else value

    def add(self, kernel: str, out: View, *arguments: Argument) -> View:
        if out.size:
            self.operations.append(Operation(kernel, out, arguments))
        return out

    def map(self, kernel: str, out: View, *arguments: Argument) -> View:
        """An operation on each element; arguments are broadcast."""
        return self.add(kernel, out, *(x.expanded(out.shape) if isinstance(x, View) else x for x in arguments))


def storage_of(tensor: Tensor) -> int:
    return cast(int, tensor.untyped_storage()._cdata)
