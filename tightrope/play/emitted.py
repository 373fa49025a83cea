"""Recordings as programs: each NumPy call becomes operations that a browser has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ..recording import Unrecordable, recorded
from ..recording.call import Array, Call, Memory, array
from ..recording.memory import needed, owned
from ..recording.names import BITS, ELEMENT, PRODUCTS, REDUCED
from .program import DTYPES, Argument, Constant, Expression, Operation, Program, View


@torch.no_grad()
def record(
    function: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    constants: Mapping[float, Expression] | None = None,
) -> Program:
    """The program of a function that takes tensors and returns tensors by name. Other tensors that it reads are constants.
    `constants` are the values of numbers that depend on attributes, which are all different. Raises Unrecordable."""
    names: list[str] = []

    def results_of(*values: Tensor) -> list[Tensor]:
        found = function(*values)
        names[:] = found
        return [*found.values()]

    recorder, results = recorded(results_of, [*inputs.values()], portable=True, varying=constants or {})
    made = Emitter(needed(recorder.restores + recorder.calls, results), [*inputs.values()], constants or {})
    made.numbers = recorder.context.numbers
    for each in made.calls:
        made.add(each)
    outputs = {name: made.view(x) for name, x in zip(names, results, strict=True)}
    used = {name: made.view(x) for name, x in inputs.items() if owned(x).start in made.blocks}
    return Program(made.buffers, made.contents, used, outputs, made.operations)


class Emitter:
    """Collects the operations of calls and the buffers of their memory."""

    def __init__(self, calls: list[Call], inputs: list[Tensor], constants: Mapping[float, Expression]) -> None:
        self.calls, self.constants = calls, constants
        self.numbers: Mapping[int, tuple[Array, object]] = {}  # arrays of one number that a function was given
        written = {owned(x).start for each in calls for x in each.outputs}
        self.changing = written | {owned(x).start for x in inputs}
        self.buffers: list[tuple[torch.dtype, int]] = []
        self.contents: dict[int, Tensor] = {}
        self.blocks: dict[int, int] = {}  # buffers of memory that changes, by its address
        self.captured: dict[object, int] = {}  # buffers of memory that never changes
        self.operations: list[Operation] = []

    # memory ----------------------------------------------------------------------------------------------------------

    def allocate(self, dtype: torch.dtype, size: int) -> int:
        if dtype not in DTYPES:
            raise Unrecordable(f"numbers of {str(dtype).removeprefix('torch.')} are not known in the browser")
        self.buffers.append((dtype, size))
        return len(self.buffers) - 1

    def view(self, given: Memory) -> View:
        x = given if isinstance(given, np.ndarray) else array(given)
        dtype, block = torch.from_numpy(np.empty(0, x.dtype)).dtype, owned(given)
        address, shape = x.__array_interface__["data"][0], x.shape
        if block.start not in self.changing:
            key = (address, shape, x.strides, dtype)
            if key not in self.captured:
                self.captured[key] = number = self.allocate(dtype, x.size)
                self.contents[number] = torch.from_numpy(x.copy(order="C"))
            return View(self.captured[key], 0, shape, strides_of(shape))
        if block.start not in self.blocks:
            self.blocks[block.start] = self.allocate(dtype, (block.end - block.start) // x.itemsize)
        number = self.blocks[block.start]
        if self.buffers[number][0] != dtype:
            raise Unrecordable("memory is read as numbers of another type")
        strides = tuple(step // x.itemsize for step in x.strides)
        return View(number, (address - block.start) // x.itemsize, shape, strides)

    def argument(self, x: Memory) -> Argument:
        """An operand: a view, or a number where it is one."""
        single = isinstance(x, np.ndarray) and x.ndim == 0 and owned(x).start not in self.changing
        if not single:
            return self.view(x)
        _, value = self.numbers.get(id(x), (None, None))
        if type(value) is float and value in self.constants:
            return Constant(self.constants[value], rounded=x.dtype != np.float64)
        return float(x)

    # operations ------------------------------------------------------------------------------------------------------

    def emit(self, kernel: str, out: View, *arguments: Argument) -> None:
        if out.size:
            self.operations.append(Operation(kernel, out, arguments))

    def map(self, kernel: str, out: View, *arguments: Argument) -> None:
        """An operation on each element; arguments are broadcast."""
        self.emit(kernel, out, *(x.expanded(out.shape) if isinstance(x, View) else x for x in arguments))

    def add(self, each: Call) -> None:
        """The operations of one call."""
        function, args = each.function, each.args
        if function is np.copyto:
            out, source, mask = args[0], args[1], args[3] if len(args) > 3 else None
            arguments = [source] if mask is None else [mask, source, out]
            self.map("copy" if mask is None else "where", self.view(out), *map(self.argument, arguments))
        elif function in BITS and args[-1].dtype != np.bool_:
            raise Unrecordable("it combines the bits of whole numbers")
        elif function is np.reciprocal:
            self.map("div", self.view(args[1]), 1.0, self.argument(args[0]))
        elif (kernel := ELEMENT.get(function) or BITS.get(function)) is not None:
            self.map(kernel, self.view(args[-1]), *map(self.argument, args[:-1]))
        elif function in PRODUCTS:
            self.product(*map(self.view, args))
        elif function in REDUCED or function is torch.sum:
            self.reduce(each)
        elif function == np.add.accumulate:
            self.accumulate(self.view(args[0]), args[1] % args[0].ndim, self.view(args[3]))
        elif function is np.take:
            self.emit("take", self.view(args[3]), self.view(args[0]), self.view(args[1]))
        elif function is np.put:
            self.emit("put", self.view(args[0]), self.view(args[1]), self.view(args[2]))
        else:
            raise Unrecordable(f"{getattr(function, '__name__', function)} is not known in the browser")

    def reduce(self, each: Call) -> None:
        """A sum or another reduction: the axes that are left, then those that are not."""
        x, out = self.view(each.args[0]), self.view(each.args[each.written[0]])
        given, rank = each.args[1], len(x.shape)
        axes = [d % rank for d in ([given] if isinstance(given, int) else given)]
        order = [d for d in range(rank) if d not in axes] + axes
        self.emit(REDUCED.get(each.function, "sum"), out, x.permuted(order))

    def accumulate(self, x: View, dim: int, out: View) -> None:
        for i in range(x.shape[dim]):
            before = [out.selected(dim, i - 1)] if i else [0.0]
            self.map("add", out.selected(dim, i), *before, x.selected(dim, i))

    def product(self, a: View, b: View, out: View) -> None:
        """Matrices, vectors, or stacks of matrices."""
        if len(a.shape) == 3:
            for i in range(a.shape[0]):
                self.product(a.selected(0, i), b.selected(0, i) if len(b.shape) == 3 else b, out.selected(0, i))
            return
        if len(b.shape) == 1:
            b, out = b.column, out.column
        if len(a.shape) == 1:
            a, out = a.expanded((1, *a.shape)), out.expanded((1, *out.shape))
        self.emit("matmul", out, a, b)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
