"""Reads attributes from JSON and bytes into an object.

A file is data and runs no code. No class is imported by name: containers and values are of a fixed list of builtin kinds.
Objects of any other class are those that the live object holds, filled in place, or new ones of a class that it holds an
object of, made without calling anything of that class.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict, deque
from enum import Flag
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import values
from .leaf_writer import Block, block_of
from .values import Node
from .writer import Writer

NEW_GENERATORS: dict[str, Any] = {"RandomState": np.random.RandomState, "Random": values.GENERATORS[-1]}


class Reader:
    """Reads one tree of values. `live` has the objects that exist already, which are filled; constants are taken from it."""

    def __init__(self, text: bytes, contents: dict[str, Tensor], live: Writer, classes: dict[str, type]) -> None:
        if len(text) > 2 * values.MAX_TEXT:
            raise ValueError("too long")
        tree = json.loads(text)
        self.values, self.blocks, self.gone = dict(tree["values"]), dict(tree["blocks"]), list(tree["gone"])
        self.contents, self.live, self.classes = contents, live, classes
        self.built: dict[str, Any] = {}  # by path
        self.memory: dict[str, Block] = {}
        self.filled: set[Any] = set()  # live objects, and places of live memory, that have been filled

    def load_into(self, thing: object, skip: frozenset[str]) -> None:
        """Set the attributes of an object. RuntimeError for a name that is not one of a saved attribute."""
        self.built[""] = thing
        for name in [*self.values, *self.gone]:
            reserved = name in skip or name in getattr(type(thing), "_not_saved", ())
            if (reserved or not values.is_settable(type(thing), name)) and self.values.get(name) != ["constant"]:
                raise RuntimeError(f"env has nothing of its own called {str(name)[:40]!r}")
        for name, node in self.values.items():
            try:
                value = self.read(node, name, 1)
            except Exception as error:
                raise RuntimeError(f"env's {name} is not one: {type(error).__name__}") from None
            if node != ["constant"]:
                values.set_attribute(thing, name, value)
        for name in self.gone:
            values.remove_attribute(thing, name)

    def read(self, node: Node, path: str, depth: int) -> Any:
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        if depth > values.MAX_DEPTH + 1:
            raise ValueError("nested too deeply")
        kind, *rest = node
        if kind == "int":
            return int(rest[0], 16)
        if kind == "float":
            return struct.unpack(">d", bytes.fromhex(rest[0]))[0]
        if kind == "same":
            return self.built[rest[0]]
        if kind == "global":
            return values.GLOBAL_STREAMS[rest[0]]
        if kind == "constant":
            return self.live.objects[path]
        if kind in values.BUILDERS:
            return values.BUILDERS[kind](*(self.read(x, path, depth + 1) for x in rest))
        return READERS[kind](self, path, depth, *rest)

    def live_object(self, path: str, mark: bool | int) -> Any:
        """The existing object to fill; None if a new one is to be made."""
        found = self.live.objects.get(path)
        if mark is False or found is None or id(found) in self.filled or not (mark is True or mark == id(found)):
            return None
        return found

    def remember(self, path: str, value: object) -> Any:
        self.built[path] = value
        self.filled.add(id(value))
        return value

    # containers and objects -------------------------------------------------------------------------------------------

    def items(self, nodes: list[Node], path: str, depth: int) -> list[Any]:
        return [self.read(node, f"{path}[{i}]", depth + 1) for i, node in enumerate(nodes)]

    def read_tuple(self, path: str, depth: int, named: str | None, nodes: list[Node]) -> object:
        items = self.items(nodes, path, depth)
        if named is None:
            return tuple(items)
        kind = self.classes[named]
        if not issubclass(kind, tuple):
            raise TypeError(named)
        return tuple.__new__(kind, items)

    def read_frozenset(self, path: str, depth: int, nodes: list[Node]) -> object:
        return frozenset(self.items(nodes, path, depth))

    def read_container(
        self,
        path: str,
        depth: int,
        named: str,
        mark: bool | int,
        nodes: list[Any],
        extra: Node,
        attributes: Any,
        omitted: Any,
    ) -> object:
        kind = values.CREATABLE.get(named) or self.classes[named]
        value = self.live_object(path, mark)
        if type(value) is not kind or (isinstance(value, deque) and value.maxlen != extra):
            if kind not in values.CREATABLE.values():
                raise TypeError(named)
            value = deque(maxlen=extra) if kind is deque else kind()
        self.remember(path, value)
        base: Any = next(base for base in values.CONTAINERS if isinstance(value, base))
        if isinstance(value, defaultdict):
            of_type = extra[0] == "type"
            value.default_factory = (
                values.FACTORIES.get(extra[1]) if of_type else self.read(extra, f"{path}.default_factory", depth)
            )
        if base in (dict, values.CONTAINERS[0]):
            pairs = []
            for i, (key, node) in enumerate(nodes):
                key = self.read(key, f"{path}[key {i}]", depth + 1)
                where = f"{path}[{key!r}]" if type(key) in (str, int) else f"{path}[key {i}]"
                pairs.append((key, self.read(node, where, depth + 1)))
            base.clear(value)
            for key, inner in pairs:
                base.__setitem__(value, key, inner)
        else:
            items = self.items(nodes, path, depth)
            base.clear(value)
            (set.update if base is set else base.extend)(value, items)
        self.fill(value, path, depth, attributes, omitted)
        return value

    def read_bytearray(self, path: str, depth: int, mark: bool | int, text: str) -> object:
        value = self.live_object(path, mark)
        value = self.remember(path, value if type(value) is bytearray else bytearray())
        value[:] = bytes.fromhex(text)
        return value

    def read_enum(self, path: str, depth: int, named: str, member: str) -> object:
        return self.classes[named].__members__[member]  # type: ignore[attr-defined]

    def read_flag(self, path: str, depth: int, named: str, node: Node) -> object:
        kind = self.classes[named]
        if not issubclass(kind, Flag):
            raise TypeError(named)
        return kind(self.read(node, path, depth + 1))

    def read_object(self, path: str, depth: int, named: str, mark: bool | int, attributes: Any, omitted: Any) -> object:
        kind, value = self.classes[named], self.live_object(path, mark)
        if not values.layout(kind).is_plain:
            raise TypeError(named)
        if type(value) is not kind:
            if omitted:
                raise TypeError(named)
            value = object.__new__(kind)
        self.fill(self.remember(path, value), path, depth, attributes, omitted)
        return value

    def fill(self, value: object, path: str, depth: int, attributes: dict[str, Node], omitted: list[str]) -> None:
        kind = type(value)
        for name, node in attributes.items():
            if name in getattr(kind, "_not_saved", ()) or not (values.is_settable(kind, name) or node == ["constant"]):
                raise TypeError(name)
            values.set_attribute(value, name, self.read(node, f"{path}.{name}", depth + 1))
        for name, _ in list(values.attributes_of(value)):
            if name not in attributes and name not in omitted:
                values.remove_attribute(value, name)
        restored = getattr(kind, "_after_load", None)
        if restored is not None:
            restored(value)

    # arrays and tensors -----------------------------------------------------------------------------------------------

    def block(self, name: str, on_host: bool) -> Block:
        """A block with the saved bytes: existing memory that is filled, or new memory."""
        if name not in self.memory:
            path, mark, _ = self.blocks[name]
            content, live = self.contents[name], self.live.objects.get(path)
            if content.dtype != torch.uint8 or content.ndim != 1:
                raise ValueError(name)
            found = block_of(live) if isinstance(live, (np.ndarray, Tensor)) and mark is not False else None
            if found and found.place not in self.filled and found.fits(content) and mark in (True, found.start):
                found.fill(content)
                self.filled.add(found.place)
            else:
                data = content.detach().cpu().numpy().copy() if on_host else content.to(self.live.device, copy=True)
                found = Block(data, torch.device("cpu") if on_host else self.live.device, 0, False)
            self.memory[name] = found
        return self.memory[name]

    def read_array(
        self, path: str, depth: int, mark: bool | int, name: str, kind: Node, shape: list[int], strides: list[int], offset: int,
        writeable: bool,
    ) -> object:  # fmt: skip
        dtype, block = values.dtype_from(kind), self.block(name, on_host=True)
        data = block.data.numpy() if isinstance(block.data, Tensor) else block.data
        value = np.ndarray(tuple(shape), dtype, data, offset, tuple(strides))  # which refuses what is outside
        live = self.live_object(path, mark)
        if isinstance(live, np.ndarray) and live.dtype == dtype and is_same_view(live, value):
            return self.remember(path, live)
        if value.nbytes > len(data):
            raise ValueError("more elements than bytes")
        if self.blocks[name][2] and not block.start and value.nbytes == len(data):
            value = np.copy(value, order="K")  # nobody else's: an array that owns its memory
        value.flags.writeable = writeable
        return self.remember(path, value)

    def read_tensor(
        self, path: str, depth: int, mark: bool | int, name: str, kind: str, shape: list[int], stride: list[int], offset: int,
        here: bool, wants_grad: bool, is_parameter: bool, grad: Node,
    ) -> object:  # fmt: skip
        dtype = getattr(torch, kind)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(kind)
        data = self.block(name, on_host=not here).data
        data = torch.from_numpy(data) if isinstance(data, np.ndarray) else data
        value = data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(shape, stride, offset)
        live = self.live_object(path, mark)
        if isinstance(live, Tensor) and live.dtype == dtype and is_same_view(live, value):
            value = live
        elif value.nbytes > len(data):
            raise ValueError("more elements than bytes")
        elif is_parameter:
            value = torch.nn.Parameter(value, requires_grad=False)
        value.requires_grad_(wants_grad)
        value.grad = None if grad is None else self.read(grad, f"{path}.grad", depth + 1)
        return self.remember(path, value)

    def read_objects(self, path: str, depth: int, mark: bool | int, shape: list[int], nodes: list[Node]) -> object:
        value = self.live_object(path, mark)
        if not isinstance(value, np.ndarray) or value.dtype != object or list(value.shape) != shape:
            if int(np.prod(shape, dtype=object)) != len(nodes):
                raise ValueError("another number of elements")
            value = np.empty(shape, object)
        self.remember(path, value)
        for i, item in enumerate(self.items(nodes, path, depth)):
            value.flat[i] = item
        return value

    def read_scalar(self, path: str, depth: int, kind: Node, content: str) -> object:
        return np.frombuffer(bytes.fromhex(content), values.dtype_from(kind), 1)[0]

    # random generators ------------------------------------------------------------------------------------------------

    def read_generator(self, path: str, depth: int, mark: bool | int, bits: Node) -> object:
        live, inner = self.live_object(path, mark), self.read(bits, f"{path}.bit_generator", depth + 1)
        if isinstance(live, np.random.Generator) and live.bit_generator is inner:
            return self.remember(path, live)
        return self.remember(path, np.random.Generator(inner))

    def read_bits(self, path: str, depth: int, named: str, mark: bool | int, where: object, seeds: Any) -> object:
        value, kind = self.live_object(path, mark), values.BIT_GENERATORS[named]
        if type(value) is not kind:
            entropy, key, pool, children = seeds or [None, [], 4, 0]
            entropy = int(entropy) if isinstance(entropy, str) else entropy
            value = kind(np.random.SeedSequence(entropy, spawn_key=key, pool_size=pool, n_children_spawned=children))
        values.set_stream_position(value, where)
        return self.remember(path, value)

    def read_stream(self, path: str, depth: int, named: str, mark: bool | int, where: object, here: bool) -> object:
        value = self.live_object(path, mark)
        if named not in [kind.__name__ for kind in type(value).__mro__]:
            device = self.live.device if here else "cpu"
            value = torch.Generator(device) if named == "Generator" else NEW_GENERATORS[named]()
        values.set_stream_position(value, where)
        return self.remember(path, value)


def is_same_view(live: Any, value: Any) -> bool:
    """Whether two arrays or tensors are the same view of the same memory."""
    if isinstance(live, np.ndarray):
        where = live.__array_interface__["data"][0] == value.__array_interface__["data"][0]
        return where and (live.shape, live.strides) == (value.shape, value.strides)
    return live.data_ptr() == value.data_ptr() and (live.shape, live.stride()) == (value.shape, value.stride())


READERS: dict[str, Any] = {
    name.removeprefix("read_"): method for name, method in vars(Reader).items() if name.startswith("read_")
}
