"""What a look at this machine finds; and checks, which cannot fail: one that does is itself a finding."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ...errors import UsageError, plain

Verdict = Literal["ok", "absent", "warning", "broken"]  # absent: not here and not needed; broken: no run without it


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is a command, or a few words, where something can be done about it."""

    name: str
    words: str
    verdict: Verdict = "ok"
    fix: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # the same for machines: numbers in bytes and seconds
    part: str = ""

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


class Check(NamedTuple):
    """A look at something, and what follows if the look itself fails."""

    part: str
    name: str
    look: Callable[[], Iterable[Finding]]
    if_it_fails: Verdict = "warning"


def findings_of(check: Check) -> list[Finding]:
    """What a check finds, its failure included. What it prints goes where it is in nobody's way."""
    found: list[Finding] = []
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            found.extend(check.look())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a library's panic is none of Python's ordinary exceptions
        words = in_words(error) if isinstance(error, UsageError) else f"cannot be looked at: {in_words(error)}"
        found.append(Finding(check.name, words, check.if_it_fails))
    return [replace(finding, part=check.part) for finding in found]


def in_words(error: BaseException) -> str:
    """An exception in one line; the first of what it says is what matters."""
    if isinstance(error, UsageError):
        return str(error)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return plain(f"{type(error).__name__}: {said}" if said else type(error).__name__)[:300]


def in_bytes(count: float) -> str:
    """40 kB, 7 MB, 64 GiB would be too fine for anyone: powers of a thousand, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def in_seconds(seconds: float) -> str:
    """With the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
