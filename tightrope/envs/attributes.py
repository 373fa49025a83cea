"""Save and load the attributes of a user's tensor environment with a run.

Attributes that have changed since the first reset are saved, as JSON and tensors: numbers, texts, containers, arrays, tensors,
random generators, objects with `state_dict` and `load_state_dict`, and plain objects of these. A warning names the others.

Loading fills a fresh environment. Objects that were changed in place are filled in place; replaced objects are replaced. A file
runs no code: no class is imported by name, and only builtin kinds and classes that the environment holds are created.
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

MAX_NAMES = 12  # attributes named in one warning


def first_record(env: object, skip: frozenset[str]) -> Writer:
    """The attributes of an environment at its first reset."""
    return Writer(env, skip, is_first=True)


def save_attributes(env: object, skip: frozenset[str], first: Writer | None) -> dict[str, Tensor]:
    """Encode the attributes that have changed since the first reset. Those that cannot be saved go to `first.missing`."""
    writer = Writer(env, skip, first)
    if first is None:
        return writer.pack(writer.values)
    names, length = set[str](), 0
    first.missing = writer.missing
    for name in writer.changed_since(first):
        length += len(ENCODE(writer.values[name]))
        if length > MAX_TEXT:
            first.missing[name] = f"more than {MAX_TEXT >> 20} MB of text"
        else:
            names.add(name)
    return writer.pack(names)


def snapshot_attributes(env: object, skip: frozenset[str], first: Writer | None) -> dict[str, Tensor]:
    """Encode all attributes, for loading in this process. Does not wait for a device."""
    writer = Writer(env, skip, first, snapshot=True)
    return writer.pack(writer.values)


def same_plain_attributes(env: object, other: object, skip: frozenset[str]) -> bool:
    """Whether two environments are of one class and have the same attributes, all of them numbers, texts or None."""
    mine, theirs = ({name: x for name, x in vars(one).items() if name not in skip} for one in (env, other))
    plain = all(isinstance(x, (bool, int, float, str, type(None))) for x in mine.values())
    return type(env) is type(other) and plain and mine == theirs


def copy_attributes(twin: object, env: object, skip: frozenset[str]) -> None:
    """Copy the attributes of `env` to `twin`. Values that cannot be copied are shared."""
    copies: dict[int, Any] = {id(env): twin}  # by the id of the original, as deepcopy keeps them
    for view in vars(env).values():
        # deepcopy would copy the memory once for each view
        if type(view) is np.ndarray and type(view.base) is np.ndarray:
            whole = copies.setdefault(id(view.base), view.base.copy(order="K"))
            start = view.__array_interface__["data"][0] - view.base.__array_interface__["data"][0]
            copies[id(view)] = np.ndarray(view.shape, view.dtype, whole, start, view.strides)
    for name, value in vars(env).items():
        if name not in skip:
            with suppress(Exception):
                object.__setattr__(twin, name, copy.deepcopy(value, copies))


def unsaved_warning(env: object, entries: Iterable[str]) -> str | None:
    """A warning about attributes that the last save left out, each named once. `entries` are the keys of the saved state: the
    user's state_dict saves an attribute with an entry there."""
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
        f"not saved with the run: {', '.join(named)}{more}; use numbers, arrays, lists or dictionaries instead, "
        "or save it in state_dict and load_state_dict of the environment"
    )


def load_attributes(
    env: object, saved: Mapping[str, Tensor], skip: frozenset[str], first: Writer | None = None
) -> None:
    """Load saved attributes into an environment; RuntimeError if they do not fit it."""
    tensors = {name.removeprefix(TENSOR): x for name, x in saved.items() if name.startswith(TENSOR)}
    if TEXT not in saved:
        if tensors:
            raise RuntimeError("the attributes of env were saved by another version")
        return
    live = Writer(env, skip, is_first=True)
    classes = live.classes if first is None else first.classes | live.classes
    try:
        reader = Reader(saved[TEXT].cpu().numpy().tobytes(), tensors, live, classes)
    except Exception as error:
        raise RuntimeError(f"the attributes of env cannot be read: {type(error).__name__}") from None
    reader.load_into(env, skip)


class Reader:
    """Decodes saved attributes. `live` has the objects of the environment, which are filled in place, and its constants."""

    def __init__(self, text: bytes, tensors: dict[str, Tensor], live: Writer, classes: dict[str, type]) -> None:
        if len(text) > 2 * MAX_TEXT:
            raise ValueError("too long")
        tree = json.loads(text)
        self.values, self.gone = dict(tree["values"]), list(tree["gone"])
        self.tensors, self.live, self.classes = tensors, live, classes
        self.built: dict[str, Any] = {}  # by path

    def load_into(self, thing: object, skip: frozenset[str]) -> None:
        """Set the attributes of an object; RuntimeError for a name or value that is not valid."""
        self.built[""] = thing
        for name in [*self.values, *self.gone]:
            if name in skip or (not is_settable(type(thing), name) and self.values.get(name) != ["constant"]):
                raise RuntimeError(f"env cannot have an attribute {str(name)[:40]!r}")
        for name, node in self.values.items():
            try:
                value = self.read(node, name, 1)
            except Exception as error:
                raise RuntimeError(f"the saved attribute {name} of env is not valid: {type(error).__name__}") from None
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
            return self.built[rest[0]] if rest[0] in self.built else self.live.objects[rest[0]]
        if kind == "constant":
            return self.live.objects[path]
        return getattr(self, f"decode_{kind}")(path, depth, *rest)  # the tags are part of the format of saved runs

    def live_object(self, path: str, kind: type, mark: bool | int) -> Any:
        """The existing object to fill in place; None if a new one is needed."""
        found = self.live.objects.get(path)
        return found if type(found) is kind and (mark is True or mark == id(found)) else None

    def remember(self, path: str, value: object) -> Any:
        self.built[path] = value
        return value

    def items(self, nodes: list[Node], path: str, depth: int) -> list[Any]:
        return [self.read(node, f"{path}[{i}]", depth + 1) for i, node in enumerate(nodes)]

    def decode_complex(self, path: str, depth: int, real: float, imag: float) -> object:
        return complex(real, imag)

    def decode_bytes(self, path: str, depth: int, content: str) -> object:
        return bytes.fromhex(content)

    def decode_scalar(self, path: str, depth: int, dtype: str, content: str) -> object:
        return np.frombuffer(bytes.fromhex(content), checked_dtype(dtype), 1)[0]

    def decode_enum(self, path: str, depth: int, named: str, member: str) -> object:
        return self.classes[named].__members__[member]  # type: ignore[attr-defined]

    def decode_list(
        self, path: str, depth: int, named: str, mark: bool | int, nodes: list[Node], maxlen: int | None
    ) -> object:
        kind = CREATED.get(named) or self.classes[named]
        if issubclass(kind, tuple):
            return self.remember(path, tuple.__new__(kind, self.items(nodes, path, depth)))
        value = self.live_object(path, kind, mark)
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

    def decode_set(self, path: str, depth: int, named: str, mark: bool | int, nodes: list[Node]) -> object:
        items = [self.read(node, path, depth + 1) for node in nodes]
        if named == "frozenset":
            return self.remember(path, frozenset(items))
        value = self.remember(path, self.live_object(path, set, mark) or set())
        value.clear()
        value.update(items)
        return value

    def decode_dict(
        self, path: str, depth: int, named: str, mark: bool | int, keys: list[Node], nodes: list[Node]
    ) -> object:
        kind = CREATED.get(named) or self.classes[named]
        value = self.live_object(path, kind, mark)
        if value is None and named not in CREATED:
            raise TypeError(named)
        self.remember(path, value := kind() if value is None else value)
        read = [self.read(key, path, depth + 1) for key in keys]
        pairs = [(key, self.read(node, f"{path}[{key!r}]", depth + 1)) for key, node in zip(read, nodes, strict=True)]
        base: Any = OrderedDict if issubclass(kind, OrderedDict) else dict
        base.clear(value)
        for key, inner in pairs:
            base.__setitem__(value, key, inner)
        return value

    def decode_state(self, path: str, depth: int, named: str, node: Node) -> object:
        value = self.live.objects[path]
        if class_name(value) != named:
            raise TypeError(named)
        value.load_state_dict(self.read(node, f"{path}.state", depth + 1))
        return self.remember(path, value)

    def decode_object(
        self, path: str, depth: int, named: str, mark: bool | int, attributes: dict[str, Node], omitted: list[str]
    ) -> object:
        kind = self.classes[named]
        value = self.live_object(path, kind, mark)
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

    def decode_generator(self, path: str, depth: int, named: str, mark: bool | int, state: object) -> object:
        value, kind = self.live.objects[path], self.classes[named]
        if type(value) is not kind:
            raise TypeError(named)
        if self.live_object(path, kind, mark) is None:
            value = copy.deepcopy(value)
        set_generator_state(value, state)
        return self.remember(path, value)

    def decode_array(self, path: str, depth: int, mark: bool | int, key: str, dtype: str, shape: list[int]) -> object:
        content = self.tensors[key].cpu().numpy().tobytes()
        value = np.frombuffer(content, checked_dtype(dtype)).reshape(shape)
        live = self.live_object(path, np.ndarray, mark)
        if live is None or (live.dtype, live.shape) != (value.dtype, value.shape):
            return self.remember(path, value.copy())
        live[...] = value
        return self.remember(path, live)

    def decode_tensor(self, path: str, depth: int, mark: bool | int, key: str, here: bool, wants_grad: bool) -> object:
        content = self.tensors[key]
        live = self.live.objects.get(path) if mark is not False else None
        if (
            isinstance(live, Tensor)
            and mark in (True, id(live))
            and (live.dtype, live.shape) == (content.dtype, content.shape)
        ):
            live.detach().copy_(content)
            return self.remember(path, live)
        new = content.detach().to(self.live.device if here else "cpu", copy=True)
        return self.remember(path, new.requires_grad_(wants_grad))


def checked_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text) if isinstance(text, str) else np.dtype(object)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("a type of objects")
    return dtype
