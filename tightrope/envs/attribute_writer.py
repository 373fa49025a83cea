"""Which attributes of an object can be saved, and how they are encoded as JSON and tensors; see `attributes`."""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .random_streams import GENERATORS, GLOBAL_STREAMS, generator_state
from .validate import bitwise_equal

Node = Any  # None, bool, str, int, float, or a list that starts with a tag
TEXT, TENSOR = "own", "own."  # keys of a state: the values as JSON, and the tensors that they refer to
MAX_VALUES = 20_000  # in one attribute: all of them are written in every phase
MAX_DEPTH = 40
HEAP_TYPE = 1 << 9  # flag of a class that is written in Python
MAX_BYTES = 1 << 26  # total of arrays and tensors that a fresh environment does not have
MAX_TEXT = 1 << 24  # bytes of all other values, as JSON
CREATED = {kind.__name__: kind for kind in (list, deque, dict, OrderedDict, Counter, set, tuple, frozenset)}
NUMBERS = (type(None), bool, int, float, complex, str, bytes)
HASHED = (*NUMBERS, tuple, frozenset, Enum, np.generic)  # keys of dictionaries and elements of sets
CONSTANTS = (*NUMBERS, type, ModuleType, Enum, torch.dtype, torch.device, np.dtype, np.ufunc, logging.Logger)
ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class CannotSave(Exception):
    """A value cannot be saved; the message is the reason."""


def class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def root_of(path: str) -> str:
    """The attribute that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


def is_settable(kind: type, name: object) -> bool:
    """Whether an attribute can be set by this name: the class has no method or property of the name."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return False
    there = next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)
    return isinstance(there, functools.cached_property) or not (callable(there) or hasattr(type(there), "__get__"))


def is_plain_class(kind: type) -> bool:
    """Whether the attributes of an object are its whole state: the class is written in Python and has no slots."""
    written = all(c.__flags__ & HEAP_TYPE for c in kind.__mro__[:-1])
    size = object.__basicsize__ + 8 * (bool(kind.__weakrefoffset__) + bool(kind.__dictoffset__))
    return written and bool(kind.__dictoffset__) and kind.__basicsize__ <= size


def is_constant(value: Any, known: Mapping[int, str], depth: int = 0) -> bool:
    """Whether a value is immutable: a number, a class, a module, a function that captures only constants. `known` has the ids
    of objects that are saved elsewhere."""

    def constant(inner: object) -> bool:
        return depth < MAX_DEPTH and (id(inner) in known or is_constant(inner, known, depth + 1))

    if isinstance(value, CONSTANTS) or any(value is stream for stream in GLOBAL_STREAMS.values()):
        return True  # the global random streams are saved with the run
    if isinstance(value, (tuple, frozenset)):
        return all(map(constant, value))
    if isinstance(value, BuiltinFunctionType):
        return constant(value.__self__)
    if isinstance(value, MethodType):
        return constant(value.__self__) and constant(value.__func__)
    if isinstance(value, functools.partial):
        return all(map(constant, (value.func, *value.args, *value.keywords.values())))
    if not isinstance(value, FunctionType) or vars(value).keys() - {"__wrapped__"}:
        return False
    captured = [*vars(value).values(), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            captured.append(cell.cell_contents)
    return all(map(constant, captured))


class Writer:
    """The attributes of an object at one moment, except those in `skip`, as JSON and tensors.

    An object that exists since the first reset has the mark True: loading fills it in place. In a snapshot, which is only valid
    in this process, the mark is the id of the object.
    """

    def __init__(
        self, thing: Any, skip: frozenset[str], first: Writer | None = None, snapshot: bool = False, is_first: bool = False
    ) -> None:  # fmt: skip
        self.first, self.snapshot, self.is_first = first, snapshot, is_first
        self.device = torch.device(getattr(thing, "device", "cpu"))
        self.objects: dict[str, Any] = {"": thing}  # by path
        self.paths = {id(thing): ""}  # paths of the objects encoded so far, by id
        self.classes: dict[str, type] = {}
        self.tensors: dict[str, Tensor] = {}  # copies
        base = [x for name, x in vars(thing).items() if name in skip and isinstance(x, Tensor)]
        self.memory = {x.untyped_storage().data_ptr(): "" for x in base}  # paths by address
        self.links: dict[str, set[str]] = {}  # attributes that an attribute shares objects with
        self.missing: dict[str, str] = {}  # the reason for each path that cannot be saved
        self.warned: set[str] = set()  # paths of `missing` that a warning has named
        self.root, self.count, self.number, self.size = "", 0, 0, 0
        self.values, _ = self.attributes(thing, "", 0, skip)
        self.names = [name for name in vars(thing) if name not in skip]
        self.gone = [] if first is None else [name for name in first.names if name not in self.names]

    def is_same(self, name: str, first: Writer) -> bool:
        if name not in first.values or ENCODE(first.values[name]) != ENCODE(self.values[name]):
            return False
        return all(bitwise_equal(x, first.tensors[key]) for key, x in self.tensors_of(name).items())

    def tensors_of(self, name: str) -> dict[str, Tensor]:
        return {key: x for key, x in self.tensors.items() if key.startswith(f"{name}.")}

    def pack(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Encode these attributes as tensors for a file."""
        written = {name: self.values[name] for name in self.values if name in set(names)}  # in their order
        if not written and not self.gone:
            return {}
        text = torch.frombuffer(bytearray(ENCODE({"values": written, "gone": self.gone}).encode()), dtype=torch.uint8)
        return {TEXT: text} | {TENSOR + key: x for name in written for key, x in self.tensors_of(name).items()}

    def changed_since(self, first: Writer) -> set[str]:
        """The names of attributes that have changed, and of those that share objects with them."""
        found = {name for name in self.values if not self.is_same(name, first)}
        while linked := {name for name in self.values if name not in found and self.links.get(name, set()) & found}:
            found |= linked
        return found

    def attributes(
        self, thing: Any, path: str, depth: int, skip: frozenset[str] = frozenset()
    ) -> tuple[dict[str, Node], list[str]]:
        """(attributes of an object, names of those that cannot be saved)"""
        nodes: dict[str, Node] = {}
        omitted: list[str] = []
        for name, value in list(vars(thing).items()):
            if name in skip:
                continue
            where = f"{path}.{name}" if path else name
            if not path:
                self.root, self.count, self.number = name, 0, 0
            kept = [(met, len(met)) for met in (self.objects, self.paths, self.tensors, self.memory)]
            try:
                nodes[name] = self.node(value, where, depth + 1)
                if not is_settable(type(thing), name) and nodes[name] != ["constant"]:
                    raise CannotSave("has the name of a method or property of its class")
            except CannotSave as reason:
                nodes.pop(name, None)
                for met, length in kept:
                    while len(met) > length:
                        met.popitem()
                if path and not self.mark(path, thing):
                    raise  # an incomplete new object would be worse than none
                self.missing[where] = str(reason)
                omitted.append(name)
        return nodes, omitted

    def node(self, value: Any, path: str, depth: int) -> Node:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if depth > MAX_DEPTH:
            raise CannotSave("nested too deeply")
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is bytes:
            return ["bytes", value.hex()]
        if id(value) in self.paths:
            self.links.setdefault(self.root, set()).add(root_of(self.paths[id(value)]))
            return ["same", self.paths[id(value)]]
        self.count += 1 + (len(value) if isinstance(value, (list, tuple, set, frozenset, dict, deque)) else 0)
        if self.count > MAX_VALUES:
            raise CannotSave(f"more than {MAX_VALUES:,} values")
        if isinstance(value, Enum) and value.name in kind.__members__:
            return ["enum", self.known_class(value), value.name]
        if isinstance(value, np.generic) and not value.dtype.hasobject and np.dtype(value.dtype.str) == value.dtype:
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        if not isinstance(value, (tuple, frozenset)) and is_constant(value, self.paths):
            if self.first is not None and self.first.objects.get(path) is not value:
                raise CannotSave(f"{kind.__name__} that was replaced")
            self.objects[path] = value  # loading takes the value of the fresh environment
            return ["constant"]
        return self.object_node(value, path, depth)

    def object_node(self, value: Any, path: str, depth: int) -> Node:
        kind, mark = type(value), self.mark(path, value)
        self.objects[path], self.paths[id(value)] = value, path
        if kind is Tensor or kind is torch.nn.Parameter:
            return self.tensor(value, path, mark)
        if kind is np.ndarray:
            return self.array(value, path, mark)
        if isinstance(value, GENERATORS):
            return self.generator(value, mark)
        named = isinstance(value, tuple) and kind.__flags__ & HEAP_TYPE
        filled = isinstance(value, (list, deque, dict)) and mark
        if kind in CREATED.values() or ((named or filled) and not getattr(value, "__dict__", None)):
            return self.container(value, path, depth, mark)
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return ["state", self.known_class(value), self.node(dict(value.state_dict()), f"{path}.state", depth + 1)]
        if not is_plain_class(kind):
            raise CannotSave("function that captures what changes" if kind.__name__ == "function" else kind.__name__)
        return ["object", self.known_class(value), mark, *self.attributes(value, path, depth)]

    def container(self, value: Any, path: str, depth: int, mark: bool | int) -> Node:
        named = self.known_class(value)
        if isinstance(value, dict):
            keys = [self.element(key, path, depth) for key in value]
            items = [self.node(x, f"{path}[{key!r}]", depth + 1) for key, x in value.items()]
            return ["dict", named, mark, keys, items]
        if isinstance(value, (set, frozenset)):
            return ["set", named, mark, [self.element(x, path, depth) for x in value]]
        items = [self.node(x, f"{path}[{i}]", depth + 1) for i, x in enumerate(value)]
        return ["list", named, mark, items, getattr(value, "maxlen", None)]

    def generator(self, value: Any, mark: bool | int) -> Node:
        seeds = getattr(getattr(value, "bit_generator", value), "seed_seq", None)
        if getattr(seeds, "n_children_spawned", 0):
            raise CannotSave("generator that has spawned others")
        try:
            return ["generator", self.known_class(value), mark, generator_state(value)]
        except NotImplementedError:  # random.SystemRandom
            raise CannotSave(type(value).__name__) from None

    def element(self, value: Any, path: str, depth: int) -> Node:
        """A key of a dictionary, or an element of a set."""
        if not isinstance(value, HASHED):
            raise CannotSave(f"container of {type(value).__name__}")
        return self.node(value, f"{path}[key]", depth + 1)

    def mark(self, path: str, value: object) -> bool | int:
        if self.snapshot:
            return id(value)
        return self.is_first or (self.first is not None and self.first.objects.get(path) is value)

    def known_class(self, value: object) -> str:
        """The name of a class that loading may create: builtin, or with an object in a fresh environment."""
        kind, name = type(value), class_name(value)
        if kind in CREATED.values():
            return kind.__name__
        if self.first is not None and self.first.classes.get(name) is not kind:
            raise CannotSave(f"{kind.__name__}, of which a fresh environment has none")
        self.classes[name] = kind
        return name

    # arrays and tensors -----------------------------------------------------------------------------------------------

    def tensor(self, value: Tensor, path: str, mark: bool | int) -> Node:
        if value.layout != torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
            raise CannotSave("tensor that is sparse, quantized or not computed yet")
        if not value.is_leaf or value.device.type not in ("cpu", self.device.type):
            raise CannotSave("tensor with a graph for gradients, or on another device")
        if type(value) is torch.nn.Parameter and not mark:
            raise CannotSave("parameter that a fresh environment does not have")
        self.claim_memory(value, value.untyped_storage().data_ptr(), path, mark, value.is_contiguous())
        key = self.add_tensor(value.detach().clone())
        return ["tensor", mark, key, value.device == self.device, value.requires_grad]

    def array(self, value: np.ndarray[Any, Any], path: str, mark: bool | int) -> Node:
        root: Any = value
        while isinstance(root.base, np.ndarray):
            root = root.base
        if value.dtype.hasobject or np.dtype(value.dtype.str) != value.dtype:
            raise CannotSave(f"array of {value.dtype}")
        if root.base is not None and not mark:
            raise CannotSave("array in the memory of another object")
        address = root.__array_interface__["data"][0]
        self.claim_memory(value, address, path, mark, value.flags.c_contiguous and value.flags.writeable)
        key = self.add_tensor(torch.from_numpy(np.frombuffer(value.tobytes(), np.uint8).copy()))
        return ["array", mark, key, value.dtype.str, list(value.shape)]

    def add_tensor(self, content: Tensor) -> str:
        key = f"{self.root}.{self.number}"
        self.number += 1
        self.tensors[key] = content
        return key

    def claim_memory(self, value: Any, address: int, path: str, mark: bool | int, is_ordinary: bool) -> None:
        """Raise CannotSave for memory that would be loaded with another layout, or twice."""
        if not value.nbytes:
            return
        other = self.memory.get(address)
        if not mark and not is_ordinary:
            raise CannotSave("not contiguous, or read-only")
        if other is not None and not (mark and other in self.objects and self.mark(other, self.objects[other])):
            raise CannotSave(f"shares memory with {other or 'the state'}")
        self.memory.setdefault(address, path)
        if not mark:
            self.size += value.nbytes
            if self.size > MAX_BYTES:
                raise CannotSave(f"more than {MAX_BYTES >> 20} MB that a fresh environment does not have")
