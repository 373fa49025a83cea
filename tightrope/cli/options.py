"""Words and flags of a command, read under its types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from ..arguments import read_arguments
from ..errors import UsageError, near_matches
from ..runs.names import ARGUMENTS, SETTINGS
from ..types import Settings


def read_options(options: type[Any], args: Sequence[str], command: str, words: int = 1) -> tuple[list[str], Settings]:
    """(plain words, flags) of one of the smaller commands."""
    types = {name: kind for name, kind in get_type_hints(options).items() if name not in ("run", "target")}

    def unknown(name: str) -> UsageError:
        flag = f"--{name.replace('_', '-')}"
        other = ARGUMENTS.get(name, SETTINGS.get(name, ""))
        if other in types:
            return UsageError(f"unknown option {flag!r}: here it is called --{other.replace('_', '-')}")
        return UsageError(
            f"unknown option {flag!r}.{near_matches(name, types)} `tightrope {command} --help` lists them"
        )

    found, flags = read_arguments(args, types, unknown)
    if len(found) > words:
        raise UsageError(f"one word too many: {found[words]!r}. `tightrope {command} --help` says what there is")
    return found, flags


def guess(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag that decides how the others are read."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.partition("=")[2]
    return None
