"""Errors: a user's mistake as a single line that names the setting, the value and a fix; and failures while a run trains."""

import difflib
import operator
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .output import print_line

MOST_LETTERS = 1500  # of a message
MOST_SEED = 2**63 - 1  # that torch's generators take


def printable(text: str) -> str:
    """Text in one line that does nothing to a terminal: a message may quote what a stranger wrote."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS // 2]} ... {shown[-MOST_LETTERS // 2 :]}"


def warn(line: str) -> None:
    """A line for the user, on stderr."""
    print_line(f"warning: {printable(line)}", error=True)


def plural(count: int, word: str) -> str:
    """'1 phase', '2 phases'."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


class UsageError(Exception):
    """A request that cannot be served as written. Its message is one line, fit to be shown to a person as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def check_positive(name: str, value: int | None) -> None:
    """UsageError for a setting below 1; None means that it is not set."""
    if value is not None and value < 1:
        raise UsageError(f"{name} {value} is not positive: give at least 1")


def checked_seed(seed: Any) -> int:
    """A seed as a whole number that every generator takes."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise UsageError(f"seed {seed!r} is not a whole number: give one from 0 to 2^63 - 1")
    number = operator.index(seed)
    if not 0 <= number <= MOST_SEED:
        shown = number if abs(number) < 10**40 else "of so many digits"
        raise UsageError(f"seed {shown} is out of range: give a whole number from 0 to 2^63 - 1")
    return number


def printable_lines(text: str) -> str:
    """Several lines, each as `printable` shows it."""
    return "\n".join(map(printable, text.split("\n")))


class EnvError(RuntimeError):
    """An environment failed while it was being used. Names it, its row and the action it was given."""

    def __init__(self, message: object) -> None:
        super().__init__(printable(str(message)))  # it may quote the environment


class ExportError(RuntimeError):
    """An exported policy is not what it should be, and was not written. Its message is one line."""


class NotFinite(ArithmeticError):
    """Something in a phase of training was not a finite number. One line: what was the first, the likely cause, a fix."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class RankLost(RuntimeError):
    """A process that trains together with this one is gone. One line: which one, and how it is known.

    `printed` if that line has been printed already.
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
    """The first error of a chain."""
    return error if error.__cause__ is None else root_cause(error.__cause__)


def raised(error: BaseException) -> str:
    """What was raised, and the line that did it: one of the user's if one took part."""
    words = f"{type(error).__name__}: {one_line(error)}"
    libraries = ("site-packages", sysconfig.get_paths()["stdlib"], str(Path(__file__).parent))
    frames = traceback.extract_tb(root_cause(error).__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in libraries)] or frames
    if not own:
        return words
    path = Path(own[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{words} ({shown}:{own[-1].lineno})"
