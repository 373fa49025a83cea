"""Calls as C code. The text holds shapes and strides but no addresses, so that compiled code can be cached.

Calls that have no C code, such as torch operations that NumPy lacks, stay Python calls between C functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .call import Array, Call, Memory, call_of, runner, span
from .compiler import NotCompiled, compiled
from .loops import Loop, statement_of
from .memory import accesses, owned
from .pointers import Pointers, Unemittable
from .products import EMITTERS
from .reductions import product_and_sum

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

Run = Callable[[], None]
MAX_CALLS = 5000  # of a recording: compiling 1,500 takes about two seconds
DEPTH = 256  # terms that kernels.c sums before it adds the rest


class CFunction:
    """A C function with its table of addresses."""

    def __init__(self, calls: Sequence[Call], text: str, pointers: Pointers) -> None:
        self.calls, self.text, self.pointers = calls, text, pointers
        self.room = np.empty(pointers.room + 32, np.float32)
        addresses = [self.room.ctypes.data + -self.room.ctypes.data % 64, *pointers.addresses]
        self.table = (ctypes.c_void_p * len(addresses))(*addresses)

    def load(self, function: CFuncPtr) -> None:
        """Set the C function, which `run` calls."""
        self.function = function
        self.run = partial(function, ctypes.c_void_p(ctypes.addressof(self.table)))


def emitter_of(each: Call) -> Callable[[Call, Pointers], str] | None:
    return next((emit for function, emit in EMITTERS if each.function == function), None)


def emitted(
    calls: Sequence[Call], loops: dict[str, str], last_uses: Sequence[int] | None = None
) -> list[CFunction | Call]:
    """Return C functions, and the calls between them that have no C code. Adds the loops that they share. What no call uses
    after a loop (`last_uses` of each call's result) is not stored."""
    found: list[CFunction | Call] = []
    pointers, group, parts = Pointers(loops), list[Call](), list[str | Loop]()

    def close() -> None:
        nonlocal pointers, group, parts
        if group:
            text = "".join(x if isinstance(x, str) else x.text(pointers) for x in parts)
            found.append(CFunction(group, text, pointers))
        pointers, group, parts = Pointers(loops), [], []

    for i, each in enumerate(calls):
        try:
            emit = emitter_of(each)
            if emit is not None:
                parts.append(emit(each, pointers))
            else:
                shape, statement = statement_of(each)
                last = parts[-1] if parts else None
                until = len(calls) if last_uses is None else last_uses[i]
                if not (isinstance(last, Loop) and last.takes(shape, statement, i, until)):
                    parts.append(Loop(shape, statement, i, until))
            group.append(each)
        except (Unemittable, TypeError, ValueError):
            close()
            found.append(each)
    close()
    return found


def sums_in_products(calls: Sequence[Call], kept: Container[int] = ()) -> list[Call]:
    """Return the calls with each product of matrices, to which something is added, as one call.

    So a bias needs no second pass over the result, and the gradient of a weight that is used at every step of a sequence is
    summed where it is computed. The results have the same bits. `kept` are blocks of memory that others read.
    """
    touched = [accesses(each) for each in calls]
    uses: dict[int, list[int]] = {}
    for i, found in enumerate(touched):
        for block in {a.block for a in found}:
            uses.setdefault(block, []).append(i)

    def written_between(x: Memory, start: int, stop: int) -> bool:
        block = owned(x).start
        return any(start <= i < stop and any(a.written and a.block == block for a in touched[i]) for i in uses[block])

    result, dropped = list(calls), set[int]()
    for j, each in enumerate(calls):
        for k in (0, 1) if each.function is np.add and len(each.args) == 3 else ():
            product, added, out = each.args[k], each.args[1 - k], each.args[2]
            block = owned(product).start
            earlier = [i for i in uses[block] if i < j]
            if not (len(earlier) == 1 and joinable(calls[earlier[0]], product, added, out)):
                continue
            i = earlier[0]
            a, b, _ = calls[i].args
            only_here = uses[block] == [i, j] and block not in kept
            if (same_entries(out, product) or only_here) and not any(written_between(x, i, j) for x in (a, b, added)):
                result[j] = call_of(product_and_sum, a, b, added, out)
                dropped.add(i)
                break
    return [each for i, each in enumerate(result) if i not in dropped]


def joinable(each: Call, product: Array, added: Array, out: Array) -> bool:
    """Whether a call is a product of matrices, with this result, that the C code can add something to."""
    if each.function is not np.dot or not same_entries(each.args[2], product) or 0 in product.shape:
        return False
    a, b, _ = each.args
    floats = all(x.dtype == np.float32 for x in (a, b, added, out))
    whole = product.ndim == a.ndim == b.ndim == 2 and product.flags.c_contiguous and out.shape == product.shape
    separate = not (np.may_share_memory(out, a) or np.may_share_memory(out, b)) and apart(added, out)
    return floats and whole and 0 < a.shape[1] <= DEPTH and separate and out.flags.c_contiguous


def apart(added: Array, out: Array) -> bool:
    """Whether writing `out` changes nothing of `added` that is still to be read."""
    return same_entries(added, out) or not np.may_share_memory(added, out)


def same_entries(a: Array, b: Array) -> bool:
    """Whether two arrays are the same entries in the same order."""
    return a.shape == b.shape and a.strides == b.strides and span(a) == span(b)


def source(functions: Sequence[CFunction], loops: dict[str, str]) -> str:
    """Return the C file of these functions and the loops that they share."""
    shared = [f"LOOP void {name}{text}" for text, name in loops.items()]
    bodies = [f"void f{i}(char *const *p) {{\n{x.text}}}\n" for i, x in enumerate(functions)]
    return "\n".join([Path(__file__).with_name("prelude.h").read_text(), *shared, *bodies])


class Machine:
    """Calls that run as C functions, with Python calls in between."""

    def __init__(self, lists: Sequence[list[Call]], last_uses: Sequence[list[int] | None], exact: bool) -> None:
        """`lists` are lists of calls, compiled together. Raises NotCompiled."""
        if sum(map(len, lists)) > MAX_CALLS:
            raise NotCompiled("too many calls")
        loops: dict[str, str] = {}
        parts = [emitted(calls, loops, last) for calls, last in zip(lists, last_uses, strict=True)]
        functions = [x for part in parts for x in part if isinstance(x, CFunction)]
        library = compiled(source(functions, loops), exact)
        for i, x in enumerate(functions):
            x.load(getattr(library, f"f{i}"))
        self.kept = functions
        self.runs = [sequence(part) for part in parts]
        self.single = [part[0] if len(part) == 1 and isinstance(part[0], CFunction) else None for part in parts]


def sequence(parts: Sequence[CFunction | Call]) -> Run:
    """Return a function that runs all parts in order."""
    steps = [x.run if isinstance(x, CFunction) else runner([x]) for x in parts]
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run
