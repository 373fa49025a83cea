"""Wrappers of environments, as settings: a function or class of the user's that takes an environment and returns one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..envs.registry import Wrap, id_or_path, module_and_name
from ..errors import UsageError


@dataclass(frozen=True)
class Wrapper:
    """A wrapper by its import path, which the settings hold, and the function itself, once it is imported or given."""

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
