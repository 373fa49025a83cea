"""What learning does besides the gradient, as C functions: sums backward in time, standardised advantages, clipping and Adam,
and the copies around the compiled recording of a gradient. With small minibatches, the Python and NumPy calls for them take
longer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..functional.estimators import LONG, NARROW, backward_recursion
from ..recording import Array, NotCompiled, RecordedFunction
from ..recording.compiler import compiled
from .across_ranks import standardized_on_host
from .optimize import BETAS, EPS, Optimizer, clipped_adam_on_host

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

Address = ctypes.c_void_p
Argument = type[ctypes.c_void_p] | type[ctypes.c_int64] | type[ctypes.c_double]
ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "backward_recursion": (*[Address] * 3, *[ctypes.c_int64] * 3),
    "standardize": (Address, Address, ctypes.c_int64),
    "clip_and_step": (*[Address] * 4, ctypes.c_int64, *[Address] * 3, *[ctypes.c_double] * 4),
    "gradient": (Address, Address, Address),
}


@cache
def function(name: str) -> CFuncPtr:
    """Return a function of update.c. Raises NotCompiled."""
    found: CFuncPtr = getattr(compiled(Path(__file__).with_name("update.c").read_text(), exact=False), name)
    found.argtypes, found.restype = ARGUMENTS[name], ctypes.c_double if name == "clip_and_step" else None
    return found


def is_readable(x: Tensor) -> bool:
    """Whether the C functions can read this tensor, and no gradient is wanted, which they do not have."""
    return x.dtype is torch.float32 and x.is_contiguous() and not x.requires_grad


def c_recursion(x: Tensor, decay: Tensor) -> Tensor:
    """Return `backward_recursion` by the C function, which overwrites a copy of `decay`."""
    (length, width), decay, result = x.shape, decay.clone(), torch.empty_like(x)
    doubles = length >= LONG and width <= NARROW
    function("backward_recursion")(x.data_ptr(), decay.data_ptr(), result.data_ptr(), length, width, doubles)
    return result


@cache
def recursion_is_exact() -> bool:
    """Whether the C function gives the bits of torch, which depend on the processor."""
    generator = torch.Generator().manual_seed(0)
    shapes = product((LONG - 1, 5 * LONG), (1, 5, 64, NARROW + 9))
    pairs = [torch.randn(2, *shape, generator=generator) for shape in shapes]
    return all(torch.equal(c_recursion(*pair), backward_recursion(*pair)) for pair in pairs)


def recursion_in_c(x: Tensor, decay: Tensor) -> Tensor:
    """Return y_t = x_t + decay_t y_{t+1}, bit for bit as `backward_recursion` does."""
    if is_readable(x) and is_readable(decay) and recursion_is_exact():
        return c_recursion(x, decay)
    return backward_recursion(x, decay)


def standardized_in_c(x: Tensor) -> Tensor:
    """Return x with mean 0 and standard deviation 1, as `standardized_on_host` does."""
    if not is_readable(x):
        return standardized_on_host(x)
    result = torch.empty_like(x)
    function("standardize")(x.data_ptr(), result.data_ptr(), x.numel())
    return result


def clipped_adam_in_c(optimizer: Optimizer, max_grad_norm: float | None, stopped: Tensor | None) -> Tensor:
    """Clip the gradient, take one step of Adam and return the norm before clipping, as `clipped_adam_on_host` does."""
    o = optimizer
    if not is_readable(o.flat):
        return clipped_adam_on_host(o, max_grad_norm, stopped)
    norm: float = function("clip_and_step")(
        o.flat.data_ptr(), o.grad.data_ptr(), o.first_moment.data_ptr(), o.second_moment.data_ptr(), len(o.flat),
        o.step_count.data_ptr(), o.learning_rate.data_ptr(), None if stopped is None else stopped.data_ptr(),
        -1.0 if max_grad_norm is None else max_grad_norm, *BETAS, EPS,
    )  # fmt: skip
    return torch.from_numpy(np.array(norm, np.float32))


class GradientCall(ctypes.Structure):
    """The struct `replay` of update.c."""

    _fields_ = [
        *((name, Address) for name in ("run", "table", "places", "sizes")),
        ("columns", ctypes.c_int64),
        ("terms", Address),
        ("width", ctypes.c_int64),
    ]


class GradientInC:
    """Replays the recording of a gradient for the columns of a minibatch, in one call."""

    def __init__(self, recording: RecordedFunction, places: Sequence[Array]) -> None:
        """Raises NotCompiled if the recording is not one C function."""
        made = recording.function
        if made is None or len(recording.results) != 1 or recording.results[0].dtype != np.float32:
            raise NotCompiled("the recording is not one C function")
        self.kept, result, count = (recording, places), recording.results[0], len(places)
        self.places = (Address * count)(*(x.ctypes.data for x in places))
        self.sizes = (ctypes.c_int64 * count)(*(x.nbytes for x in places))
        self.columns, self.run = (Address * count)(), function("gradient")
        self.arguments = GradientCall(
            ctypes.cast(made.function, Address), ctypes.addressof(made.table), ctypes.addressof(self.places),
            ctypes.addressof(self.sizes), count, result.ctypes.data, result.size,
        )  # fmt: skip
        self.addresses = ctypes.addressof(self.arguments), ctypes.addressof(self.columns)

    def __call__(self, columns: Sequence[Tensor], terms: Tensor) -> None:
        """Write the terms of the loss to the memory that starts at the first of `terms`."""
        whole = [x.contiguous() for x in columns]
        self.columns[:] = [x.data_ptr() for x in whole]
        self.run(*self.addresses, terms.data_ptr())
