"""A recording as a program on the numbers of one row, for functions that treat all rows of their tensors alike.

Each number is tracked by its address in memory. So views, selected columns, stacked columns and sums along a row
need no code of their own. The program of each row is what its results depend on, and must be the same for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .call import Array, Call, Unrecordable, array
from .memory import needed
from .names import BITS, ELEMENT, PRODUCTS, REDUCED

MAX_NODES = 4000  # of the program of a row
MAX_TABLE = 64  # numbers among which an index may choose
FOLDED = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "any": "or", "all": "and"}
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Node(NamedTuple):
    """One number: an input (its name, the column), a constant, or an operation on other nodes."""

    name: str
    dtype: str  # as NumPy abbreviates it: f4, i8, b1
    args: tuple[object, ...]


class RowProgram(NamedTuple):
    nodes: list[Node]  # operations come after the nodes that they use
    results: dict[str, list[int]]  # the nodes of one row of each result


def row_program(
    calls: Sequence[Call], inputs: dict[str, Tensor], shared: dict[str, Tensor], results: dict[str, Tensor]
) -> RowProgram:
    """Return the program of these calls for one row. `inputs`, which the calls may write too, and `results` are by row;
    `shared` tensors are not. All other memory that they only read is constant. Raises Unrecordable."""
    found = Numbered(inputs, shared)
    for each in needed(calls, [*results.values()]):
        found.add(each)
    programs = found.programs(results)
    first = next(programs)
    if any(other != first for other in programs):
        raise Unrecordable("it does not treat all environments alike")
    return first


def numpy(x: object) -> Array:
    return array(x) if isinstance(x, Tensor) else np.asarray(x)


def addresses(x: Array) -> Numbers:
    """Return the address of each number."""
    at: Numbers = np.array(x.__array_interface__["data"][0], np.int64)
    for length, stride in zip(x.shape, x.strides, strict=True):
        at = at[..., None] + np.arange(length, dtype=np.int64) * stride
    return at


def type_of(x: Array) -> str:
    return x.dtype.str[1:]


class Numbered:
    """All numbers of a recording as numbered nodes, those of all rows."""

    def __init__(self, inputs: dict[str, Tensor], shared: dict[str, Tensor]) -> None:
        self.nodes: list[Node] = []
        self.numbers: dict[Node, int] = {}
        self.held: dict[int, int] = {}  # the node at an address
        self.rows = len(next(iter(inputs.values())))
        for name, x in inputs.items():
            for row, part in enumerate(addresses(array(x))):
                self._hold(part, (Node("input", type_of(array(x)), (name, k, row)) for k in range(part.size)))
        for name, x in shared.items():
            at = addresses(array(x))
            self._hold(at, (Node("input", type_of(array(x)), (name, k)) for k in range(at.size)))

    def _hold(self, at: Numbers, nodes: Iterable[Node]) -> None:
        self.held.update(zip(at.reshape(-1).tolist(), map(self.number, nodes), strict=True))

    # nodes -------------------------------------------------------------------------------------------------------------

    def number(self, node: Node) -> int:
        """The number of a node; equal nodes have one number."""
        found = self.numbers.setdefault(node, len(self.nodes))
        if found == len(self.nodes):
            if found > MAX_NODES * self.rows:
                raise Unrecordable(f"it needs more than {MAX_NODES:,} operations for one environment")
            self.nodes.append(node)
        return found

    def node(self, name: str, dtype: str, *args: int) -> int:
        return self.number(Node(name, dtype, args))

    def constant(self, value: object, dtype: str) -> int:
        return self.number(Node("constant", dtype, (repr(np.asarray(value).astype(dtype).item()),)))

    def cast(self, given: int, dtype: str) -> int:
        return given if self.nodes[given].dtype == dtype else self.node("cast", dtype, given)

    def folded(self, name: str, terms: Iterable[int], dtype: str) -> int:
        return reduce(lambda a, b: self.node(name, dtype, a, b), [self.cast(int(x), dtype) for x in terms])

    # calls -------------------------------------------------------------------------------------------------------------

    def read(self, x: object) -> Numbers:
        """The nodes of an operand's numbers. Memory that is never written holds constants."""
        given = numpy(x)
        kind = type_of(given)

        def node_at(address: int, value: object) -> int:
            found = self.held.get(address)
            if found is None:
                return self.constant(value, kind)
            if self.nodes[found].dtype != kind:
                raise Unrecordable("memory is read as numbers of another type")
            return found

        found = [
            node_at(*each)
            for each in zip(addresses(given).reshape(-1).tolist(), given.reshape(-1).tolist(), strict=True)
        ]
        return np.array(found, np.int64).reshape(given.shape)

    def add(self, each: Call) -> None:
        """Follow one call."""
        if len(each.written) != 1 or len(each.outputs) != 1:
            raise Unrecordable(f"{function_name(each.function)} is not known in a kernel")
        out = numpy(each.outputs[0])
        made = self.results(each, out)
        self.held.update(zip(addresses(out).reshape(-1).tolist(), map(int, made), strict=True))

    def results(self, each: Call, out: Array) -> list[int]:
        """The nodes that a call writes to `out`."""
        function, args, kind = each.function, each.args, type_of(out)
        if function is np.copyto:
            given = [self.cast(x, kind) for x in self.flat(args[1], out)]
            if len(args) < 4:
                return given
            masks, before = (self.cast(x, "b1") for x in self.flat(args[3], out)), self.flat(out, out)
            return [self.node("where", kind, *three) for three in zip(masks, given, before, strict=True)]
        if function in BITS and kind != "b1":
            raise Unrecordable("it combines the bits of whole numbers")
        if function is np.reciprocal:
            return [self.node("div", kind, self.constant(1, kind), x) for x in self.flat(args[0], out)]
        if (name := ELEMENT.get(function) or BITS.get(function)) is not None:
            operands = zip(*(self.flat(x, out) for x in args[:-1]), strict=True)
            return [self.node(name, kind, *x) for x in operands]
        if function in PRODUCTS:
            return self.product(self.read(args[0]), self.read(args[1]), kind)
        if function in REDUCED or function is torch.sum:
            return self.reduced(REDUCED.get(function, "sum"), self.read(args[0]), args[1], out)
        if function == np.add.accumulate:
            x = np.moveaxis(self.read(args[0]), args[1], -1)
            sums = [
                self.folded("add", line[: k + 1], kind) for line in x.reshape(-1, x.shape[-1]) for k in range(len(line))
            ]
            return np.moveaxis(np.array(sums).reshape(x.shape), -1, args[1]).reshape(-1).tolist()
        if function is np.take:
            table = self.read(args[0]).reshape(-1).tolist()
            return [self.chosen(table, at, kind) for at in self.flat(args[1], out)]
        raise Unrecordable(f"{function_name(function)} is not known in a kernel")

    def flat(self, x: object, out: Array) -> list[int]:
        """The nodes of an operand, broadcast to the shape of the result."""
        return np.broadcast_to(self.read(x), out.shape).reshape(-1).tolist()

    def product(self, a: Numbers, b: Numbers, kind: str) -> list[int]:
        """Matrices, vectors, or stacks of matrices: sums of products, without factors that are 1, as in the sum of a row."""
        left, right = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
        lines, columns = left[..., :, None, :], np.swapaxes(right, -1, -2)[..., None, :, :]
        shape = np.broadcast_shapes(lines.shape, columns.shape)
        one = self.constant(1, kind)
        sums = []
        pairs = (np.broadcast_to(x, shape).reshape(-1, shape[-1]).tolist() for x in (lines, columns))
        for line, column in zip(*pairs, strict=True):
            terms = [
                y if x == one else x if y == one else self.node("mul", kind, x, y)
                for x, y in zip(line, column, strict=True)
            ]
            sums.append(self.folded("add", terms, kind) if terms else self.constant(0, kind))
        return sums

    def reduced(self, name: str, x: Numbers, given: int | Sequence[int] | None, out: Array) -> list[int]:
        """A sum or another reduction over some axes."""
        dims = range(x.ndim) if given is None else [given] if isinstance(given, int) else given
        axes = [d % x.ndim for d in dims]
        order = [d for d in range(x.ndim) if d not in axes] + axes
        lines = x.transpose(order).reshape(out.size, -1).tolist()
        if name in FOLDED:
            return [self.folded(FOLDED[name], line, type_of(out)) for line in lines]
        return [self.position("gt" if name == "argmax" else "lt", line, type_of(out)) for line in lines]

    def position(self, better: str, terms: list[int], kind: str) -> int:
        """Where the largest or smallest term is, the first of them if there are several."""
        best, at = terms[0], self.constant(0, kind)
        for k, term in enumerate(terms[1:], 1):
            found = self.node(better, "b1", term, best)
            best = self.node("where", self.nodes[term].dtype, found, term, best)
            at = self.node("where", kind, found, self.constant(k, kind), at)
        return at

    def chosen(self, table: list[int], at: int, kind: str) -> int:
        """The number of a table at an index, which is clipped to the table, as torch.take would fail beyond it."""
        if self.nodes[at].name == "constant":
            return table[int(str(self.nodes[at].args[0]))]
        if len(table) > MAX_TABLE:
            raise Unrecordable(f"it looks up numbers in a table of {len(table):,}")
        found = table[-1]
        for k in range(len(table) - 2, -1, -1):
            here = self.node("le", "b1", at, self.constant(k, self.nodes[at].dtype))
            found = self.node("where", kind, here, table[k], found)
        return found

    # rows --------------------------------------------------------------------------------------------------------------

    def programs(self, results: dict[str, Tensor]) -> Iterator[RowProgram]:
        """The program of each row."""
        lines = {name: self.read(x).reshape(self.rows, -1).tolist() for name, x in results.items()}
        for row in range(self.rows):
            yield self.program({name: line[row] for name, line in lines.items()}, row)

    def program(self, wanted: dict[str, list[int]], row: int) -> RowProgram:
        """The nodes on which results depend, in an order that follows from the results alone."""
        places = dict[int, int]()
        waiting = [x for line in reversed(wanted.values()) for x in reversed(line)]
        while waiting:
            k = waiting[-1]
            before = [x for x in self.operands(k) if x not in places]
            if k in places or not before:
                waiting.pop()
                places.setdefault(k, len(places))
            else:
                waiting += reversed(before)
        nodes = [self.in_row(self.nodes[k], places, row) for k in places]
        return RowProgram(nodes, {name: [places[k] for k in line] for name, line in wanted.items()})

    def operands(self, k: int) -> list[int]:
        node = self.nodes[k]
        return [] if node.name in ("input", "constant") else [int(str(x)) for x in node.args]

    def in_row(self, node: Node, places: dict[int, int], row: int) -> Node:
        """A node as part of the program of a row."""
        if node.name == "input":
            if node.args[2:] not in ((), (row,)):
                raise Unrecordable("it mixes environments")
            return node._replace(args=node.args[:2])
        return node if node.name == "constant" else node._replace(args=tuple(places[k] for k in node.args))  # type: ignore[index]


def function_name(function: object) -> str:
    return str(getattr(function, "__name__", function))
