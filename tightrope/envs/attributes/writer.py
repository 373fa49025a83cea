"""Writes the attributes of an object as JSON and bytes.

Objects that are met twice, and views of one memory, are written once. What cannot be written is listed by its path, such as
`camera.file`, with the reason.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import values
from .leaf_writer import TOO_LARGE, LeafWriter, Mode
from .values import MAX_DEPTH, CannotSave, Node, attributes_of, generator_state, is_settable

VALUES = frozenset(
    (*(kind.__name__ for kind in values.IMMUTABLES), "int", "float", "tuple", "frozenset", "enum", "flag", "scalar")
)
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class Writer(LeafWriter):
    """Writes all attributes of an object but those in `skip`. `first` is of a fresh environment."""

    def __init__(self, thing: object, skip: frozenset[str], mode: Mode, first: Writer | None = None) -> None:
        super().__init__(thing, mode, first)
        self.names = [name for name, _ in attributes_of(thing) if name not in skip]
        self.gone = [] if first is None or mode == "snapshot" else [x for x in first.names if x not in self.names]
        self.values, _ = self.attributes(thing, "", 0, skip)

    # results -----------------------------------------------------------------------------------------------------------

    def texts(self) -> dict[str, str]:
        return {name: ENCODE(node) for name, node in self.values.items()}

    def tree(self, names: Iterable[str]) -> str:
        """The values under these names as JSON, which `Reader` takes."""
        written = {name: self.values[name] for name in names}
        used = sorted({block for name in written for block in self.blocks_used[name]})
        blocks = {name: [self.owners[name], self.block_mark(name), self.view_counts[name] == 1] for name in used}
        return ENCODE({"values": written, "blocks": blocks, "gone": self.gone})

    def with_links(self, names: Iterable[str]) -> set[str]:
        """These attributes, and those that they share objects or memory with."""
        found, waiting = set[str](), list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.links[name]
        return found

    def block_mark(self, name: str) -> bool | int:
        block, path = self.blocks.named[name], self.owners[name]
        if self.mode == "save":
            return self.first is not None and self.first.places.get(path) == block.place
        return self.mode == "first" or (block.start if self.mode == "snapshot" else False)

    # recursion --------------------------------------------------------------------------------------------------------

    def attributes(
        self, thing: object, path: str, depth: int, skip: frozenset[str] = frozenset()
    ) -> tuple[dict[str, Node], list[str]]:
        """(attributes of an object, names of those that cannot be written)"""
        nodes: dict[str, Node] = {}
        omitted: list[str] = []
        for name, value in attributes_of(thing):
            if name in skip:
                continue
            where = f"{path}.{name}" if path else name
            if not path:
                self.root, self.count, self.number = name, 0, 0
            done = len(self.undo)
            try:
                if not path and name in self.too_large:
                    raise CannotSave(TOO_LARGE)
                node = self.node(value, where, depth + 1)
                if not is_settable(type(thing), name) and node != ["constant"]:
                    raise CannotSave("in the place of something that its class defines")
                nodes[name] = node
                if not path:
                    self.undo.clear()
            except CannotSave as reason:
                while len(self.undo) > done:
                    self.undo.pop()()
                if path and not self.mark(path, thing):
                    raise  # a new object with a part missing would be worse than none
                self.note_missing(where, str(reason))
                omitted.append(name)
        return nodes, omitted

    def node(self, value: Any, path: str, depth: int) -> Node:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if value.bit_length() < 64 else ["int", hex(value)]
        if kind is float:
            return values.float_node(value)
        if depth > MAX_DEPTH:
            raise CannotSave("nested too deeply")
        if kind in values.IMMUTABLES:
            return [kind.__name__, *(self.node(x, path, depth + 1) for x in values.IMMUTABLES[kind][0](value))]
        if id(value) in self.seen:
            return self.link(self.seen[id(value)])
        self.count_values(1)
        for number, stream in enumerate(values.GLOBAL_STREAMS):
            if value is stream:
                return ["global", number]
        for kinds, write in WRITERS:
            if isinstance(value, kinds):
                return write(self, value, path, depth)
        if values.is_constant(value, self.is_known):
            return self.constant(value, path)
        if not values.layout(kind).is_plain:
            raise CannotSave("function that captures what changes" if kind.__name__ == "function" else kind.__name__)
        return ["object", self.known_class(kind), self.remember(value, path), *self.attributes(value, path, depth)]

    def constant(self, value: object, path: str) -> Node:
        """A value that cannot change: the reader takes the one that the fresh environment has."""
        if self.first is not None and self.mode != "copy":
            then = self.first.objects.get(path)
            if then is not value and not (type(then) is type(value) is not type(lambda: 0) and then == value):
                raise CannotSave(f"{type(value).__name__} that was replaced")
        self.objects[path] = value
        return ["constant"]

    # containers and objects -------------------------------------------------------------------------------------------

    def tuple(self, value: Any, path: str, depth: int) -> Node:
        self.count_values(len(value))
        named = type(value) is not tuple
        if named and getattr(value, "__dict__", None):
            raise CannotSave(type(value).__name__)
        return ["tuple", self.known_class(type(value)) if named else None, self.items(value, path, depth)]

    def frozenset(self, value: object, path: str, depth: int) -> Node:
        if type(value) is not frozenset:
            raise CannotSave(type(value).__name__)
        return ["frozenset", self.elements(value, path, depth)]

    def elements(self, value: Any, path: str, depth: int) -> list[Node]:
        """The elements of a set. A set that is filled again may be in another order, which is noted."""
        self.count_values(len(value))
        nodes = self.items(value, path, depth)
        if any(isinstance(node, list) and node[0] not in VALUES for node in nodes):
            raise CannotSave("set of objects, whose order is that of their addresses")
        items = list(value)
        if all(isinstance(x, (int, float)) for x in items) and [*map(id, set(items))] != [*map(id, items)]:
            self.note_missing(f"{path} (the order of its elements)", type(value).__name__)
        return nodes

    def container(self, value: Any, path: str, depth: int) -> Node:
        kind, base = type(value), next(base for base in values.CONTAINERS if isinstance(value, base))
        mark = self.remember(value, path)
        if values.CREATABLE.get(kind.__name__) is not kind and not mark:
            raise CannotSave(f"{kind.__name__} that was replaced")
        extra = None
        if base is deque:
            extra = value.maxlen
        elif isinstance(value, defaultdict):
            factory = value.default_factory
            free = factory is None or values.FACTORIES.get(getattr(factory, "__name__", "")) is factory
            extra = ["type", factory and factory.__name__]
            if not free:
                extra = self.node(factory, f"{path}.default_factory", depth + 1)
                if not mark:
                    raise CannotSave("defaultdict with a function of its own")
        items = self.contents(base, value, path, depth)
        return ["container", kind.__name__ if kind in values.CREATABLE.values() else self.known_class(kind), mark, items, extra,
                *self.attributes(value, path, depth)]  # fmt: skip

    def contents(self, base: Any, value: Any, path: str, depth: int) -> list[Node]:
        if base is set:
            return self.elements(value, path, depth)
        self.count_values(len(value))
        if not isinstance(value, dict):
            return self.items(base.__iter__(value), path, depth)
        pairs = []
        for i, (key, inner) in enumerate(base.items(value)):
            where = f"{path}[{key!r}]" if type(key) in (str, int) else f"{path}[key {i}]"
            pairs.append([self.node(key, f"{path}[key {i}]", depth + 1), self.node(inner, where, depth + 1)])
        return pairs

    def bytearray(self, value: Any, path: str, depth: int) -> Node:
        return ["bytearray", self.remember(value, path), bytes(value).hex()]

    def enum(self, value: Any, path: str, depth: int) -> Node:
        name = self.known_class(type(value))
        if isinstance(value, Flag):
            return ["flag", name, self.node(value.value, path, depth + 1)]
        return ["enum", name, value.name]

    # random generators ------------------------------------------------------------------------------------------------

    def generator(self, value: Any, path: str, depth: int) -> Node:
        if isinstance(value, np.random.Generator):
            inner = value.bit_generator
            seen = self.seen.get(id(inner))
            bits = self.link(seen) if seen is not None else self.bits(inner, f"{path}.bit_generator")
            return ["generator", self.remember(value, path), bits]
        if isinstance(value, np.random.BitGenerator):
            return self.bits(value, path)
        try:
            where = generator_state(value)
        except NotImplementedError:  # random.SystemRandom
            raise CannotSave(type(value).__name__) from None
        mark = self.remember(value, path)
        kind = next(kind for kind in values.GENERATORS if isinstance(value, kind))
        if (type(value) is not kind and not mark) or (
            kind is np.random.RandomState and where["bit_generator"] != "MT19937"
        ):
            raise CannotSave(type(value).__name__)
        return ["stream", kind.__name__, mark, where, kind is torch.Generator and value.device == self.device]

    def bits(self, value: np.random.BitGenerator, path: str) -> Node:
        name, seeds = type(value).__name__, getattr(value, "seed_seq", None)
        if values.BIT_GENERATORS.get(name) is not type(value):
            raise CannotSave(name)
        mark, sequence = self.remember(value, path), None
        if type(seeds) is np.random.SeedSequence:
            entropy = seeds.entropy if isinstance(seeds.entropy, int) or seeds.entropy is None else list(seeds.entropy)
            sequence = [str(entropy) if isinstance(entropy, int) else entropy, list(seeds.spawn_key), seeds.pool_size,
                        seeds.n_children_spawned]  # fmt: skip
            self.spawn_counts[path] = seeds.n_children_spawned
            then = self.first.spawn_counts.get(path) if self.first is not None else None
            if self.mode == "save" and mark and then != seeds.n_children_spawned:
                self.note_missing(f"{path} (how many generators it has spawned)", name)
        return ["bits", name, mark, generator_state(value), sequence]


WRITERS: tuple[tuple[Any, Callable[[Writer, Any, str, int], Node]], ...] = (
    (Enum, Writer.enum),
    (np.generic, Writer.scalar),
    (Tensor, Writer.tensor),
    (np.ndarray, Writer.array),
    (tuple, Writer.tuple),
    (frozenset, Writer.frozenset),
    (values.CONTAINERS, Writer.container),
    (bytearray, Writer.bytearray),
    (values.GENERATORS, Writer.generator),
)
