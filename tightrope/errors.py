"""Exceptions: mistakes of the user, as one line with the setting, its value and a fix, and failures of a run."""

import difflib
import operator
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .output import print_line

MAX_MESSAGE_CHARS = 1500
MAX_SEED = 2**63 - 1  # the largest that torch accepts


def printable(text: str) -> str:
    """Text on one line without control characters: a message may quote text of a stranger."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    half = MAX_MESSAGE_CHARS // 2
    return shown if len(shown) <= MAX_MESSAGE_CHARS else f"{shown[:half]} ... {shown[-half:]}"


def warn(line: str) -> None:
    """Print a warning on stderr."""
    print_line(f"warning: {printable(line)}", error=True)


def plural(count: int, word: str) -> str:
    """'1 phase', '2 phases'."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def in_unit(value: float | None, unit: str) -> str:
    """A score in the task's own unit, such as '11.8 rad/s'; empty for a task without one."""
    return f"{value:.3g} {unit}" if value is not None and unit else ""


class UsageError(Exception):
    """A mistake of the user. The message is one line that can be shown to the user."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def check_positive(name: str, value: int | None) -> None:
    """Raise UsageError for a setting below 1; None means not set."""
    if value is not None and value < 1:
        raise UsageError(f"{name} {value} is not positive: give at least 1")


def check_count(name: str, value: object, most: int) -> None:
    """Raise UsageError unless this is a whole number from 1 to `most`."""
    if not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{name} {value!r} is invalid: give a whole number from 1 to {most:,}")


def checked_seed(seed: Any) -> int:
    """Return the seed; UsageError unless it is a whole number that every generator accepts."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise UsageError(f"seed {seed!r} is not a whole number: give one from 0 to 2^63 - 1")
    number = operator.index(seed)
    if not 0 <= number <= MAX_SEED:
        shown = number if abs(number) < 10**40 else "of so many digits"
        raise UsageError(f"seed {shown} is out of range: give a whole number from 0 to 2^63 - 1")
    return number


def printable_lines(text: str) -> str:
    """Several lines, each as `printable` shows it."""
    return "\n".join(map(printable, text.split("\n")))


class EnvError(RuntimeError):
    """An environment failed. The message names it, its row and the action."""

    def __init__(self, message: object) -> None:
        super().__init__(printable(str(message)))  # the message may quote the environment


class MaskError(ValueError):
    """An action mask of an environment is missing or invalid. The message ends with the fix."""


class ExportError(RuntimeError):
    """An exported policy disagrees with torch and was not written. The message is one line."""


class NotFinite(ArithmeticError):
    """A phase of training has a non-finite number. The message names the first one, the likely cause and a fix."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class RankLost(RuntimeError):
    """Another rank of the run is lost. The message names the rank and the evidence.

    `printed`: the message has been printed already.
    """

    def __init__(self, message: str | None, printed: bool = False) -> None:
        super().__init__(message)
        self.printed = printed


def near_matches(name: str, known: Iterable[str]) -> str:
    """' Did you mean A or B?' for the closest known names, or nothing."""
    by_folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(by_folded[c] for c in close)}?" if close else ""


def one_line(error: BaseException) -> str:
    """An exception's message on one line; its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def root_cause(error: BaseException) -> BaseException:
    """The first exception in a chain of causes."""
    return error if error.__cause__ is None else root_cause(error.__cause__)


def raised(error: BaseException) -> str:
    """An exception with its source line; if the user's code was involved, the line there."""
    words = f"{type(error).__name__}: {one_line(error)}"
    libraries = ("site-packages", sysconfig.get_paths()["stdlib"], str(Path(__file__).parent))
    frames = traceback.extract_tb(root_cause(error).__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in libraries)] or frames
    if not own:
        return words
    path = Path(own[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{words} ({shown}:{own[-1].lineno})"
