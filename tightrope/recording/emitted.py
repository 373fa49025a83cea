"""Calls as C code. The text holds shapes and strides but no addresses, so that compiled code can be cached.

Calls that have no C code, such as torch operations that NumPy lacks, stay Python calls between C functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .call import Call, runner
from .compiler import NotCompiled, compiled
from .loops import Loop, statement_of
from .pointers import Pointers, Unemittable
from .products import EMITTERS

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

Run = Callable[[], None]
MAX_CALLS = 5000  # of a recording: compiling 1,500 takes about two seconds


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


def emitted(calls: Sequence[Call], loops: dict[str, str]) -> list[CFunction | Call]:
    """Return C functions, and the calls between them that have no C code. Adds the loops that they share."""
    found: list[CFunction | Call] = []
    pointers, group, parts = Pointers(loops), list[Call](), list[str | Loop]()

    def close() -> None:
        nonlocal pointers, group, parts
        if group:
            text = "".join(x if isinstance(x, str) else x.text(pointers) for x in parts)
            found.append(CFunction(group, text, pointers))
        pointers, group, parts = Pointers(loops), [], []

    for each in calls:
        try:
            emit = emitter_of(each)
            if emit is not None:
                parts.append(emit(each, pointers))
            else:
                shape, statement = statement_of(each)
                last = parts[-1] if parts else None
                if not (isinstance(last, Loop) and last.takes(shape, statement)):
                    parts.append(Loop(shape, statement))
            group.append(each)
        except (Unemittable, TypeError, ValueError):
            close()
            found.append(each)
    close()
    return found


def source(functions: Sequence[CFunction], loops: dict[str, str]) -> str:
    """Return the C file of these functions and the loops that they share."""
    shared = [f"LOOP void {name}{text}" for text, name in loops.items()]
    bodies = [f"void f{i}(char *const *p) {{\n{x.text}}}\n" for i, x in enumerate(functions)]
    return "\n".join([Path(__file__).with_name("prelude.h").read_text(), *shared, *bodies])


class Machine:
    """Calls that run as C functions, with Python calls in between."""

    def __init__(self, lists: Sequence[list[Call]], exact: bool) -> None:
        """`lists` are lists of calls, compiled together. Raises NotCompiled."""
        if sum(map(len, lists)) > MAX_CALLS:
            raise NotCompiled("too many calls")
        loops: dict[str, str] = {}
        parts = [emitted(calls, loops) for calls in lists]
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
