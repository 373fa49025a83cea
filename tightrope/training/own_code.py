"""Code of the user's as settings: wrappers of environments, and functions in place of an algorithm's.

A setting holds the import path of each, and the function itself once it is imported or given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from ..algorithms import ALGORITHMS
from ..engine.functions import Functions
from ..envs.registry import Wrap, id_or_path, module_and_name
from ..errors import UsageError, near_matches

NAMES = tuple(f.name for f in fields(Functions))


@dataclass(frozen=True)
class Wrapper:
    """A wrapper of environments: a function or class that takes an environment and returns one."""

    path: str
    function: Wrap | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.path


def read_wrapper(value: object) -> Wrapper:
    """The wrapper that a value stands for: module:function as text, or the function itself."""
    if isinstance(value, Wrapper):
        return value
    if isinstance(value, str):
        module, name = module_and_name(value, "wrappers")
        if module and name:
            return Wrapper(value)
    elif callable(value):
        return Wrapper(id_or_path(value), value)
    raise UsageError(f"wrappers {value!r} is not module:function: give it as in mypackage.wrap:clip_reward")


def functions_of(wrappers: Sequence[Wrapper]) -> tuple[Wrap, ...]:
    """The functions to apply to each environment; UsageError if one of a saved run was not given again."""
    for wrapper in wrappers:
        if wrapper.function is None:
            raise UsageError(missing(wrapper.path))
    return tuple(wrapper.function for wrapper in wrappers if wrapper.function is not None)


def missing(path: str) -> str:
    return f"the run has wrapper {path}: pass its wrappers again, tr.load(path, wrappers=[...]) or --wrappers {path}"


# functions in place of an algorithm's ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnFunction:
    """A function and the name of the one that it replaces."""

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
