"""The source of a Triton kernel that runs the program of a row for every row of its tensors. The text is plain: nothing is
compiled, and Triton is not needed here."""

from __future__ import annotations

from collections.abc import Mapping

from .call import Unrecordable
from .per_row import Node, RowProgram

TYPES = {
    "f4": "float32",
    "f8": "float64",
    "i4": "int32",
    "i8": "int64",
    "i2": "int16",
    "i1": "int8",
    "u1": "uint8",
    "b1": "int1",
}
OF_ALL = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "-{0}", "abs": "tl.abs({0})", "eq": "{0} == {1}",
    "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "where": "tl.where({0}, {1}, {2})", "sign": "row_sign({0})",
}  # fmt: skip
OF_TRUTH = {
    "and": "{0} & {1}", "or": "{0} | {1}", "not": "~{0}", "max": "{0} | {1}", "min": "{0} & {1}", "add": "{0} | {1}",
    "mul": "{0} & {1}", "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "~{0} & {1}", "le": "~{0} | {1}",
    "gt": "{0} & ~{1}", "ge": "{0} | ~{1}", "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
OF_WHOLE = {
    "min": "tl.minimum({0}, {1})", "max": "tl.maximum({0}, {1})", "remainder": "row_whole_remainder({0}, {1})",
    "floordiv": "row_whole_quotient({0}, {1})", "fmod": "{0} % {1}",
}  # fmt: skip
OF_FLOATS = {
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})", "exp": "tl.exp({0})",
    "log": "tl.log({0})", "erf": "tl.erf({0})", "isnan": "{0} != {0}",
    "remainder": "row_remainder({0}, {1})", "tan": "tl.sin({0}) / tl.cos({0})",
} | {name: f"row_{name}({{0}})" for name in (
    "isinf", "trunc", "round", "tanh", "expm1", "log1p", "log2", "log10", "asin", "acos", "atan", "sinh", "cosh",
)} | {name: f"row_{name}({{0}}, {{1}})" for name in (
    "floordiv", "fmod", "pow", "hypot", "atan2",
)}  # fmt: skip
OF_SINGLE = OF_FLOATS | {"div": "tl.div_rn({0}, {1})", "sqrt": "tl.sqrt_rn({0})"}
OF_DOUBLE = OF_FLOATS | {"div": "{0} / {1}", "sqrt": "tl.sqrt({0})"}
EITHER = {"min": "row_smaller({0}, {1})", "max": "row_larger({0}, {1})"}
EXPRESSIONS = {
    "f4": OF_ALL | OF_SINGLE | EITHER, "f8": OF_ALL | OF_DOUBLE | EITHER, "b1": OF_TRUTH,
    **dict.fromkeys(("i1", "i2", "i4", "i8", "u1"), OF_ALL | OF_WHOLE),
}  # fmt: skip
SMALL_POWERS = ("3", "4", "3.0", "4.0")  # a square is a product already
HEAD = """\
@triton.jit(do_not_specialize=[{names}])
def row_kernel({parameters}, rows, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < rows
"""


def kernel_source(program: RowProgram, places: Mapping[str, str], order: tuple[str, ...]) -> str:
    """Return the source. The parameters of the kernel are the tensors of `order`; `places` are where column `k` of row `n` of a
    tensor is, as an expression. Every number is read before one is written."""
    body = [f"v{i} = {expression(program.nodes, node, places)}" for i, node in enumerate(program.nodes)]
    for name, line in program.results.items():
        for k, i in enumerate(line):
            node = program.nodes[i]
            if node == Node("input", node.dtype, (name, k)):
                continue  # not changed
            value = f"v{i}.to(tl.uint8)" if node.dtype == "b1" else f"v{i}"
            body.append(f"tl.store({name} + {places[name].format(k=k)}, {value}, mask=inside)")
    names = ", ".join(
        f'"{name}"' for name in (*order, "rows")
    )  # or each alignment of a row would be compiled for itself
    return HEAD.format(names=names, parameters=", ".join(order)) + "".join(f"    {line}\n" for line in body)


def expression(nodes: list[Node], node: Node, places: Mapping[str, str]) -> str:
    """Return one number of a row, for all rows of a block."""
    if node.dtype not in TYPES:
        raise Unrecordable(f"numbers of type {node.dtype} are not known in a kernel")
    kind = f"tl.{TYPES[node.dtype]}"
    if node.name == "constant":
        value = str(node.args[0])
        finite = value.strip("-") not in ("inf", "nan")
        return f"tl.full([BLOCK], {value if finite else f'float({value!r})'}, {kind})"
    if node.name == "input":
        name, column = node.args
        loaded = f"tl.load({name} + {places[str(name)].format(k=column)}, mask=inside, other=0)"
        return f"{loaded} != 0" if node.dtype == "b1" else loaded
    operands = [int(str(x)) for x in node.args]
    given = [f"v{i}" for i in operands]
    of = nodes[operands[-1]].dtype
    if node.name == "cast":
        return f"{given[0]} != 0" if node.dtype == "b1" else f"{given[0]}.to({kind})"
    if node.name in ("and", "or", "not") and of != "b1":
        given = [f"({x} != 0)" for x in given]
        of = "b1"
    if node.name == "pow" and str(nodes[operands[1]].args[0]) in SMALL_POWERS:
        return " * ".join([given[0]] * int(float(str(nodes[operands[1]].args[0]))))
    if node.name not in EXPRESSIONS[of]:
        raise Unrecordable(f"{node.name} of {TYPES[of]} is not known in a kernel")
    return EXPRESSIONS[of][node.name].format(*given)
