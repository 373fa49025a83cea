"""Attributes of a tensor environment's subclass, saved and loaded with a run.

Those that have changed since the first reset are saved, as JSON and tensors: numbers, texts, containers, arrays, tensors,
random generators, objects with `state_dict` and `load_state_dict`, and plain objects of these. A warning names the others.

They are loaded into a fresh environment. What was changed in place is filled in place; what was replaced is replaced. A file
is data and runs no code: no class is imported by name, only builtin kinds and classes that the environment holds are created.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from .attribute_writer import (
    CREATED,
    ENCODE,
    MAX_DEPTH,
    MAX_TEXT,
    TENSOR,
    TEXT,
    Node,
    Writer,
    class_name,
    is_plain_class,
    is_settable,
    root_of,
)
from .random_streams import set_generator_state

MAX_NAMES = 12  # in one warning


def save_attributes(env: object, skip: frozenset[str], first: Writer) -> dict[str, Tensor]:
    """What has changed since the first reset, as tensors for a file. What cannot be saved goes to `first.missing`."""
    writer = Writer(env, skip, first)
    names, length = set[str](), 0
    first.missing = writer.missing
    for name in writer.changed_since(first):
        length += len(ENCODE(writer.values[name]))
        if length > MAX_TEXT:
            first.missing[name] = f"more than {MAX_TEXT >> 20} MB of text"
        else:
            names.add(name)
    return writer.pack(names)


def snapshot_attributes(env: object, skip: frozenset[str], first: Writer) -> dict[str, Tensor]:
    """All attributes, changed or not: nothing waits for a device."""
    writer = Writer(env, skip, first)
    return writer.pack(writer.values)


def copy_attributes(twin: object, env: object, skip: frozenset[str]) -> None:
    """Give another environment copies of the attributes of this one. Those that cannot be copied are shared."""
    copies: dict[int, Any] = {id(env): twin}  # by the id of the original, as deepcopy keeps them
    for view in vars(env).values():
        if type(view) is np.ndarray and type(view.base) is np.ndarray:  # deepcopy would copy the memory for each view
            whole = copies.setdefault(id(view.base), view.base.copy(order="K"))
            start = view.__array_interface__["data"][0] - view.base.__array_interface__["data"][0]
            copies[id(view)] = np.ndarray(view.shape, view.dtype, whole, start, view.strides)
    for name, value in vars(env).items():
        if name not in skip:
            with suppress(Exception):
                object.__setattr__(twin, name, copy.deepcopy(value, copies))


def unsaved_warning(env: object, entries: Iterable[str]) -> str | None:
    """A line that names what the last save of an environment has left out, if that is something new. `entries` are the keys of
    the saved state: an attribute with an entry of its own there is saved by the user's state_dict."""
    first: Writer | None = getattr(env, "_first_record", None)
    if first is None:
        return None
    theirs = {part for entry in entries if not entry.startswith(TEXT) for part in entry.split(".")}
    new = [path for path in first.missing if path not in first.warned and root_of(path) not in theirs]
    if not new:
        return None
    first.warned.update(new)
    named = [f"attribute `{path}` of {type(env).__name__} ({first.missing[path]})" for path in new[:MAX_NAMES]]
    more = f" and {len(new) - MAX_NAMES} more" if len(new) > MAX_NAMES else ""
    return (
        f"this is not kept by a resume: {', '.join(named)}{more}; hold it in numbers, arrays, lists or dictionaries, "
        "or save it in state_dict and load_state_dict of the environment"
    )


def load_attributes(env: object, saved: Mapping[str, Tensor], skip: frozenset[str], first: Writer) -> None:
    """Load what was saved of an environment. RuntimeError where that is invalid for this one."""
    tensors = {name.removeprefix(TENSOR): x for name, x in saved.items() if name.startswith(TENSOR)}
    if TEXT not in saved:
        if tensors:
            raise RuntimeError("env's own attributes were saved by another version")
        return
    try:
        reader = Reader(saved[TEXT].cpu().numpy().tobytes(), tensors, first)
    except Exception as error:
        raise RuntimeError(f"env's own attributes cannot be read: {type(error).__name__}") from None
    reader.load_into(env, skip)


class Reader:
    """Reads one tree of values. `first` has the objects of the first reset, to be filled, and the constants."""

    def __init__(self, text: bytes, tensors: dict[str, Tensor], first: Writer) -> None:
        if len(text) > 2 * MAX_TEXT:
            raise ValueError("too long")
        tree = json.loads(text)
        self.values, self.gone = dict(tree["values"]), list(tree["gone"])
        self.tensors, self.first = tensors, first
        self.built: dict[str, Any] = {}  # by path

    def load_into(self, thing: object, skip: frozenset[str]) -> None:
        """Set the attributes of an object. RuntimeError for a name that is not one of a saved attribute."""
        self.built[""] = thing
        for name in [*self.values, *self.gone]:
            if name in skip or (not is_settable(type(thing), name) and self.values.get(name) != ["constant"]):
                raise RuntimeError(f"env has nothing of its own called {str(name)[:40]!r}")
        for name, node in self.values.items():
            try:
                value = self.read(node, name, 1)
            except Exception as error:
                raise RuntimeError(f"env's {name} is not one: {type(error).__name__}") from None
            if node != ["constant"]:
                object.__setattr__(thing, name, value)
        for name in self.gone:
            vars(thing).pop(name, None)

    def read(self, node: Node, path: str, depth: int) -> Any:
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        if depth > MAX_DEPTH + 1:
            raise ValueError("nested too deeply")
        kind, *rest = node
        if kind == "same":
            return self.built[rest[0]] if rest[0] in self.built else self.first.objects[rest[0]]
        if kind == "constant":
            return self.first.objects[path]
        return READERS[kind](self, path, depth, *rest)

    def first_object(self, path: str, kind: type, mark: bool) -> Any:
        """The object to fill; None if a new one is to be made."""
        found = self.first.objects.get(path)
        return found if mark is True and type(found) is kind else None

    def remember(self, path: str, value: object) -> Any:
        self.built[path] = value
        return value

    def items(self, nodes: list[Node], path: str, depth: int, place: str = "") -> list[Any]:
        return [self.read(node, f"{path}[{place}{i}]", depth + 1) for i, node in enumerate(nodes)]

    def read_complex(self, path: str, depth: int, real: float, imag: float) -> object:
        return complex(real, imag)

    def read_bytes(self, path: str, depth: int, content: str) -> object:
        return bytes.fromhex(content)

    def read_scalar(self, path: str, depth: int, dtype: str, content: str) -> object:
        return np.frombuffer(bytes.fromhex(content), checked_dtype(dtype), 1)[0]

    def read_enum(self, path: str, depth: int, named: str, member: str) -> object:
        return self.first.classes[named].__members__[member]  # type: ignore[attr-defined]

    def read_list(self, path: str, depth: int, named: str, mark: bool, nodes: list[Node], maxlen: int | None) -> object:
        kind = CREATED.get(named) or self.first.classes[named]
        if issubclass(kind, tuple):
            return self.remember(path, tuple.__new__(kind, self.items(nodes, path, depth)))
        value = self.first_object(path, kind, mark)
        if value is None or getattr(value, "maxlen", maxlen) != maxlen:
            if kind not in (list, deque):
                raise TypeError(named)
            value = deque(maxlen=maxlen) if kind is deque else []
        self.remember(path, value)
        base: Any = deque if issubclass(kind, deque) else list
        items = self.items(nodes, path, depth)
        base.clear(value)
        base.extend(value, items)
        return value

    def read_set(self, path: str, depth: int, named: str, mark: bool, nodes: list[Node]) -> object:
        items = self.items(nodes, path, depth, "key ")
        if named == "frozenset":
            return self.remember(path, frozenset(items))
        value = self.remember(path, self.first_object(path, set, mark) or set())
        value.clear()
        value.update(items)
        return value

    def read_dict(self, path: str, depth: int, named: str, mark: bool, keys: list[Node], nodes: list[Node]) -> object:
        kind = CREATED.get(named) or self.first.classes[named]
        value = self.first_object(path, kind, mark)
        if value is None and named not in CREATED:
            raise TypeError(named)
        self.remember(path, value := kind() if value is None else value)
        named_nodes = zip(self.items(keys, path, depth, "key "), nodes, strict=True)
        pairs = [(key, self.read(node, f"{path}[{key!r}]", depth + 1)) for key, node in named_nodes]
        base: Any = OrderedDict if issubclass(kind, OrderedDict) else dict
        base.clear(value)
        for key, inner in pairs:
            base.__setitem__(value, key, inner)
        return value

    def read_state(self, path: str, depth: int, named: str, node: Node) -> object:
        value = self.first.objects[path]
        if class_name(value) != named:
            raise TypeError(named)
        value.load_state_dict(self.read(node, f"{path}.state", depth + 1))
        return self.remember(path, value)

    def read_object(
        self, path: str, depth: int, named: str, mark: bool, attributes: dict[str, Node], omitted: list[str]
    ) -> object:
        kind = self.first.classes[named]
        value = self.first_object(path, kind, mark)
        if not is_plain_class(kind) or (value is None and omitted):
            raise TypeError(named)
        self.remember(path, value := object.__new__(kind) if value is None else value)
        for name, node in attributes.items():
            if not is_settable(kind, name) and node != ["constant"]:
                raise TypeError(name)
            object.__setattr__(value, name, self.read(node, f"{path}.{name}", depth + 1))
        for name in vars(value).keys() - {*attributes, *omitted}:
            del vars(value)[name]
        return value

    def read_generator(self, path: str, depth: int, named: str, mark: bool, state: object) -> object:
        value, kind = self.first.objects[path], self.first.classes[named]
        if type(value) is not kind:
            raise TypeError(named)
        if self.first_object(path, kind, mark) is None:
            value = copy.deepcopy(value)
        set_generator_state(value, state)
        return self.remember(path, value)

    def read_array(self, path: str, depth: int, mark: bool, key: str, dtype: str, shape: list[int]) -> object:
        content = self.tensors[key].cpu().numpy().tobytes()
        value = np.frombuffer(content, checked_dtype(dtype)).reshape(shape)
        found = self.first_object(path, np.ndarray, mark)
        if found is None or (found.dtype, found.shape) != (value.dtype, value.shape):
            return self.remember(path, value.copy())
        found[...] = value
        return self.remember(path, found)

    def read_tensor(self, path: str, depth: int, mark: bool, key: str, here: bool, wants_grad: bool) -> object:
        content, found = self.tensors[key], self.first.objects.get(path) if mark is True else None
        if isinstance(found, Tensor) and (found.dtype, found.shape) == (content.dtype, content.shape):
            found.detach().copy_(content)
            return self.remember(path, found)
        new = content.detach().to(self.first.device if here else "cpu", copy=True)
        return self.remember(path, new.requires_grad_(wants_grad))


def checked_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text) if isinstance(text, str) else np.dtype(object)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("a type of objects")
    return dtype


READERS: dict[str, Any] = {
    name.removeprefix("read_"): method for name, method in vars(Reader).items() if name.startswith("read_")
}
