"""The kinds of values that can be saved and their form in JSON, shared by `Writer` and `Reader`."""

from __future__ import annotations

import datetime
import functools
import logging
import math
import random
import struct
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

Node = Any  # None, bool, str, int, float, or a list whose first entry says what it is


class CannotSave(Exception):
    """A value that cannot be saved. The message is the reason in a few words."""


def fixed_timezone(moment: Any) -> object:
    """The time zone of a datetime or time, if that is None or a fixed offset."""
    if moment.tzinfo is not None and type(moment.tzinfo) is not datetime.timezone:
        raise CannotSave(f"{type(moment).__name__} in a time zone of rules")
    return moment.tzinfo


# immutable values of the standard library and torch: (to constructor arguments, from them)
IMMUTABLES: dict[type, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]] = {
    complex: (lambda x: (x.real, x.imag), lambda real, imag: complex(real, imag)),
    bytes: (lambda x: (x.hex(),), bytes.fromhex),
    range: (lambda x: (x.start, x.stop, x.step), range),
    slice: (lambda x: (x.start, x.stop, x.step), slice),
    Fraction: (lambda x: (x.numerator, x.denominator), Fraction),
    Decimal: (lambda x: (str(x),), Decimal),
    datetime.date: (lambda x: (x.isoformat(),), datetime.date.fromisoformat),
    datetime.timedelta: (lambda x: (x.days, x.seconds, x.microseconds), datetime.timedelta),
    datetime.timezone: (lambda x: x.__getinitargs__(), datetime.timezone),
    datetime.datetime: (
        lambda x: (x.replace(tzinfo=None).isoformat(), fixed_timezone(x), x.fold),
        lambda text, tz, fold: datetime.datetime.fromisoformat(text).replace(tzinfo=tz, fold=fold),
    ),
    datetime.time: (
        lambda x: (x.replace(tzinfo=None).isoformat(), fixed_timezone(x), x.fold),
        lambda text, tz, fold: datetime.time.fromisoformat(text).replace(tzinfo=tz, fold=fold),
    ),
    torch.Size: (tuple, lambda *shape: torch.Size(shape)),
    torch.device: (lambda x: (str(x),), torch.device),
    **{kind: (lambda x: (str(x),), kind) for kind in (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)},
}
BUILDERS = {kind.__name__: build for kind, (_, build) in IMMUTABLES.items()}
CONTAINERS: tuple[type, ...] = (OrderedDict, dict, list, set, deque)  # subclasses before their bases
CREATABLE = {  # containers that the reader may create; those of other classes must exist and are filled
    kind.__name__: kind for kind in (*CONTAINERS, Counter, defaultdict)
}
FACTORIES = {kind.__name__: kind for kind in (int, float, bool, complex, str, bytes, tuple, *CREATABLE.values())}
MAX_VALUES = 20_000  # of one attribute: all are written in every phase
MAX_DEPTH = 40
MAX_BYTES = 1 << 26  # of all arrays and tensors that a fresh environment does not have
MAX_TEXT = 1 << 24  # of the rest, as JSON


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def float_node(value: float) -> Node:
    """A float, bit for bit."""
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def dtype_node(dtype: np.dtype[Any]) -> Node:
    """A NumPy type in values that JSON has."""
    if dtype.names is None and np.dtype(dtype.str) == dtype and np.dtype(dtype.str).type is dtype.type:
        return dtype.str
    fields = list(dtype.descr)
    if dtype.names is None or np.dtype(fields) != dtype:
        raise CannotSave(f"array of {dtype}")
    return [[*field] for field in fields]


def dtype_from(node: Node) -> np.dtype[Any]:
    def field(entry: Any) -> tuple[Any, ...]:
        name, kind, *shape = entry
        return (name, kind if isinstance(kind, str) else [field(inner) for inner in kind], *map(tuple, shape))

    dtype = np.dtype(node if isinstance(node, str) else [field(entry) for entry in node])
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("a type of objects")
    return dtype


# objects ----------------------------------------------------------------------------------------------------------------


class AttributeLayout:
    """Where the objects of a class keep their attributes."""

    def __init__(self, kind: Any) -> None:
        entries = [pair for c in kind.__mro__ for pair in vars(c).items() if isinstance(pair[1], MemberDescriptorType)]
        self.slots: dict[str, Any] = {name: entry for name, entry in entries if not name.startswith("__")}
        pointers = len(self.slots) + bool(kind.__weakrefoffset__) + bool(kind.__dictoffset__)
        written = all(c.__flags__ & (1 << 9) for c in kind.__mro__[:-1])  # a class written in Python
        # whether attributes are all there is: the size of an object leaves no room for anything else
        self.is_plain = written and kind.__basicsize__ <= object.__basicsize__ + 8 * pointers


_layouts: WeakKeyDictionary[type, AttributeLayout] = WeakKeyDictionary()


def layout(kind: type) -> AttributeLayout:
    found = _layouts.get(kind)
    if found is None:
        found = _layouts[kind] = AttributeLayout(kind)
    return found


def attributes_of(thing: object) -> Iterator[tuple[str, Any]]:
    rebuilt: frozenset[str] = getattr(type(thing), "_not_saved", frozenset())
    place = layout(type(thing))
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if name not in rebuilt:
            yield name, value
    for name, entry in place.slots.items():
        if place.is_plain and hasattr(thing, name):
            yield name, entry.__get__(thing)


def is_settable(kind: type, name: object) -> bool:
    """Whether an attribute of that name can hold a value: its class defines no method or property of that name."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return False
    there = next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)
    if there is None or isinstance(there, (MemberDescriptorType, functools.cached_property)):
        return True
    return not (callable(there) or hasattr(type(there), "__get__"))


def set_attribute(thing: object, name: str, value: object) -> None:
    """Set an attribute in its slot or dictionary, whatever its class does at that."""
    object.__setattr__(thing, name, value)


def remove_attribute(thing: object, name: str) -> None:
    with suppress(AttributeError):
        object.__delattr__(thing, name)


# constants ---------------------------------------------------------------------------------------------------------------


def is_constant(value: object, is_known: Callable[[Any], bool], depth: int = 0) -> bool:
    """Whether nothing in a value can change: a class, a module, a function that captures only constants."""

    def constant(inner: object) -> bool:
        return depth < MAX_DEPTH and (is_known(inner) or is_constant(inner, is_known, depth + 1))

    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, ModuleType, Enum, *IMMUTABLES)):
        return True
    if isinstance(value, (torch.dtype, np.dtype, np.ufunc, np.generic, logging.Logger)):
        return not isinstance(value, np.void)
    if isinstance(value, (tuple, frozenset)):
        return all(map(constant, value))
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or constant(value.__self__)
    if isinstance(value, MethodType):
        return constant(value.__self__) and constant(value.__func__)
    if isinstance(value, functools.partial):
        return all(map(constant, (value.func, *value.args, *value.keywords.values())))
    if not isinstance(value, FunctionType) or vars(value).keys() - {"__wrapped__"}:
        return False
    captured = [*vars(value).values(), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # an empty one
            captured.append(cell.cell_contents)
    return all(map(constant, captured))


# random generators -----------------------------------------------------------------------------------------------------

GLOBAL_STREAMS: tuple[Any, ...] = (  # the objects behind random.random(), np.random.rand() and torch.rand()
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.rand.__self__,  # type: ignore[attr-defined]
    torch.default_generator,
)
streams_lock = threading.RLock()  # held while they are changed and restored
GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
INDICES = {
    "pos": 624,
    "buffer_pos": 4,
}  # of NumPy's states and the largest valid value of each: NumPy does not check them


def generator_state(generator: Any) -> Any:
    """The position of a generator in its stream, in values that JSON has."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes().hex()
    if isinstance(generator, np.random.Generator):
        return to_plain(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return to_plain(generator.state)
    if isinstance(generator, np.random.RandomState):
        return to_plain(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return [version, list(words), gauss]


def set_stream_position(generator: Any, state: Any) -> None:
    """Let a generator go on from a position. Raises an exception if that is invalid."""
    if isinstance(generator, torch.Generator):
        words = torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        if words.shape == generator.get_state().shape:  # they differ between kinds of device
            generator.set_state(words)
    elif isinstance(generator, random.Random):
        version, words, gauss = state
        generator.setstate((version, tuple(words), gauss))
    else:
        check_generator_state(state)
        if isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            generator.state = state


def check_generator_state(state: Any) -> None:
    """Check the indices in a state of NumPy's, which would otherwise read beyond its memory."""
    inner = state["state"]
    for name, most in INDICES.items():
        for found in (state, inner):
            index = found.get(name, 0) if isinstance(found, dict) else 0
            if type(index) is not int or not 0 <= index <= most:
                raise ValueError(f"{name} {index} is not within 0 and {most}")
    if state["bit_generator"] == "MT19937" and len(inner["key"]) != INDICES["pos"]:
        raise ValueError(f"a key of {len(inner['key'])} words")


def to_plain(state: object) -> object:
    if isinstance(state, dict):
        return {name: to_plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


class SavedStreams:
    """The positions of the process's random streams and of the generators that an object holds."""

    def __init__(self, thing: object) -> None:
        sources = [*GLOBAL_STREAMS, *(value for value in vars(thing).values() if isinstance(value, GENERATORS))]
        self.before = [(source, generator_state(source)) for source in sources]

    def restore(self) -> bool:
        """Set all of them back; returns whether none had been drawn from."""
        untouched = True
        for source, before in self.before:
            if generator_state(source) != before:
                set_stream_position(source, before)
                untouched = False
        return untouched
