"""NumPy calls for elementwise operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Function, array, call_of, empty

aten = torch.ops.aten
Operand = Tensor | float
Builder = Callable[..., "list[Call] | None"]
Made = TypeVar("Made", bound=Builder)
FEW = 8  # columns: up to this number, operations may go column by column
TALL = 128  # rows per column, from which broadcasting goes column by column
TILED = 8192  # entries: up to this size, a steady broadcast operand is stored at full size


@dataclass
class Context:
    """Information for translating an operation into calls."""

    exact: bool  # use only calls that give the same bits as torch
    is_steady: Callable[[Tensor], bool]  # whether a tensor changes only with `refresh`
    is_constant: Callable[[Tensor], bool]  # whether a tensor never changes
    identity: Callable[[Tensor], object]  # a key of the numbers in a tensor: equal keys, equal numbers
    compiled: bool = False  # whether the calls become C code
    portable: bool = False  # whether every operation must have calls, as none can be left to torch
    shared: dict[object, Array] = field(default_factory=dict)  # arrays that several operations read
    numbers: dict[int, tuple[Array, object]] = field(default_factory=dict)  # the number that an array is of, by its id

    @property
    def compiles(self) -> bool:
        """Whether C code may round in another way than torch."""
        return self.compiled and not self.exact

    def number(self, value: object, dtype: np.dtype[np.generic] | None = None) -> Array:
        """An array of one number."""
        made = np.array(value, dtype)
        if self.portable:
            self.numbers[id(made)] = made, value
        return made


class Entries(dict[object, Builder]):
    """Functions that build the calls of an operation, by torch operation."""

    def add(self, *packets: object) -> Callable[[Made], Made]:
        def decorate(builder: Made) -> Made:
            self.update(dict.fromkeys(packets, builder))
            return builder

        return decorate


def common_type(args: Sequence[Any]) -> torch.dtype:
    if len(args) == 1:
        dtype: torch.dtype = args[0].dtype
        return dtype
    return torch.result_type(*args)


def elementwise(
    context: Context, function: Function, args: Sequence[Operand], out: Tensor, dtype: torch.dtype
) -> list[Call]:
    """Apply a NumPy function to operands that are first converted to one dtype, as torch does."""
    target = array(out)
    calls: list[Call] = []
    operands = []
    for x in args:
        if isinstance(x, Tensor):
            operands.append(typed(context, x, dtype, target.shape, calls))
        elif isinstance(x, (bool, int, float)):
            operands.append(context.number(x, numpy_type(dtype)))
        else:
            raise TypeError(x)
    return [*calls, *by_columns(function, operands, target)]


def typed(context: Context, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...], calls: list[Call]) -> Array:
    """Return a tensor as an array of another dtype. A steady operand that is broadcast is expanded to full size."""
    given = array(x)
    wide = x.dim() > 0 and given.shape != shape and context.is_steady(x) and int(np.prod(shape)) <= TILED
    if x.dtype == dtype and not wide:
        return given
    made = empty(shape if wide else given.shape, numpy_type(dtype))
    calls.append(call_of(np.copyto, made, given, "unsafe", written=0))
    return made


def numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return array(torch.empty(0, dtype=dtype)).dtype


def by_columns(function: Function, operands: Sequence[Array], target: Array) -> list[Call]:
    """Make one call, or one per column if an operand is broadcast over few long columns: NumPy would go row by row."""
    broadcast = any(x.ndim and x.shape != target.shape for x in operands)
    if not broadcast or target.ndim != 2 or target.shape[1] > FEW or target.shape[0] < TALL * target.shape[1]:
        return [call_of(function, *operands, target)]
    calls = []
    for k in range(target.shape[1]):
        columns = [x if x.ndim == 0 else np.broadcast_to(x, target.shape)[:, k] for x in operands]
        calls.append(call_of(function, *columns, target[:, k]))
    return calls


# one builder per operation ---------------------------------------------------------------------------------------------------

ELEMENTWISE = Entries()


def unscaled(function: Function, swapped: bool = False) -> Builder:
    """Return a builder for f(a, b), or f(b, a) if `swapped`. It handles only alpha 1 of torch's a + alpha b."""

    def build(context: Context, out: Tensor, a: Operand, b: Operand, alpha: float = 1) -> list[Call] | None:
        return elementwise(context, function, (b, a) if swapped else (a, b), out, out.dtype) if alpha == 1 else None

    return build


ELEMENTWISE |= {aten.add: unscaled(np.add), aten.sub: unscaled(np.subtract), aten.rsub: unscaled(np.subtract, True)}


@ELEMENTWISE.add(aten.pow)
def power(context: Context, out: Tensor, a: Tensor, exponent: Operand) -> list[Call] | None:
    if isinstance(exponent, Tensor):
        return None
    if exponent == 2:
        return elementwise(context, np.multiply, (a, a), out, out.dtype)
    return [call_of(np.copyto, array(out), array(a), written=0)] if exponent == 1 else None


def array_erf(x: Array, out: Array) -> None:
    """The error function, which NumPy does not have."""
    np.copyto(out, torch.erf(torch.from_numpy(x)).numpy())


@ELEMENTWISE.add(aten.erf)
def error_function_calls(context: Context, out: Tensor, a: Tensor) -> list[Call] | None:
    return elementwise(context, array_erf, (a,), out, out.dtype) if context.compiles else None


@ELEMENTWISE.add(aten.remainder)
def remainder_calls(context: Context, out: Tensor, a: Operand, b: Operand) -> list[Call] | None:
    return elementwise(context, np.remainder, (a, b), out, out.dtype) if out.is_floating_point() else None


@ELEMENTWISE.add(aten.fill)
def fill_calls(context: Context, out: Tensor, a: Tensor, value: Operand) -> list[Call]:
    given = array(value) if isinstance(value, Tensor) else context.number(value)
    return [call_of(np.copyto, array(out), given, "unsafe", written=0)]


@ELEMENTWISE.add(aten.addcmul)
def addcmul(context: Context, out: Tensor, a: Tensor, b: Tensor, c: Tensor, value: float = 1) -> list[Call] | None:
    if value != 1 or not a.dtype == b.dtype == c.dtype == out.dtype:
        return None
    between = torch.empty(np.broadcast_shapes(tuple(b.shape), tuple(c.shape)), dtype=out.dtype)
    first = elementwise(context, np.multiply, (b, c), between, out.dtype)
    return [*first, *elementwise(context, np.add, (a, between), out, out.dtype)]


@ELEMENTWISE.add(aten.clamp)
def clamped(
    context: Context, out: Tensor, a: Tensor, low: Operand | None = None, high: Operand | None = None
) -> list[Call]:
    calls = [] if low is None else elementwise(context, np.maximum, (a, low), out, out.dtype)
    below = a if low is None else out
    return calls + ([] if high is None else elementwise(context, np.minimum, (below, high), out, out.dtype))


@ELEMENTWISE.add(aten.relu)
def relu(context: Context, out: Tensor, a: Tensor) -> list[Call] | None:
    return elementwise(context, np.maximum, (a, 0), out, out.dtype)


@ELEMENTWISE.add(aten.threshold_backward)
def threshold_backward(context: Context, out: Tensor, grad: Tensor, a: Tensor, threshold: float) -> list[Call]:
    passed = empty(tuple(a.shape))
    return [
        call_of(np.greater, array(a), np.array(threshold, array(a).dtype), passed),
        call_of(np.multiply, array(grad), passed, array(out)),
    ]


@ELEMENTWISE.add(aten.tanh_backward)
def tanh_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor) -> list[Call]:
    slope, one = empty(tuple(y.shape), array(y).dtype), np.array(1, array(y).dtype)
    return [
        call_of(np.multiply, array(y), array(y), slope),
        call_of(np.subtract, one, slope, slope),
        call_of(np.multiply, array(grad), slope, array(out)),
    ]


@ELEMENTWISE.add(aten.sigmoid_backward)
def sigmoid_backward(context: Context, out: Tensor, grad: Tensor, y: Tensor) -> list[Call]:
    slope, one = empty(tuple(y.shape), array(y).dtype), np.array(1, array(y).dtype)
    return [
        call_of(np.subtract, one, array(y), slope),
        call_of(np.multiply, slope, array(y), slope),
        call_of(np.multiply, array(grad), slope, array(out)),
    ]


@ELEMENTWISE.add(aten.sigmoid)
def sigmoid(context: Context, out: Tensor, a: Tensor) -> list[Call]:
    target, one = array(out), np.array(1, array(out).dtype)
    return [
        call_of(np.negative, array(a), target),
        call_of(np.exp, target, target),
        call_of(np.add, target, one, target),
        call_of(np.true_divide, one, target, target),
    ]


@ELEMENTWISE.add(aten.where)
def where(context: Context, out: Tensor, choice: Tensor, a: Operand, b: Operand) -> list[Call]:
    calls: list[Call] = []
    target = array(out)
    chosen, other = (
        typed(context, x, out.dtype, target.shape, calls) if isinstance(x, Tensor) else context.number(x, target.dtype)
        for x in (a, b)
    )
    copied = call_of(np.copyto, target, other, written=0)
    return [*calls, copied, call_of(np.copyto, target, chosen, "same_kind", array(choice), written=0)]


@ELEMENTWISE.add(aten.masked_fill)
def masked_fill(context: Context, out: Tensor, a: Tensor, mask: Tensor, value: Operand) -> list[Call]:
    return where(context, out, mask, value, a)


@ELEMENTWISE.add(aten.clone, aten._to_copy, aten.copy)
def copied(context: Context, out: Tensor, a: Tensor, *others: object, **kwargs: object) -> list[Call]:
    given = others[0] if others and isinstance(others[0], Tensor) else a  # copy(old, new)
    return [call_of(np.copyto, array(out), array(given), "unsafe", written=0)]


@ELEMENTWISE.add(aten.stack, aten.cat)
def joined(context: Context, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> list[Call]:
    stacked = out.dim() > parts[0].dim()
    places = out.unbind(dim) if stacked else torch.split_with_sizes(out, [part.shape[dim] for part in parts], dim)
    return [call_of(np.copyto, array(a), array(b), "unsafe", written=0) for a, b in zip(places, parts, strict=True)]


@ELEMENTWISE.add(aten.select_backward, aten.slice_backward)
def part_backward(context: Context, out: Tensor, grad: Tensor, sizes: object, dim: int, *where: int) -> list[Call]:
    part = out.select(dim, *where) if len(where) == 1 else out[(slice(None),) * (dim % out.dim()) + (slice(*where),)]
    zero = np.zeros((), array(out).dtype)
    return [call_of(np.copyto, array(out), zero, written=0), call_of(np.copyto, array(part), array(grad), written=0)]
