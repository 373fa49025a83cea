"""Functions of the user's in place of an algorithm's, as settings: the name of what each replaces, and its import path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from ..algorithms import ALGORITHMS
from ..engine.functions import Functions
from ..envs.registry import id_or_path, module_and_name
from ..errors import UsageError, near_matches

NAMES = tuple(f.name for f in fields(Functions))


@dataclass(frozen=True)
class OwnFunction:
    """The name of the function that is replaced, the import path that the settings hold, and the function itself, once it is
    imported or given."""

    name: str
    path: str
    function: Callable[..., object] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}={self.path}"


def read_function(name: str, value: object) -> OwnFunction:
    """The function that stands for `name`: module:function as text, or the function itself."""
    if isinstance(value, OwnFunction):
        return value
    if isinstance(value, str) and all(module_and_name(value, name)):
        return OwnFunction(name, value)
    if callable(value):
        return OwnFunction(name, id_or_path(value), value)
    raise UsageError(f"{name} {value!r} is not a function: give one, or its name as module:function")


def read_functions(value: Iterable[object]) -> tuple[OwnFunction, ...]:
    """The value of the setting `functions`: name=module:function as text, or a mapping from names to functions."""
    if isinstance(value, Mapping):
        return tuple(read_function(known_name(str(name)), one) for name, one in value.items())
    found = []
    for item in value:
        name, equals, path = item.partition("=") if isinstance(item, str) else ("", "", "")
        if not equals and not isinstance(item, OwnFunction):
            raise UsageError(f"functions {item!r} is not name=module:function: give it as in gae=my_module:my_gae")
        found.append(item if isinstance(item, OwnFunction) else read_function(known_name(name), path))
    return tuple(found)


def known_name(name: str) -> str:
    if name not in NAMES:
        raise UsageError(f"functions has no {name!r}.{near_matches(name, NAMES)} Give one of: {', '.join(NAMES)}")
    return name


def with_later(before: Iterable[OwnFunction], after: Iterable[OwnFunction]) -> tuple[OwnFunction, ...]:
    """Both, where a later function of the same name replaces an earlier one."""
    return tuple({one.name: one for one in (*before, *after)}.values())


def check_used(functions: Iterable[OwnFunction], algo: str, clip_vloss: bool) -> None:
    """Raise UsageError for a function that the algorithm does not use."""
    used = ALGORITHMS[algo].config.replaceable.split()
    for one in functions:
        if one.name not in used:
            raise UsageError(f"{algo} does not use {one.name}: give one of {', '.join(used)}, or another algorithm")
        if one.name == "value_loss" and clip_vloss:
            raise UsageError("value_loss is not used with clip_vloss: drop one of them")


def check_given(functions: Iterable[OwnFunction]) -> None:
    """Raise UsageError if a function of a saved run was not given again."""
    for one in functions:
        if one.function is None:
            lost = f"{one.name} of this run is your function {one.path}, which is not saved"
            raise UsageError(
                f"{lost}: pass it again, tr.load(path, {one.name}=...) or --functions {one}, or give functions=[] for ours"
            )
