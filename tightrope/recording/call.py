"""One call of a recording: a function, its arguments, and the arguments that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Array = np.ndarray[Any, Any]
Memory = Array | Tensor
Function = Callable[..., object]
TORCH = (
    torch.sin,
    torch.cos,
    torch.exp,
    torch.expm1,
    torch.log,
    torch.log1p,
    torch.tanh,
    torch.mm,
    torch.sum,
    torch.erf,
)
KEYWORD_OUT = (np.maximum, np.minimum, *TORCH)  # take their output only as the keyword `out`


class Unrecordable(Exception):
    """The function cannot be recorded: its operations depend on values, or it changes tensors from outside."""


class Span(NamedTuple):
    """A range of addresses."""

    start: int
    end: int


class Call(NamedTuple):
    """A function with its arguments. `written` are the positions of the arguments that it writes."""

    function: Function
    args: tuple[Any, ...]
    written: tuple[int, ...]

    @property
    def operands(self) -> list[Memory]:
        """All arrays and tensors among the arguments, also in containers."""
        return list(memory_in(self.args))

    @property
    def outputs(self) -> list[Memory]:
        return list(memory_in([self.args[i] for i in self.written]))

    def moved(self, place: Callable[[Memory], Memory]) -> Call:
        """Return the call with every array and tensor x replaced by place(x)."""

        def moved_leaf(leaf: object) -> object:
            return place(leaf) if is_array_or_tensor(leaf) else leaf

        moved = [pytree.tree_map(moved_leaf, x) if is_container(x) else moved_leaf(x) for x in self.args]
        return self._replace(args=tuple(moved))


def call_of(function: Function, *args: object, written: int = -1) -> Call:
    """Make a call that writes one of its arguments, by default the last."""
    return Call(function, args, (written % len(args),))


def is_array_or_tensor(x: object) -> TypeGuard[Memory]:
    return isinstance(x, (np.ndarray, Tensor))


def is_container(x: object) -> bool:
    return isinstance(x, (list, tuple, dict))


def memory_in(args: Sequence[object]) -> Iterator[Memory]:
    for x in args:
        if is_array_or_tensor(x):
            yield x
        elif is_container(x):
            yield from (leaf for leaf in pytree.tree_leaves(x) if is_array_or_tensor(leaf))


def span(x: Memory) -> Span:
    """Return the addresses of an array or tensor, from its first entry to its last."""
    if isinstance(x, Tensor):
        strides = tuple(s * x.itemsize for s in x.stride())
        start, size, shape = x.data_ptr(), x.itemsize, tuple(x.shape)
    else:
        start, size, shape, strides = x.__array_interface__["data"][0], x.itemsize, x.shape, x.strides
    if 0 in shape:
        return Span(start, start)
    return Span(start, start + size + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))


def array(x: Tensor) -> Array:
    """Return a NumPy view of a tensor's memory. Raises TypeError if NumPy lacks the dtype."""
    return x.detach().numpy()


def storage_of(x: Array) -> torch.UntypedStorage:
    """Return the storage of an array that `array` or `empty` made, or of a view of one."""
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    found: torch.UntypedStorage = root.base.untyped_storage()
    return found


def tensor(x: Array) -> Tensor:
    """Return an array that `array` or `empty` made as a tensor, of the same storage: torch.from_numpy would give a view of a
    part a storage of its own."""
    whole = storage_of(x)
    offset = (x.__array_interface__["data"][0] - whole.data_ptr()) // x.itemsize
    strides = tuple(s // x.itemsize for s in x.strides)
    return torch.empty(0, dtype=torch.from_numpy(np.empty(0, x.dtype)).dtype).set_(whole, offset, x.shape, strides)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any] | type = np.float32) -> Array:
    """Allocate an array with torch's alignment."""
    numpy_type = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * numpy_type.itemsize
    return torch.empty(max(size, 1), dtype=torch.uint8).numpy()[:size].view(numpy_type).reshape(shape)


def runner(calls: list[Call]) -> Callable[[], None]:
    """Return a function that makes all calls in order."""
    steps: list[tuple[Function, tuple[object, ...]]] = [
        (partial(f, out=args[-1]), args[:-1]) if f in KEYWORD_OUT else (f, args) for f, args, _ in calls
    ]

    def run() -> None:
        for function, args in steps:
            function(*args)

    return run
