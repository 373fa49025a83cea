"""Import the wrappers that a user names. Those that a file names are never imported here: `user_objects` has the rule."""

from __future__ import annotations

from ..errors import UsageError
from ..types import Settings
from .config import Config
from .user_objects import imported
from .wrappers import Wrapper


def with_wrappers(settings: Settings) -> Settings:
    """The settings with the wrappers that the user named as module:function imported."""
    wrappers = settings.get("wrappers", ())
    found = [one if one.function is not None else Wrapper(one.path, imported(one.path, "wrappers")) for one in wrappers]
    for one in found:
        if not callable(one.function):
            raise UsageError(f"wrappers {one.path!r} is not a function or class: give one that takes an environment")
    return {**settings, "wrappers": tuple(found)} if found else settings


def import_wrappers(config: Config) -> Config:
    """`with_wrappers` for settings that a user gave."""
    return config.changed(**with_wrappers({"wrappers": config.run.wrappers})) if config.run.wrappers else config
