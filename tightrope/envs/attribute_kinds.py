"""Which attribute values can be saved, and their size limits; see `attributes`."""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from .random_streams import GLOBAL_STREAMS

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

    if isinstance(value, CONSTANTS) or any(value is stream for stream in GLOBAL_STREAMS):
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
