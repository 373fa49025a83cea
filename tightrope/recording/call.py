"""One step of a recording: a function, its operands, and which of them it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Array = np.ndarray[Any, Any]
TORCH = (torch.sin, torch.cos, torch.exp, torch.expm1, torch.log, torch.log1p, torch.tanh, torch.mm, torch.sum)
KEYWORD_OUT = (np.maximum, np.minimum, *TORCH)  # which want their output by its keyword


class Span(NamedTuple):
    """A range of addresses."""

    start: int
    end: int


class Call(NamedTuple):
    """A function with its arguments. `written` are the positions of those that it writes."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    written: tuple[int, ...]

    @property
    def operands(self) -> list[Any]:
        """Every array and tensor among the arguments, nested ones too."""
        return list(memory_in(self.args))

    @property
    def outputs(self) -> list[Any]:
        return list(memory_in([self.args[i] for i in self.written]))

    def moved(self, place: Callable[[Any], Any]) -> Call:
        """The same call with every array and tensor replaced by `place` of it."""
        return self._replace(args=tuple(place(x) if is_memory(x) else nested(place, x) for x in self.args))

    @property
    def source(self) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
        """Function, arguments and the name of the last one's keyword, if it has to have one."""
        return self.function, self.args, "out" if self.function in KEYWORD_OUT else ""


def call(function: Callable[..., Any], *args: Any, written: int = -1) -> Call:
    """A call that writes one of its arguments: the last, if nothing else is said."""
    return Call(function, args, (written % len(args),))


def is_memory(x: Any) -> bool:
    return isinstance(x, (np.ndarray, Tensor))


def nested(place: Callable[[Any], Any], x: Any) -> Any:
    return pytree.tree_map(lambda leaf: place(leaf) if is_memory(leaf) else leaf, x) if is_container(x) else x


def is_container(x: Any) -> bool:
    return isinstance(x, (list, tuple, dict))


def memory_in(args: Sequence[Any]) -> Iterator[Any]:
    for x in args:
        if is_memory(x):
            yield x
        elif is_container(x):
            yield from (leaf for leaf in pytree.tree_leaves(x) if is_memory(leaf))


def span(x: Array | Tensor) -> Span:
    """The addresses of an array or tensor, from its first number to its last."""
    if isinstance(x, Tensor):
        strides = tuple(s * x.itemsize for s in x.stride())
        start, size, shape = x.data_ptr(), x.itemsize, tuple(x.shape)
    else:
        start, size, shape, strides = x.__array_interface__["data"][0], x.itemsize, x.shape, x.strides
    if 0 in shape:
        return Span(start, start)
    return Span(start, start + size + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))


def array(x: Tensor) -> Array:
    """A NumPy view of a tensor's memory. TypeError where NumPy has no such type."""
    return x.detach().numpy()


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Memory aligned as torch's is."""
    numpy_type = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * numpy_type.itemsize
    return torch.empty(max(size, 1), dtype=torch.uint8).numpy()[:size].view(numpy_type).reshape(shape)


def runner(calls: list[Call]) -> Callable[[], None]:
    """A function that makes all calls, one after the other."""
    steps = []
    for each in calls:
        function, args, keyword = each.source
        steps.append((partial(function, **{keyword: args[-1]}), args[:-1]) if keyword else (function, args))

    def run() -> None:
        for function, args in steps:
            function(*args)

    return run
