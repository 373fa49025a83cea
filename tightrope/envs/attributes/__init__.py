"""Attributes of a tensor environment's subclass that change while it is stepped, saved and loaded with a run.

Numbers, texts, containers, arrays, tensors, random generators and plain objects of these are saved, whatever their names, as
JSON and bytes, and loaded into a fresh environment. A warning names the attributes that cannot be saved.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from types import SimpleNamespace

import torch
from torch import Tensor

from .leaf_writer import root_of
from .reader import Reader
from .values import MAX_TEXT, layout
from .writer import ENCODE, Writer

TEXT, BLOCK = "own", "own."  # keys of a state: the values as JSON, and the memory that they are views of
MAX_NAMES = 12  # in one warning


class Record:
    """The attributes of an object at one moment."""

    def __init__(self, thing: object, skip: frozenset[str] = frozenset()) -> None:
        self.writer = Writer(thing, skip, "first")
        self.texts = self.writer.texts()
        self.contents = {name: block.copy() for name, block in self.writer.blocks.named.items()}

    def changed(self, now: Writer, texts: dict[str, str]) -> set[str]:
        """The names of attributes that are different now."""

        def same(block: str) -> bool:
            return block in self.contents and now.blocks.named[block].holds(self.contents[block])

        return {
            name for name, text in texts.items()
            if text != self.texts.get(name) or not all(map(same, now.blocks_used[name]))
        }  # fmt: skip


class FirstRecord(Record):
    """An environment at its first reset: only what has changed since then is saved."""

    def __init__(self, env: object, skip: frozenset[str]) -> None:
        super().__init__(env, skip)
        self.class_values = {kind: class_values(kind) for kind in classes_of(env, self.writer)}
        self.missing: dict[str, str] = {}  # what the last save has left out, by path, and the reason
        self.warned: set[str] = set()  # the paths among these that a warning has named


def class_values(kind: type) -> Record:
    """The values that a class holds besides its definitions, such as a counter of all its objects."""
    values = {name: x for name, x in vars(kind).items() if not name.startswith("__") and not is_definition(x)}
    return Record(SimpleNamespace(**values))


def is_definition(value: object) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def classes_of(env: object, writer: Writer) -> Iterator[type]:
    """The user's own classes among those of an environment and its objects."""
    mine = [kind for kind in type(env).__mro__[:-1] if kind.__module__.partition(".")[0] != "tightrope"]
    modules = {kind.__module__ for kind in mine}
    yield from dict.fromkeys([*mine, *(kind for kind in writer.classes.values() if kind.__module__ in modules)])


def save_attributes(env: object, skip: frozenset[str], first: FirstRecord | None) -> dict[str, Tensor]:
    """What has changed since the first reset, as tensors for a file. Changes that cannot be saved go to `first.missing`."""
    writer = Writer(env, skip, "save", None if first is None else first.writer)
    if first is None:
        return pack_attributes(writer, writer.values) if writer.values else {}
    texts, length = writer.texts(), 0
    names = writer.with_links(first.changed(writer, texts))
    first.missing = dict(writer.missing)
    for name in [name for name in texts if name in names]:
        length += len(texts[name])
        if length > MAX_TEXT:
            names.remove(name)
            first.missing[name] = f"more than {MAX_TEXT >> 20} MB of text"
    for kind, values in first.class_values.items():
        now = class_values(kind)
        for name in sorted(values.changed(now.writer, now.texts)):
            first.missing[f"{kind.__name__}.{name}"] = "kept by the class, not by the object"
    return pack_attributes(writer, names) if names or writer.gone else {}


def unsaved_warning(env: object, entries: Iterable[str]) -> str | None:
    """A line that names what the last save of an environment has left out, if that is something new. `entries` are the keys of
    the saved state: an attribute with an entry of its own there is saved by the user's state_dict."""
    first: FirstRecord | None = getattr(env, "_first_record", None)
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


def snapshot_attributes(env: object, skip: frozenset[str], first: FirstRecord | None) -> dict[str, Tensor]:
    """All attributes, changed or not, to be loaded within this process; nothing waits for a device."""
    values = {name: x for name, x in vars(env).items() if name not in skip}
    if not layout(type(env)).slots and all(map(is_simple, values.values())):  # the common case needs no Writer
        return {TEXT: as_bytes(ENCODE({"values": values, "blocks": {}, "gone": []}))} if values else {}
    writer = Writer(env, skip, "snapshot", None if first is None else first.writer)
    return pack_attributes(writer, writer.values) if writer.values else {}


def is_simple(value: object) -> bool:
    return value is None or type(value) in (bool, str) or (type(value) is int and value.bit_length() < 64)


def as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def pack_attributes(writer: Writer, names: Container[str]) -> dict[str, Tensor]:
    ordered = [name for name in writer.values if name in names]  # in their order: one may refer to an earlier one
    text = as_bytes(writer.tree(ordered))
    used = sorted({block for name in ordered for block in writer.blocks_used[name]})
    return {TEXT: text} | {BLOCK + name: writer.blocks.named[name].copy() for name in used}


def load_attributes(
    env: object, saved: Mapping[str, Tensor], skip: frozenset[str], first: FirstRecord | None = None
) -> None:
    """Load what was saved of an environment. RuntimeError where that is invalid for this one."""
    contents = {name.removeprefix(BLOCK): x for name, x in saved.items() if name.startswith(BLOCK)}
    if TEXT not in saved:
        if contents:
            raise RuntimeError("env's own attributes were saved by another version")
        return
    live = Writer(env, skip, "first")
    classes = live.classes if first is None else first.writer.classes | live.classes
    try:
        reader = Reader(saved[TEXT].cpu().numpy().tobytes(), contents, live, classes)
    except Exception as error:
        raise RuntimeError(f"env's own attributes cannot be read: {type(error).__name__}") from None
    reader.load_into(env, skip)


def copy_attributes(twin: object, env: object, skip: frozenset[str]) -> None:
    """Give another environment copies of the attributes of this one. Those that cannot be copied are shared."""
    writer = Writer(env, skip, "copy")
    if writer.values:
        contents = {name: block.copy() for name, block in writer.blocks.named.items()}
        Reader(writer.tree(writer.values).encode(), contents, writer, writer.classes).load_into(twin, skip)


def bitwise_equal(a: Tensor, b: Tensor) -> bool:
    same_form = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return same_form and torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))
