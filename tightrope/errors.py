"""Mistakes in what was asked for, as a single line that names the setting, the value and a fix; and what fails on the way."""

import difflib
from collections.abc import Iterable


class UsageError(Exception):
    """A request that cannot be served as written. Its message is one line, fit to be shown to a person as it is."""


class EnvError(RuntimeError):
    """An environment failed while it was being used. Names it, its row and the action it was given."""


class ExportError(RuntimeError):
    """An exported policy is not what it should be, and was not written. Its message is one line."""


class NotFinite(ArithmeticError):
    """Something in a phase of training was not a finite number. One line: what was the first, the likely cause, a fix."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """' Did you mean A or B?' for the closest known names, or nothing."""
    by_folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(by_folded[c] for c in close)}?" if close else ""
