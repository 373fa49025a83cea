"""Run a `Program` with NumPy as a browser runs it: each kernel in double precision, rounded where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .program import Constant, Program, View, as_float32, expression_value

Array = np.ndarray
Kernel = Callable[..., Any]


def erf(x: Array) -> Array:
    """By Abramowitz and Stegun 7.1.26, to 1.5e-7, as the page's script has it."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


def remainder(a: Array, b: Array) -> Array:
    """With the sign of b, also where rounding makes it b itself."""
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


ELEMENTWISE: dict[str, Kernel] = {
    "copy": lambda a: a, "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil,
    "round": np.rint, "hypot": np.hypot, "trunc": np.trunc,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "erf": erf,
    "isnan": np.isnan, "isinf": np.isinf, "not": lambda a: a == 0, "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "div": np.divide, "floordiv": lambda a, b: np.floor(a / b), "min": np.minimum, "max": np.maximum, "atan2": np.arctan2,
    "remainder": remainder, "fmod": np.fmod, "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": lambda a, b: (a != 0) & (b != 0),
    "or": lambda a, b: (a != 0) | (b != 0), "where": lambda c, a, b: np.where(c != 0, a, b),
}  # fmt: skip
REDUCED: dict[str, Kernel] = {
    "sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all, "argmax": np.argmax,
    "argmin": np.argmin,
}  # fmt: skip


class Replay:
    """A program with its memory."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = [np.zeros(size, torch.empty(0, dtype=dtype).numpy().dtype) for dtype, size in program.buffers]
        for number, content in program.contents.items():
            self.memory[number][:] = content.cpu().numpy().ravel()
        self.steps = [
            (each, self.array(each.out), [self.array(x) if isinstance(x, View) else x for x in each.arguments])
            for each in program.operations
        ]
        self.ends = {name: self.array(view) for name, view in program.outputs.items()}

    def array(self, view: View) -> Array:
        """The part of memory that a view is."""
        buffer = self.memory[view.buffer]
        strides = [stride * buffer.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(buffer[view.offset :], view.shape, strides)

    @np.errstate(all="ignore")
    def __call__(
        self, inputs: Mapping[str, Tensor], attributes: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        for name, view in self.program.inputs.items():
            self.array(view)[...] = inputs[name].detach().cpu().numpy()
        for (kernel, _, _), out, places in self.steps:
            values = [value_of(x, attributes or {}) for x in places]
            if kernel in ELEMENTWISE:
                store(out, ELEMENTWISE[kernel](*values))
            elif kernel in REDUCED:
                inner = values[0].reshape(out.size, -1)
                store(out, REDUCED[kernel](inner, axis=1).reshape(out.shape))
            elif kernel == "matmul":
                store(out, values[0] @ values[1])
            elif kernel == "take":
                store(out, values[0][places_in(values[0], values[1])])
            elif kernel == "put":
                out[places_in(out, values[0])] = values[1]
            else:
                raise ValueError(kernel)
        return {name: torch.from_numpy(array.copy()) for name, array in self.ends.items()}


def places_in(x: Array, index: Array) -> Array:
    return index.astype(np.int64).clip(0, len(x) - 1)


def value_of(argument: Array | float | Constant, attributes: Mapping[str, float]) -> Any:
    """An argument in double precision."""
    if isinstance(argument, Constant):
        number = expression_value(argument.expression, attributes)
        argument = as_float32(number) if argument.rounded else number
    return argument.astype(np.float64) if isinstance(argument, Array) else np.float64(argument)


def store(out: Array, values: Array) -> None:
    """Write values, rounded to the type of the memory."""
    if out.dtype == np.bool_:
        values = np.not_equal(values, 0)
    elif out.dtype.kind in "iu":
        values = np.nan_to_num(np.trunc(np.asarray(values, np.float64)), posinf=2.0**62, neginf=-(2.0**62))
    np.copyto(out, values, casting="unsafe")
