"""Command-line words to settings, held to the same types and errors as keywords and YAML. tyro draws the --help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import tyro

from .errors import UsageError
from .runs.config import coerce
from .types import Settings

Unknown = Callable[[str], UsageError]


def read_arguments(args: Sequence[str], types: dict[str, Any], unknown: Unknown) -> tuple[list[str], Settings]:
    """(words that belong to no flag, flags given). `types` names every flag; `unknown(name)` is the error for another."""
    words: list[str] = []
    flags: Settings = {}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            words.append(word)
            continue
        text, equals, value = word[2:].partition("=")
        name = text.replace("-", "_")
        turned_off = name.removeprefix("no_") if name not in types else ""
        if types.get(turned_off) is bool and not equals:
            flags[turned_off] = False
        elif name not in types:
            raise unknown(name)
        elif types[name] is bool and not equals and not (rest and rest[0].lower() in ("true", "false")):
            flags[name] = True
        else:
            many = get_origin(types[name]) in (tuple, dict)
            values = [value] if equals else take(rest, many)
            if not values:
                raise UsageError(f"{name} needs a value: give it after {word}")
            given = from_text(name, values, types[name])
            if many and name in flags:
                given = flags[name] | given if isinstance(given, dict) else flags[name] + given
            flags[name] = given
    return words, flags


def take(rest: list[str], many: bool) -> list[str]:
    """The values of a flag: one word, or all up to the next flag."""
    values: list[str] = []
    while rest and not rest[0].startswith("--") and (many or not values):
        values.append(rest.pop(0))
    return values


def from_text(name: str, values: list[str], annotation: Any) -> Any:
    if annotation in (Path, Path | None):
        return Path(values[0])
    if get_origin(annotation) is tuple and values == ["none"]:
        return ()
    if get_origin(annotation) in (tuple, dict):
        return coerce(name, values, annotation)
    value: Any = values[0]
    if annotation is bool or type(None) in get_args(annotation):
        value = {"none": None, "true": True, "false": False}.get(value.lower(), value)
    return coerce(name, value, annotation)


def show_help(options: Any, command: str, description: str | None, default: Any = None) -> int:
    """Print a command's help."""
    extra = {} if default is None else {"default": default}
    try:
        tyro.cli(
            options,
            args=["--help"],
            prog=f"tightrope {command}",
            description=inspect.cleandoc(description or ""),
            **extra,
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def wants_help(args: Sequence[str]) -> bool:
    return "--help" in args or "-h" in args
