"""What a tensor environment keeps besides its state: attributes of a subclass's own that change while it is stepped.

They belong to the run as the state does: numbers, texts, containers, arrays, tensors, random generators and plain objects of
these, whatever their names. They are saved as JSON and bytes and put back into a fresh environment; what cannot be is named.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .kinds import MOST_BYTES, MOST_TEXT, layout
from .leaves import root_of
from .read import Reader
from .streams import Randomness, streams_lock
from .write import ENCODE, Walk

TEXT, BLOCK = "own", "own."  # keys of a state: the values, and the memory that they have views of
MOST_NAMES = 12  # in one line
NOTHING: frozenset[str] = frozenset()


class Record:
    """What an object held at one moment."""

    def __init__(self, thing: Any, skip: frozenset[str]) -> None:
        self.walk = Walk(thing, skip, "first")
        self.texts = self.walk.texts()
        self.contents = {name: block.copy() for name, block in self.walk.blocks.named.items()}

    def changed(self, now: Walk, texts: dict[str, str]) -> set[str]:
        """The attributes that are not as they were."""

        def same(block: str) -> bool:
            return block in self.contents and now.blocks.named[block].holds(self.contents[block])

        return {
            name for name, text in texts.items()
            if text != self.texts.get(name) or not all(map(same, now.touched[name]))
        }  # fmt: skip


class First(Record):
    """How an environment looked when it was first reset: what has not changed since is not part of how far it has come."""

    def __init__(self, env: Any, skip: frozenset[str]) -> None:
        super().__init__(env, skip)
        self.class_values = {kind: class_values(kind) for kind in classes_of(env, self.walk)}
        self.missing: dict[str, str] = {}  # what the last state has not taken in, by path, and why
        self.told: set[str] = set()  # what of that has been named


def class_values(kind: type) -> Record:
    """What a class holds besides what it defines, such as a counter of all its objects."""
    held = {name: x for name, x in vars(kind).items() if not name.startswith("__") and not is_definition(x)}
    return Record(SimpleNamespace(**held), NOTHING)


def is_definition(value: Any) -> bool:
    return callable(value) or hasattr(type(value), "__get__")


def classes_of(env: Any, walk: Walk) -> Iterator[type]:
    """The user's own classes among those of an environment and its objects."""
    mine = [kind for kind in type(env).__mro__[:-1] if kind.__module__.partition(".")[0] != "tightrope"]
    modules = {kind.__module__ for kind in mine}
    yield from dict.fromkeys([*mine, *(kind for kind in walk.classes.values() if kind.__module__ in modules)])


def saved(env: Any, skip: frozenset[str], first: First | None) -> dict[str, Tensor]:
    """What has changed since the first reset, as tensors for a file. What else has, or may have, is noted in `first`."""
    walk = Walk(env, skip, "save", None if first is None else first.walk)
    if first is None:
        return packed(walk, walk.values) if walk.values else {}
    texts, length = walk.texts(), 0
    names = walk.with_links(first.changed(walk, texts))
    first.missing = dict(walk.missing)
    for name in [name for name in texts if name in names]:
        length += len(texts[name])
        if length > MOST_TEXT:
            names.remove(name)
            first.missing[name] = f"more than {MOST_TEXT >> 20} MB of text"
    for kind, values in first.class_values.items():
        now = class_values(kind)
        for name in sorted(values.changed(now.walk, now.texts)):
            first.missing[f"{kind.__name__}.{name}"] = "kept by the class, not by the object"
    return packed(walk, names) if names or walk.gone else {}


def not_kept(env: Any, entries: Iterable[str]) -> str | None:
    """A line that names what the last state of an environment has not taken in, if that is something new. An attribute for
    which the state has an entry of its name is left to whoever made that entry."""
    first: First | None = getattr(env, "_at_first", None)
    if first is None:
        return None
    theirs = {part for entry in entries if not entry.startswith(TEXT) for part in entry.split(".")}
    new = [path for path in first.missing if path not in first.told and root_of(path) not in theirs]
    if not new:
        return None
    first.told.update(new)
    named = [f"attribute `{path}` of {type(env).__name__} ({first.missing[path]})" for path in new[:MOST_NAMES]]
    more = f" and {len(new) - MOST_NAMES} more" if len(new) > MOST_NAMES else ""
    return (
        f"this is not kept by a resume: {', '.join(named)}{more}; hold it in numbers, arrays, lists or dictionaries, "
        "or save it in state_dict and load_state_dict of the environment"
    )


def snapshot(env: Any, skip: frozenset[str], first: First | None) -> dict[str, Tensor]:
    """All that it holds, to go back to within this process; nothing waits for a device."""
    held = {name: x for name, x in vars(env).items() if name not in skip}
    if not layout(type(env)).slots and all(map(is_simple, held.values())):  # nothing to look into: the common case
        return {TEXT: as_bytes(ENCODE({"values": held, "blocks": {}, "gone": []}))} if held else {}
    walk = Walk(env, skip, "snapshot", None if first is None else first.walk)
    return packed(walk, walk.values) if walk.values else {}


def is_simple(value: Any) -> bool:
    return value is None or type(value) in (bool, str) or (type(value) is int and value.bit_length() < 64)


def as_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def packed(walk: Walk, names: Container[str]) -> dict[str, Tensor]:
    ordered = [name for name in walk.values if name in names]  # in their order: one may refer to an earlier one
    text = as_bytes(walk.tree(ordered))
    used = sorted({block for name in ordered for block in walk.touched[name]})
    return {TEXT: text} | {BLOCK + name: walk.blocks.named[name].copy() for name in used}


def put_back(env: Any, given: Mapping[str, Tensor], skip: frozenset[str], first: First | None = None) -> None:
    """Give an environment what was saved of it. RuntimeError where that is nothing of its own."""
    contents = {name.removeprefix(BLOCK): x for name, x in given.items() if name.startswith(BLOCK)}
    if TEXT not in given:
        if contents:
            raise RuntimeError("env's own attributes were saved by another version")
        return
    live = Walk(env, skip, "first")
    classes = live.classes if first is None else first.walk.classes | live.classes
    try:
        reader = Reader(given[TEXT].cpu().numpy().tobytes(), contents, live, classes)
    except Exception as error:
        raise RuntimeError(f"env's own attributes cannot be read: {type(error).__name__}") from None
    reader.put_back(env, skip)


def copy_to(twin: Any, env: Any, skip: frozenset[str]) -> None:
    """Give another environment copies of what one holds, so that a step of either changes nothing of the other's. What cannot
    be copied is shared."""
    walk = Walk(env, skip, "copy")
    if walk.values:
        contents = {name: block.copy() for name, block in walk.blocks.named.items()}
        Reader(walk.tree(walk.values).encode(), contents, walk, walk.classes).put_back(twin, skip)


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return alike and torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))


__all__ = [
    "MOST_BYTES",
    "First",
    "Randomness",
    "copy_to",
    "not_kept",
    "put_back",
    "same",
    "saved",
    "snapshot",
    "streams_lock",
]
