"""C code for products of matrices, sums, maxima, indexing and torch's own sine, cosine, exponential and tanh."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .call import Array, Call, array
from .compiler import VARIABLE, NotCompiled, compiled, compiler_command
from .pointers import Pointers, Unemittable, c_type
from .reductions import product_and_sum, put

LANES = 16  # floats of the widest vector
NARROW = 8  # columns, below which vectors run along the inner axis
NO_COMPILER = "there is no C compiler, such as gcc"
ROOM = "(float *)p[0]"
TINY = 8  # terms of a sum, below which it is computed entry by entry
VECTOR_MATH: dict[object, str] = {
    torch.sin: "vmsSin",
    torch.cos: "vmsCos",
    torch.exp: "vmsExp",
    torch.tanh: "vmsTanh",
    torch.log: "vmsLn",
}
VML_MODE = 0x2 | 0x100 | 0x140000  # highest accuracy, no errors, denormal numbers kept: as torch calls them


def product_of(each: Call, pointers: Pointers) -> str:
    """A product of matrices, of a matrix and a vector, or of a stack of matrices."""
    a, b, out = (x if isinstance(x, np.ndarray) else array(x) for x in each.args)
    if not a.dtype == b.dtype == out.dtype == np.float32 or 0 in (a.size, b.size, out.size):
        raise Unemittable(each.function)
    if max(a.ndim, b.ndim, out.ndim) == 3:
        return stacked_product(a, b, out, pointers)
    a, b = np.atleast_2d(a), b.reshape(-1, 1) if b.ndim == 1 else b
    shaped = out.reshape(len(a), b.shape[1])
    if not np.shares_memory(shaped, out):
        raise Unemittable(each.function)
    return matrix_product(a, b, shaped, pointers)


def product_and_sum_of(each: Call, pointers: Pointers) -> str:
    """A product of matrices plus a matrix, or plus a vector for each row."""
    a, b, added, out = each.args
    return matrix_product(a, b, out, pointers, np.broadcast_to(added, out.shape))


def stacked_product(a: Array, b: Array, out: Array, pointers: Pointers) -> str:
    """Several products, which are one if the second factor is the same and the rows follow each other."""
    if b.ndim == 2 and all(x.strides[0] == x.strides[1] * x.shape[1] for x in (a, out)):
        flat = [np.lib.stride_tricks.as_strided(x, (len(x) * x.shape[1], x.shape[2]), x.strides[1:]) for x in (a, out)]
        return matrix_product(flat[0], b, flat[1], pointers)
    if a.ndim != 3 or out.ndim != 3:
        raise Unemittable("matmul")
    return "".join(matrix_product(x, b if b.ndim == 2 else b[i], out[i], pointers) for i, x in enumerate(a))


class Matrix(NamedTuple):
    """A matrix in C code, with strides in floats."""

    at: str
    down: int
    across: int
    rows: int
    columns: int

    @property
    def where(self) -> str:
        return f"{self.at}, {self.down}, {self.across}"

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.at, self.across, self.down, self.columns, self.rows)


def matrix_product(a: Array, b: Array, out: Array, pointers: Pointers, plus: Array | None = None) -> str:
    """Choose along which axis vectors run: along the columns of the result, its rows, or the inner axis. `plus` is added."""
    left, right, to = (matrix(x, pointers) for x in (a, b, out))
    added = None if plus is None else matrix(plus, pointers)
    rows, inner, columns = left.rows, left.columns, right.columns
    after = "" if added is None else f"add_to({rows}, {columns}, {added.where}, {to.where});\n"
    if inner < TINY and columns < NARROW:
        return f"products_by_entry({rows}, {columns}, {inner}, {left.where}, {right.where}, {to.where});\n{after}"
    pointers.room = max(pointers.room, 2 * inner * columns + (inner + max(rows, columns)) * LANES)
    few = left.down == 1 and columns < min(rows, LANES)
    if right.across == 1 and columns >= NARROW and not few:
        return in_panels(left, right, to, pointers, added)
    if left.down == 1 and rows >= NARROW:
        turned = None if added is None else added.transposed
        return in_panels(right.transposed, left.transposed, to.transposed, pointers, turned)
    copied = ""
    if left.across == 1 and columns < NARROW:
        if right.down != 1:
            copied = f"transposed({columns}, {inner}, {right.transposed.where}, {ROOM});\n"
            right = Matrix(ROOM, 1, inner, inner, columns)
        sizes, places = f"{rows}, {columns}, {inner}", f"{left.at}, {left.down}, {right.at}, {right.across}, {to.where}"
        return f"{copied}{kernel_call(pointers, 'dots')}({sizes}, {places});\n{after}"
    if right.across != 1:
        copied = f"transposed({inner}, {columns}, {right.where}, {ROOM});\n"
        right = Matrix(ROOM, columns, 1, inner, columns)
    return copied + in_panels(left, right, to, pointers, added, inner * columns)


def matrix(x: Array, pointers: Pointers) -> Matrix:
    """Return a matrix in C code. The stride of an axis of length 1 does not matter, and is 1 here."""
    down, across = (1 if n == 1 else step // x.itemsize for n, step in zip(x.shape, x.strides, strict=True))
    return Matrix(pointers.to(x), down, across, *x.shape)


def in_panels(left: Matrix, right: Matrix, to: Matrix, pointers: Pointers, added: Matrix | None, used: int = 0) -> str:
    """Return a product in which vectors run along the columns of the result. `used` is the part of the room that is taken."""
    sizes, plus = f"{left.rows}, {right.columns}, {left.columns}", "0, 0, 0" if added is None else added.where
    places = f"{left.where}, {right.at}, {right.down}, {to.where}, {plus}, {ROOM} + {used}"
    return f"{kernel_call(pointers, 'product')}({sizes}, {places});\n"


def kernel_call(pointers: Pointers, name: str) -> str:
    """Return C code for a function of kernels.c."""
    return f"(({name}_f *){pointers.at(kernel(name))})"


@functools.cache
def kernel(name: str) -> int:
    """Return the address of a function of kernels.c. Raise NotCompiled."""
    library = compiled(Path(__file__).with_name("kernels.c").read_text(), exact=False)
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def why_not_compiled() -> str | None:
    """Return why recordings cannot be compiled on this machine, or None if they can, after the first compilation."""
    if not compiler_command():
        return f"{VARIABLE} is {os.environ[VARIABLE]}" if os.environ.get(VARIABLE, "").strip() else NO_COMPILER
    try:
        kernel("product")
    except NotCompiled as error:
        return str(error)
    return None


def torch_sum(each: Call, pointers: Pointers) -> str:
    """The sum of a matrix over one axis."""
    a, axis, out = array(each.args[0]), each.args[1], array(each.args[2])
    if a.ndim != 2 or a.dtype != np.float32 or out.dtype != np.float32 or not out.flags.c_contiguous or not a.size:
        raise Unemittable(each.function)
    (rows, columns), (down, across) = a.shape, (x // 4 for x in a.strides)
    if axis % 2 == 1:  # the sum of each row is the sum over the columns of the transposed matrix
        rows, columns, down, across = columns, rows, across, down
    if across != 1:
        raise Unemittable(each.function)
    pointers.room = max(pointers.room, (rows + 1) * LANES)
    arguments = f"&one, 0, 0, {pointers.to(a)}, {down}, {pointers.to(out)}, 0, 1, 0, 0, 0, {ROOM}"
    return f"{kernel_call(pointers, 'product')}(1, {columns}, {rows}, {arguments});\n"


@functools.cache
def vml_function(name: str) -> int:
    """Return the address of a function of Intel's vector math in torch, 0 if it has none."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def vector_math(each: Call, pointers: Pointers) -> str:
    """A function that torch computes by Intel's vector math: the same function gives the same bits."""
    a, out = (array(x) for x in each.args)
    address = vml_function(VECTOR_MATH[each.function])
    if (
        not address
        or a.dtype != np.float32
        or out.dtype != np.float32
        or not out.flags.c_contiguous
        or a.shape != out.shape
    ):
        raise Unemittable(each.function)
    if not a.size:
        return ""
    source, copied = pointers.to(a), ""
    if not a.flags.c_contiguous:
        a = a.squeeze()
        if a.ndim > 1:
            raise Unemittable(each.function)
        pointers.room = max(pointers.room, a.size)
        copied, source = f"transposed({a.size}, 1, {source}, {a.strides[0] // 4}, 0, {ROOM});\n", ROOM
    call = f"((void (*)(int, const float *, float *, i64)){pointers.at(address)})"
    return f"{copied}{call}({a.size}, {source}, {pointers.to(out)}, {VML_MODE});\n"


def reduced(each: Call, pointers: Pointers) -> str:
    """A sum or a maximum over some axes, computed number by number."""
    given, axes, _, out, *_ = each.args
    inner = [a % given.ndim for a in ((axes,) if isinstance(axes, int) else axes)]
    outer = [a for a in range(given.ndim) if a not in inner]
    if not given.size or not out.flags.c_contiguous:
        raise Unemittable(each.function)
    flat = out.reshape([given.shape[a] for a in outer])
    largest = each.function == np.maximum.reduce
    if largest and given.dtype != out.dtype:
        raise Unemittable(each.function)
    at, to = offset(given, range(given.ndim)), offset(flat, outer)
    start = f"({{ {' '.join(f'const long i{a} = 0;' for a in inner)} a[{at}]; }})" if largest else "0"
    update = f"s = LARGER(s, a[{at}])" if largest else f"s += a[{at}]"
    head, loops = (
        " ".join(f"for (long i{a} = 0; i{a} < {given.shape[a]}; i{a}++)" for a in axes) for axes in (outer, inner)
    )
    return (
        f"{{ {c_type(given)} *a = {pointers.to(given)}; {c_type(out)} *o = {pointers.to(out)};\n"
        f"  {head} {{ {c_type(out)} s = {start}; {loops} {update}; o[{to}] = s; }} }}\n"
    )


def accumulated(each: Call, pointers: Pointers) -> str:
    """Running sums along one axis."""
    given, along, _, out = each.args
    if given.dtype != out.dtype:
        raise Unemittable(each.function)
    along %= given.ndim
    outer = [a for a in range(given.ndim) if a != along]
    at, to = offset(given, range(given.ndim)), offset(out, range(given.ndim))
    head = " ".join(f"for (long i{a} = 0; i{a} < {given.shape[a]}; i{a}++)" for a in outer)
    return (
        f"{{ {c_type(given)} *a = {pointers.to(given)}, *o = {pointers.to(out)};\n  {head} {{ {c_type(given)} s = 0;"
        f" for (long i{along} = 0; i{along} < {given.shape[along]}; i{along}++) {{ s += a[{at}]; o[{to}] = s; }} }} }}\n"
    )


def offset(x: Array, axes: Iterable[int]) -> str:
    """Return C code for the position of an entry, whose index along axis a is the variable ia."""
    return " + ".join(f"i{a} * {s // x.itemsize}" for a, s in zip(axes, x.strides, strict=True) if s) or "0"


def taken(each: Call, pointers: Pointers) -> str:
    given, at, _, out, mode = each.args
    if mode != "clip" or not all(x.flags.c_contiguous for x in (given, at, out)) or given.dtype != out.dtype:
        raise Unemittable(each.function)
    kind = c_type(out)
    return (
        f"{{ {kind} *a = {pointers.to(given)}, *o = {pointers.to(out)}; i64 *at = {pointers.to(at)};\n"
        f"  for (long i = 0; i < {at.size}; i++)\n"
        f"    o[i] = a[at[i] < 0 ? 0 : at[i] < {given.size} ? at[i] : {given.size - 1}]; }}\n"
    )


def scattered(each: Call, pointers: Pointers) -> str:
    """Zeros, and values at some places. A place outside is left out: it cannot be written."""
    zero, at, values, out = each.args
    if not all(x.flags.c_contiguous for x in (at, values, out)) or not values.dtype == out.dtype == zero.dtype:
        raise Unemittable(each.function)
    kind = c_type(out)
    return (
        f"{{ {kind} *v = {pointers.to(values)}, *o = {pointers.to(out)}; i64 *at = {pointers.to(at)};\n"
        f"  memset(o, 0, {out.nbytes});\n"
        f"  for (long i = 0; i < {at.size}; i++) if (at[i] >= 0 && at[i] < {out.size}) o[at[i]] = v[i]; }}\n"
    )


EMITTERS: tuple[tuple[object, Callable[[Call, Pointers], str]], ...] = (
    (np.dot, product_of), (np.matmul, product_of), (product_and_sum, product_and_sum_of), (torch.sum, torch_sum),
    (np.take, taken), (put, scattered), (np.add.reduce, reduced), (np.maximum.reduce, reduced),
    (np.add.accumulate, accumulated), *((function, vector_math) for function in VECTOR_MATH),
)  # fmt: skip
