"""C code for elementwise calls. Consecutive calls over one shape become one loop, in which results stay in registers."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from .call import Array, Call, Function, Span, span
from .elementwise import array_erf
from .pointers import TYPES, Pointers, Unemittable, c_type

SAME: dict[object, str] = {  # arguments and result have one type
    np.add: "{0} + {1}", np.subtract: "{0} - {1}", np.multiply: "{0} * {1}", np.maximum: "LARGER({0}, {1})",
    np.minimum: "SMALLER({0}, {1})", np.negative: "-{0}", np.sign: "({0} > 0) - ({0} < 0)",
    np.absolute: "({0} < 0 ? -{0} : {0})",
}  # fmt: skip
FLOATS: dict[object, str] = SAME | {
    np.absolute: "fabs{s}({0})", np.true_divide: "{0} / {1}", np.reciprocal: "1 / {0}", np.sqrt: "sqrt{s}({0})",
    np.exp: "exp{f}({0})", np.expm1: "expm1{f}({0})", np.log: "log{f}({0})", np.log1p: "log1p{f}({0})",
    np.tanh: "tanh{f}({0})", array_erf: "erf{f}({0})", np.remainder: "remainder_f({0}, {1})",
}  # fmt: skip
BITS: dict[object, str] = {np.bitwise_and: "{0} & {1}", np.bitwise_or: "{0} | {1}", np.bitwise_xor: "{0} ^ {1}"}
TESTS: dict[object, str] = {  # the result is a truth value, possibly stored as a number
    np.greater: "{0} > {1}", np.greater_equal: "{0} >= {1}", np.less: "{0} < {1}", np.less_equal: "{0} <= {1}",
    np.equal: "{0} == {1}", np.not_equal: "{0} != {1}", np.logical_and: "{0} && {1}", np.logical_or: "{0} || {1}",
    np.logical_not: "!{0}",
}  # fmt: skip
SHORT = 8  # entries of the last axis, below which the longest axis becomes the inner loop


class LoopView(NamedTuple):
    """An operand, without axes of length 1."""

    start: int
    strides: tuple[int, ...]  # in bytes
    dtype: str
    span: Span


class Statement(NamedTuple):
    """One elementwise call: `out` = `expression` of the inputs, only where the mask is true if there is one."""

    expression: str
    inputs: tuple[LoopView, ...]
    out: LoopView
    mask: LoopView | None

    @property
    def reads(self) -> tuple[LoopView, ...]:
        return self.inputs if self.mask is None else (*self.inputs, self.mask, self.out)


def view_of(x: Array, shape: tuple[int, ...]) -> LoopView:
    """Return an operand broadcast to a shape."""
    c_type(x)
    where, strides = span(x), np.broadcast_to(x, shape).strides
    return LoopView(
        where.start, tuple(s for s, n in zip(strides, shape, strict=True) if n != 1), x.dtype.str[1:], where
    )


def statement_of(each: Call) -> tuple[tuple[int, ...], Statement]:
    """Return the shape and the statement of an elementwise call."""
    mask = None
    if each.function is np.copyto:
        out, given = each.args[0], [each.args[1]]
        mask = each.args[3] if len(each.args) > 3 else None
        expression = "{0} != 0" if out.dtype == bool else "{0}"
    elif isinstance(each.function, np.ufunc) or each.function is array_erf:
        *given, out = each.args
        expression = expression_of(each.function, [x.dtype for x in given], out.dtype)
    else:
        raise Unemittable(each.function)
    if not all(isinstance(x, np.ndarray) for x in (*given, out)):
        raise Unemittable(each.function)
    views = tuple(view_of(x, out.shape) for x in given)
    masked = None if mask is None else view_of(np.asarray(mask), out.shape)
    shape = tuple(n for n in out.shape if n != 1)
    made = Statement(expression, views, view_of(out, out.shape), masked)
    if out.size == 0 or any(clash(x, made.out) for x in made.reads):
        raise Unemittable(each.function)
    return shape, made


def expression_of(function: Function, given: Sequence[np.dtype[np.generic]], out: np.dtype[np.generic]) -> str:
    if len(set(given)) != 1:
        raise Unemittable(function)
    kind = given[0].kind
    if function in TESTS:
        return TESTS[function]
    if given[0] != out:
        raise Unemittable(function)
    if kind == "b" and function is np.bitwise_not:
        return "!{0}"
    table = FLOATS if kind == "f" else SAME if kind == "i" else {}
    if kind in "bi":
        table = table | BITS
    if function not in table:
        raise Unemittable(function)
    single = out == np.float32
    if function is np.remainder and not single:
        raise Unemittable(function)
    return table[function].replace("{s}", "f" if single else "").replace("{f}", "_f4" if single else "")


def clash(a: LoopView, b: LoopView) -> bool:
    """Whether two operands share memory without being the same entries in the same order."""
    if a.start == b.start and a.strides == b.strides and a.dtype == b.dtype:
        return False
    if a.span.end <= b.span.start or b.span.end <= a.span.start:
        return False
    if (
        len(a.strides) == 1 and a.strides == b.strides and a.strides[0] > 0 and a.dtype == b.dtype
    ):  # columns of a matrix
        apart = (b.start - a.start) % a.strides[0]
        return not int(a.dtype[1]) <= apart <= a.strides[0] - int(a.dtype[1])
    return True


class Loop:
    """Elementwise calls over one shape. `before` are calls of single numbers, which may be done before the loop. Each call has
    a place among all calls, and the place of the last one that uses its result."""

    def __init__(self, shape: tuple[int, ...], first: Statement, place: int, last_use: int) -> None:
        self.shape = shape
        self.before: list[Statement] = []
        self.statements = [first]
        self.end, self.last_uses = place, {first.out: last_use}

    def takes(self, shape: tuple[int, ...], new: Statement, place: int, last_use: int) -> bool:
        """Add a statement if it may be done in this loop."""
        written = [x.out for x in self.statements]
        if shape == self.shape:
            read = [v for x in self.statements for v in x.reads]
            if any(clash(x, y) for x in new.reads for y in written) or any(
                clash(new.out, x) for x in (*read, *written)
            ):
                return False
            self.statements.append(new)
            self.end, self.last_uses[new.out] = place, last_use
            return True
        if shape:
            return False
        touched = [*written, *(v for x in self.statements for v in x.reads)]
        if any(overlapping(x, y) for x in new.reads for y in written) or any(overlapping(new.out, x) for x in touched):
            return False
        self.before.append(new)
        return True

    def text(self, pointers: Pointers) -> str:
        numbers = "".join(body((), [x], pointers) for x in self.before)
        unused = {view for view, last in self.last_uses.items() if last <= self.end}
        return numbers + body(self.shape, self.statements, pointers, unused)


def overlapping(a: LoopView, b: LoopView) -> bool:
    return a.span.start < b.span.end and b.span.start < a.span.end


def merged(shape: tuple[int, ...], views: Sequence[LoopView]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the shape, and the strides of each view, with axes joined that are contiguous in all views."""
    lengths, strides = list(shape), [list(v.strides) for v in views]
    for axis in range(len(lengths) - 2, -1, -1):
        if all(s[axis] == s[axis + 1] * lengths[axis + 1] for s in strides):
            lengths[axis : axis + 2] = [lengths[axis] * lengths[axis + 1]]
            for s in strides:
                del s[axis]
    return tuple(lengths), [tuple(s) for s in strides]


def body(
    shape: tuple[int, ...], statements: Sequence[Statement], pointers: Pointers, unused: Container[LoopView] = ()
) -> str:
    """Return one loop nest. Every operand is read once and written once, but for `unused` results, which nothing reads
    afterwards. Equal nests share one C function."""
    touched, made = dict[LoopView, None](), set[LoopView]()
    for each in statements:
        touched |= dict.fromkeys(v for v in each.reads if v not in made)
        touched |= {} if each.out in unused else {each.out: None}
        made.add(each.out)
    views = list(touched)
    lengths, strides = merged(shape, views)
    order = list(range(len(lengths)))
    if lengths and lengths[-1] < SHORT:
        order.sort(key=lambda axis: lengths[axis])
    before, lines, names, final = [], [], {}, {}
    places = {}
    for i, (view, steps) in enumerate(zip(views, strides, strict=True)):
        kind, size = TYPES[view.dtype], int(view.dtype[1])
        before.append(f"{kind} *restrict a{i} = ({kind} *)q{i};")
        terms = " + ".join(f"i{axis} * {s // size}" for axis, s in enumerate(steps) if s)
        places[view] = f"a{i}[{terms or '0'}]"
        if not any(steps) and shape:  # one number for the whole loop
            before.append(f"const {kind} c{i} = *a{i};")
            names[view] = f"c{i}"

    def value(view: LoopView) -> str:
        if view not in names:
            names[view] = f"x{len(names)}_"
            lines.append(f"const {TYPES[view.dtype]} {names[view]} = {places[view]};")
        return names[view]

    for k, each in enumerate(statements):
        kind = TYPES[each.out.dtype]
        found = each.expression.format(*(value(x) for x in each.inputs))
        if each.mask is not None:
            found = f"{value(each.mask)} ? ({kind})({found}) : {value(each.out)}"
        lines.append(f"const {kind} y{k} = {found};")
        names[each.out] = f"y{k}"
        if each.out not in unused:
            final[each.out] = f"{places[each.out]} = y{k};"
    inner = " ".join([*lines, *final.values()])
    heads = [f"for (long i{axis} = 0; i{axis} < {lengths[axis]}; i{axis}++)" for axis in order]
    if heads:
        heads[-1] = f"INDEPENDENT {heads[-1]}"
    text = "{ " + " ".join([*before, *heads]) + "\n  { " + inner + " } }\n"
    return pointers.call(text, [view.start for view in views])
