"""Parse command-line arguments into an options dataclass, and print help from its field types and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import UsageError, near_matches
from ..functional import Schedule
from ..training.config import setting_types, unknown_setting
from ..training.names import ARGUMENTS, SETTINGS
from ..training.own_code import Wrapper
from ..training.schedules import HISTORY
from ..training.settings import coerce, read_settings
from ..training.user_objects import check_allowed
from ..types import Settings

FLAG_WIDTH, WIDEST = 26, 100
NO_DEFAULTS: tuple[object, ...] = (MISSING, None, (), {}, "")  # defaults that help does not show
TYPE_NAMES = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", Schedule: "SCHEDULE", Wrapper: "MODULE:NAME"}
Options = TypeVar("Options")
Main = Callable[[list[str]], int]


def cli_command(name: str, options: type[Options], needs: str = "") -> Callable[[Callable[[Options], int]], Main]:
    """Make a command from a function that takes an options dataclass. The function's docstring is the help text; `needs` is
    the error message if an argument without a default is missing."""

    def decorate(function: Callable[[Options], int]) -> Main:
        def run(args: list[str]) -> int:
            if wants_help(args):
                return show_help(name, function.__doc__, options)
            words, flags = read_arguments(args, flag_types(options), partial(unknown_option, options, name))
            found = {**placed(options, words, name), **flags}
            if any(f.default is MISSING and f.name not in found for f in fields(options)):  # type: ignore[arg-type]
                raise UsageError(needs)
            run_dir = found.get("run")
            if isinstance(run_dir, Path) and not run_dir.is_dir():
                raise UsageError(f"{run_dir} is not a run: there is no such directory")
            return function(options(**found))

        run.__doc__ = function.__doc__
        return run

    return decorate


def placed(options: type[object], words: list[str], name: str) -> Settings:
    """Assign positional arguments to the fields of the options; a tuple field takes all of them."""
    hints = get_type_hints(options, include_extras=True)
    kinds = [(field, kind) for field, kind in hints.items() if positional_label(kind)]
    if kinds and get_origin(kinds[0][1].__origin__) is tuple:
        return {kinds[0][0]: tuple(map(Path, words))} if words else {}
    if len(words) > len(kinds):
        raise UsageError(f"one argument too many: {words[len(kinds)]!r}. `tightrope {name} --help` lists the arguments")
    return {field: kind.__origin__(word) for (field, kind), word in zip(kinds, words, strict=False)}


def unknown_option(options: type[object], command: str, name: str) -> UsageError:
    flag, types = f"--{name.replace('_', '-')}", flag_types(options)
    other = ARGUMENTS.get(name, SETTINGS.get(name, ""))
    if other in types:
        return UsageError(f"unknown option {flag!r}: here it is called --{other.replace('_', '-')}")
    return UsageError(f"unknown option {flag!r}.{near_matches(name, types)} `tightrope {command} --help` lists them")


def read_with_settings(options: type[Options], args: Sequence[str], needs: str) -> tuple[Options, Settings, Settings]:
    """Parse arguments to (options of the command, settings of the --config file, settings given as flags). `needs` is the
    error message if an argument without a default is missing."""
    own = flag_types(options)
    file = peek_flag(args, "--config") if "config" in own else None
    layer = read_settings(Path(file)) if file else {}
    layer.pop(HISTORY, None)  # the file may be the config.yaml of a run
    algo = peek_flag(args, "--algo") or str(layer.get("algo", "ppo"))
    types = {**setting_types(algo), **own}
    words, flags = read_arguments(args, types, lambda name: unknown_setting(name, algo, types))
    if len(words) > 1:
        raise UsageError(f"one argument too many: {words[1]!r}. Give one env, then flags")
    found = {name: flags.pop(name) for name in own if name in flags}
    named = {"env": words[0]} if words else {}
    check_allowed(file, layer, {**flags, **named}, found.get("allow_import", ()))
    found |= {"algo": algo, "env": words[0] if words else str(layer.get("env", ""))}
    if not found["env"] or any(f.default is MISSING and f.name not in found for f in fields(options)):  # type: ignore[arg-type]
        raise UsageError(needs)
    return options(**found), layer, flags


def read_arguments(
    args: Sequence[str], types: dict[str, Any], unknown: Callable[[str], UsageError]
) -> tuple[list[str], Settings]:
    """(positional arguments, values of flags). `types` has the type of every flag; `unknown(name)` is the error for others."""
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
        if name not in {*types, *SETTINGS} and get_origin(types.get(f"{name}s")) is tuple:
            name = f"{name}s"  # --wrapper for --wrappers
        turned_off = name.removeprefix("no_") if name not in types else ""
        if types.get(turned_off) is bool and not equals:
            flags[turned_off] = False
        elif name not in types:
            raise unknown(name)
        elif types[name] is bool and not equals and not (rest and rest[0].lower() in ("true", "false")):
            flags[name] = True
        else:
            many = collection(types[name]) is not None
            values = [value] if equals else take(rest, many)
            if not values:
                raise UsageError(f"{name} needs a value: give it after {word}")
            given = parse_flag_value(name, values, types[name])
            if many and name in flags:
                given = flags[name] | given if isinstance(given, dict) else flags[name] + given
            flags[name] = given
    return words, flags


def take(rest: list[str], many: bool) -> list[str]:
    """Remove and return the values of a flag: the next argument or, with `many`, all up to the next flag."""
    values: list[str] = []
    while rest and not rest[0].startswith("--") and (many or not values):
        values.append(rest.pop(0))
    return values


def parse_flag_value(name: str, values: list[str], kind: Any) -> Any:
    if kind in (Path, Path | None):
        return Path(values[0])
    if (several := collection(kind)) is not None:
        nothing = None if type(None) in get_args(kind) else ()
        return nothing if values == ["none"] and several is tuple else coerce(name, values, kind)
    value: object = values[0]
    if kind is bool or type(None) in get_args(kind):
        value = {"none": None, "true": True, "false": False}.get(values[0].lower(), value)
    return coerce(name, value, kind)


def collection(kind: object) -> object:
    """tuple or dict if a flag of this type takes several values, also if it may be None; None if it takes one."""
    inner = [one for one in get_args(kind) if one is not type(None)] if type(None) in get_args(kind) else [kind]
    return next((origin for one in inner if (origin := get_origin(one)) in (tuple, dict)), None)


def flag_types(options: type[object]) -> dict[str, Any]:
    """The types of the flags of an options dataclass. Fields that are Annotated with a label are positional, not flags."""
    hints = get_type_hints(options, include_extras=True)
    return {name: kind for name, kind in hints.items() if not positional_label(kind)}


def positional_label(kind: Any) -> str:
    """The label of a positional argument in help, RUN for Annotated[Path, "RUN"]; empty for a flag."""
    return str(kind.__metadata__[0]) if get_origin(kind) is Annotated else ""


def peek_flag(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag, looked up before parsing, as --algo decides which other flags exist."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.partition("=")[2]
    return None


def wants_help(args: Sequence[str]) -> bool:
    return "--help" in args or "-h" in args


# help -----------------------------------------------------------------------------------------------------------------


def show_help(command: str, about: str | None, *sections: object) -> int:
    """Print a command's help. A section is an options dataclass, or an instance whose values are shown as the defaults."""
    width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
    kinds = get_type_hints(class_of(sections[0]), include_extras=True).values()
    print(" ".join(["usage: tightrope", command, *filter(None, map(positional_label, kinds)), "[OPTIONS]"]), end="\n\n")
    for paragraph in re.split(r"\n\n|(?=Example: )", inspect.cleandoc(about or "")):
        print(textwrap.fill(" ".join(paragraph.split()), width, break_on_hyphens=False), end="\n\n")
    for i, section in enumerate(sections):
        print(f"\n{(inspect.getdoc(section) or '').splitlines()[0]}" if i else "", end="\n" * bool(i))
        print("\n".join(help_rows(section, width)) or "There are no options.")
    return 0


def class_of(section: object) -> type[Any]:
    return section if isinstance(section, type) else type(section)


def help_rows(section: object, width: int) -> Iterator[str]:
    """The help lines of a section: each flag with its description and default."""
    options, indent = class_of(section), " " * (FLAG_WIDTH + 2)
    kinds, docs = get_type_hints(options, include_extras=True), field_docs(options)
    for f in sorted(fields(options), key=lambda f: not positional_label(kinds[f.name])):  # positional arguments first
        shown = positional_label(kinds[f.name])
        value = f.default if section is options and not shown else getattr(section, f.name, None)
        text = " ".join(docs.get(f.name, "").split())
        if not shown:
            shown = shown_flag(f.name, kinds[f.name], value is True)
            text += "" if value is False or value in NO_DEFAULTS else f" (default: {shown_value(value)})"
        filled = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        start = f"  {shown}  ".ljust(len(indent))
        yield start + filled[len(start) :] if len(start) == len(indent) else f"  {shown}\n{filled}"


def shown_flag(name: str, kind: Any, is_on: bool) -> str:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        return f"{flag}, --no-{flag[2:]}" if is_on else flag
    return f"{flag} {type_name(kind)}"


def type_name(kind: Any) -> str:
    """The placeholder for a flag's value in help, such as INT or {auto,cpu}."""
    origin, inner = get_origin(kind), [one for one in get_args(kind) if one not in (type(None), ...)]
    if origin is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if origin in (Union, UnionType):
        return "|".join(map(type_name, inner))
    if origin is dict:
        return "NAME=VALUE ..."
    return f"{type_name(inner[0])} ..." if origin is tuple else TYPE_NAMES.get(kind, "VALUE")


def shown_value(value: object) -> str:
    return "on" if value is True else " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def field_docs(options: type[object]) -> dict[str, str]:
    """The string below each field of a dataclass."""
    docs: dict[str, str] = {}
    for cls in reversed([c for c in options.__mro__ if c is not object]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for line, below in pairwise(tree.body):
            match line, below:
                case ast.AnnAssign(target=name), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[ast.unparse(name)] = text
    return docs
