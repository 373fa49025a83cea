"""Import the wrappers and functions that a user names. Those that a file names are never imported here: `user_objects` has the
rule."""

from __future__ import annotations

from ..errors import UsageError
from ..types import Settings
from .config import Config
from .function_trial import try_function
from .functions import OwnFunction
from .user_objects import imported
from .wrappers import Wrapper


def with_own_code(settings: Settings) -> Settings:
    """The settings with the wrappers and functions that the user named as module:function imported."""
    added: Settings = {}
    wrappers, functions = settings.get("wrappers", ()), settings.get("functions", ())
    if wrappers:
        added["wrappers"] = tuple(imported_wrapper(one) for one in wrappers)
    if functions:
        added["functions"] = tuple(imported_function(one) for one in functions)
    return {**settings, **added}


def imported_wrapper(one: Wrapper) -> Wrapper:
    found = one if one.function is not None else Wrapper(one.path, imported(one.path, "wrappers"))
    if not callable(found.function):
        raise UsageError(f"wrappers {one.path!r} is not a function or class: give one that takes an environment")
    return found


def imported_function(one: OwnFunction) -> OwnFunction:
    """The function, imported if it was named, after a trial on small tensors."""
    found = one if one.function is not None else OwnFunction(one.name, one.path, imported(one.path, one.name))
    try_function(found)
    return found


def import_own_code(config: Config, names: tuple[str, ...] = ("wrappers", "functions")) -> Config:
    """`with_own_code` for settings that a user gave."""
    given = {name: value for name in names if (value := getattr(config.run, name))}
    return config.changed(**with_own_code(given)) if given else config
