"""The table of addresses that emitted C code works on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .call import Array, Memory, array

TYPES = {"f4": "float", "f8": "double", "i8": "i64", "i4": "int", "u1": "u8", "b1": "u8"}


class Unemittable(Exception):
    """There is no C code for this call."""


def c_type(x: Array) -> str:
    """Return the C type of an array's entries."""
    if x.dtype.str[1:] not in TYPES or not x.dtype.isnative or any(s % x.itemsize for s in x.strides):
        raise Unemittable(x.dtype)
    if x.__array_interface__["data"][0] % x.itemsize:
        raise Unemittable("an address that is not aligned")
    return TYPES[x.dtype.str[1:]]


class Pointers:
    """The table of addresses of a C function, numbered in the order of their first use. Entry 0 is free memory.

    `loops` are functions of addresses, by their text: equal loops over different memory are compiled once.
    """

    def __init__(self, loops: dict[str, str]) -> None:
        self.addresses: dict[int, int] = {}
        self.room = 1  # floats of free memory
        self.loops = loops

    def call(self, text: str, addresses: Sequence[int]) -> str:
        """Return C code that calls the function with this body for some addresses, which are q0, q1, ... in it."""
        parameters = ", ".join(f"char *q{i}" for i in range(len(addresses)))
        name = self.loops.setdefault(f"({parameters}) {text}", f"loop{len(self.loops)}")
        return f"{name}({', '.join(map(self.at, addresses))});\n"

    def at(self, address: int) -> str:
        return f"p[{self.addresses.setdefault(address, len(self.addresses) + 1)}]"

    def to(self, x: Memory) -> str:
        """Return C code for a pointer to the first entry of an array or tensor."""
        given = x if not isinstance(x, Tensor) else array(x)
        return f"({c_type(given)} *){self.at(given.__array_interface__['data'][0])}"
