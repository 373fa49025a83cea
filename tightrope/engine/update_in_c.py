"""What learning does besides the gradient, as C functions: sums backward in time, standardised advantages, clipping and Adam,
and the copies around the compiled recording of a gradient. With small minibatches, the Python and NumPy calls for them take
longer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ..recording import Array, NotCompiled, RecordedFunction
from ..recording.compiler import compiled
from .across_ranks import standardized_on_host
from .optimize import BETAS, EPS, Optimizer, clipped_adam_on_host

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

Address = ctypes.c_void_p
Whole, Number = ctypes.c_int64, ctypes.c_double
Argument = type[ctypes.c_void_p] | type[ctypes.c_int64] | type[ctypes.c_double]
SIGNATURES: dict[str, tuple[Argument, ...]] = {
    "backward_recursion": (*[Address] * 3, *[Whole] * 3),
    "write_row": (Address, Address),
    "places": (Address, *[Whole] * 3, Address, Address),
    "repeat": (Address, Address, Whole, Address),
}  # of functions that do not take the address of a struct


class Standardizing(ctypes.Structure):
    """The arguments of `standardize` in update.c."""

    _fields_ = [("x", Address), ("out", Address), ("n", Whole)]


class Stepping(ctypes.Structure):
    """The arguments of `clip_and_step`."""

    _fields_ = [
        *((name, Address) for name in ("p", "g", "m", "v")),
        ("n", Whole),
        *((name, Address) for name in ("count", "rate", "stopped", "norm")),
        *((name, Number) for name in ("limit", "beta1", "beta2", "eps")),
    ]


class Comparing(ctypes.Structure):
    """The arguments of `exceeds`."""

    _fields_ = [("before", Address), ("number", Address), ("limit", Number), ("out", Address)]


class GradientCall(ctypes.Structure):
    """The arguments of `gradient`."""

    _fields_ = [
        *((name, Address) for name in ("run", "table", "columns", "places", "sizes")),
        ("count", Whole),
        ("terms", Address),
        ("out", Address),
        ("width", Whole),
    ]


class Calls(Protocol):
    """Notes of the C functions that an update calls."""

    def add(self, name: str, arguments: ctypes.Structure, *kept: object) -> None:
        """Note a call. `kept` is what its addresses belong to."""

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """Return a new tensor."""

    def paused(self) -> AbstractContextManager[None]:
        """Inside, tensors may be made that only serve the calls."""


@cache
def function(name: str) -> CFuncPtr:
    """Return a function of update.c. Raises NotCompiled."""
    found: CFuncPtr = getattr(compiled(Path(__file__).with_name("update.c").read_text(), exact=False), name)
    found.argtypes = SIGNATURES.get(name, (Address,))
    found.restype = Whole if name in ("repeat", "places") else None
    return found


def call(name: str, arguments: ctypes.Structure, calls: Calls | None, *kept: object) -> None:
    """Call a function of update.c, and note it."""
    function(name)(ctypes.addressof(arguments))
    if calls is not None:
        calls.add(name, arguments, *kept)


def new(calls: Calls | None, shape: tuple[int, ...] = ()) -> Tensor:
    """Return a new tensor, also while calls are noted."""
    return torch.empty(shape) if calls is None else calls.empty(shape)


def is_readable(x: Tensor) -> bool:
    """Whether the C functions can read this tensor, and no gradient is wanted, which they do not have."""
    return x.dtype is torch.float32 and x.is_contiguous() and not x.requires_grad


def standardized_in_c(x: Tensor, calls: Calls | None = None) -> Tensor:
    """Return x with mean 0 and standard deviation 1, as `standardized_on_host` does."""
    if not is_readable(x):
        return standardized_on_host(x)
    result = new(calls, x.shape)
    call("standardize", Standardizing(x.data_ptr(), result.data_ptr(), x.numel()), calls, x, result)
    return result


def clipped_adam_in_c(
    optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None, calls: Calls | None = None
) -> Tensor:
    """Clip the gradient, take one step of Adam and return the norm before clipping, as `clipped_adam_on_host` does."""
    o = optimizer
    if not is_readable(o.flat):
        return clipped_adam_on_host(o, max_grad_norm, stopped)
    norm = new(calls)
    arguments = Stepping(
        o.flat.data_ptr(), o.grad.data_ptr(), o.first_moment.data_ptr(), o.second_moment.data_ptr(), len(o.flat),
        o.step_count.data_ptr(), o.learning_rate.data_ptr(), None if stopped is None else stopped.data_ptr(),
        norm.data_ptr(), -1.0 if max_grad_norm is None else max_grad_norm, *BETAS, EPS,
    )  # fmt: skip
    call("clip_and_step", arguments, calls, norm, stopped)
    return norm


def exceeds_in_c(before: Tensor | None, number: Tensor, limit: float, calls: Calls | None = None) -> Tensor:
    """Return 1 if `before` is 1 or the number is above the limit, else 0. Without `before` it is 0, and what is noted is the
    comparison for later updates."""
    result = new(calls)
    ctypes.c_float.from_address(result.data_ptr()).value = 0.0
    old = result if before is None else before
    arguments = Comparing(old.data_ptr(), number.data_ptr(), limit, result.data_ptr())
    if before is not None:
        call("exceeds", arguments, calls, old, number, result)
    elif calls is not None:
        calls.add("exceeds", arguments, old, number, result)
    return result


class GradientInC:
    """Replays the recording of a gradient for the columns of a minibatch, in one call."""

    def __init__(self, recording: RecordedFunction, places: Sequence[Array]) -> None:
        """Raises NotCompiled if the recording is not one C function."""
        made = recording.function
        if made is None or len(recording.results) != 1 or recording.results[0].dtype != np.float32:
            raise NotCompiled("the recording is not one C function")
        self.kept, result, count = (recording, places), recording.results[0], len(places)
        self.places = (Address * count)(*(x.ctypes.data for x in places))
        self.sizes = (Whole * count)(*(x.nbytes for x in places))
        self.made = (
            ctypes.cast(made.function, Address), ctypes.addressof(made.table), None, ctypes.addressof(self.places),
            ctypes.addressof(self.sizes), count, result.ctypes.data, None, result.size,
        )  # fmt: skip
        function("gradient")

    def __call__(self, columns: Sequence[Tensor], terms: Tensor, calls: Calls | None = None) -> None:
        """Write the terms of the loss to the memory that starts at the first of `terms`."""
        whole = [x.contiguous() for x in columns]
        addresses = (Address * len(whole))(*[x.data_ptr() for x in whole])
        arguments = GradientCall(*self.made)
        arguments.columns, arguments.out = ctypes.addressof(addresses), terms.data_ptr()
        call("gradient", arguments, calls, self, whole, addresses, terms)
