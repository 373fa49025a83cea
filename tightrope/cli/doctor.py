"""tightrope doctor: what works on this machine, what is missing, and the command that installs it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..arguments import show_help, wants_help
from ..engine import distributed
from ..version import __version__
from .options import read_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..runs.doctor import Check, Finding

MARKS = {"ok": "ok", "absent": "-", "warning": "!", "broken": "X"}
COLORS = {"ok": "green", "absent": "dim", "warning": "yellow", "broken": "bold red"}
WIDE = 15  # letters of a name


@dataclass(kw_only=True)
class DoctorOptions:
    device: str = "auto"
    """Device to try things on: auto, cpu, cuda, cuda:1 or mps; auto chooses as training would."""
    quick: bool = False
    """Do not try to compile, which takes longer than everything else together."""
    json: bool = False
    """Print one JSON object instead of lines."""


def doctor(args: list[str]) -> int:
    """Look at versions, devices, threads and disk, try what a run needs, and say what is missing and what installs it.

    Exit code 1 if no run would work. Under torchrun it measures what ranks say to each other, too:
    torchrun --nproc-per-node 2 -m tightrope doctor. Example: tightrope doctor --quick
    """
    if wants_help(args):
        return show_help(DoctorOptions, "doctor", doctor.__doc__)
    options = DoctorOptions(**read_options(DoctorOptions, args, "doctor", words=0)[1])
    from ..runs.doctor import checks, of_ranks

    together = of_ranks() if distributed.is_launched() and int(os.environ["WORLD_SIZE"]) > 1 else []
    if together and os.environ["RANK"] != "0":
        return take_part(together[0])
    found = seen([*together, *checks(options.device, options.quick)], display(options.json))
    return 1 if any(finding.verdict == "broken" for finding in found) else 0


def take_part(check: Check) -> int:
    """A rank that is not the first says nothing here, unless it could not even join."""
    from ..runs.doctor import findings_of

    broken = [finding for finding in findings_of(check) if finding.verdict == "broken" and not finding.fix]
    for finding in broken:
        print(f"tightrope: rank {os.environ['RANK']}: {finding.words}", file=sys.stderr)
    return 1 if broken else 0


def seen(to_do: Sequence[Check], shown: Display) -> list[Finding]:
    """Everything that was found, shown as it comes."""
    from ..runs.doctor import findings_of

    found: list[Finding] = []
    for check in to_do:
        with shown.busy(check.name):
            new = findings_of(check)
        shown.show(new)
        found += new
    shown.close(found)
    return found


# how it is shown ------------------------------------------------------------------------------------------------------


class Display(Protocol):
    def busy(self, name: str) -> AbstractContextManager[Any]: ...
    def show(self, found: list[Finding]) -> None: ...
    def close(self, found: list[Finding]) -> None: ...


def display(as_json: bool) -> Display:
    if as_json:
        return JsonObject()
    alive = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return Screen() if alive else PlainLines()


class JsonObject:
    """Everything at the end, for machines."""

    def busy(self, name: str) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def show(self, found: list[Finding]) -> None:
        pass

    def close(self, found: list[Finding]) -> None:
        works = all(finding.verdict != "broken" for finding in found)
        records = [finding.as_record() for finding in found]
        print(json.dumps({"tightrope": __version__, "works": works, "findings": records}, allow_nan=False))


class PlainLines:
    """One line each, under the name of its part."""

    part = ""

    def busy(self, name: str) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def show(self, found: list[Finding]) -> None:
        for finding in found:
            if finding.part != self.part:
                self.title(finding.part)
                self.part = finding.part
            self.row(MARKS[finding.verdict], finding.name, finding.words, COLORS[finding.verdict])

    def close(self, found: list[Finding]) -> None:
        """What is missing comes last, where it is read."""
        wrong = [finding for finding in found if finding.verdict in ("broken", "warning")]
        missing = [finding for finding in found if finding.verdict == "absent" and finding.fix]
        if wrong:
            self.title("what to look at")
        for finding in wrong:
            words = f"{finding.fix} ({finding.words})" if finding.fix else finding.words
            self.row(MARKS[finding.verdict], finding.name, words, COLORS[finding.verdict])
        if missing:
            self.title("what could be added")
        for finding in missing:
            self.row(MARKS[finding.verdict], finding.name, finding.fix, COLORS[finding.verdict])
        broken = [finding.name for finding in found if finding.verdict == "broken"]
        works = "runs work here: tightrope train CartPole-v1"
        self.title(f"no run works here: see {', '.join(broken)}" if broken else works)

    def title(self, words: str) -> None:
        print(f"{words}" if not self.part else f"\n{words}", flush=True)

    def row(self, mark: str, name: str, words: str, color: str) -> None:
        print(f"  {mark:<2}  {name:<{WIDE}}  {words}", flush=True)


class Screen(PlainLines):
    """The same on a terminal: in colours, folded to its width, with a word about what takes its time."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(highlight=False)

    def busy(self, name: str) -> AbstractContextManager[Any]:
        return self.console.status(f"looking at {name}")

    def title(self, words: str) -> None:
        from rich.text import Text

        if self.part:
            self.console.print()
        self.console.print(Text(words, "bold"))

    def row(self, mark: str, name: str, words: str, color: str) -> None:
        """Words beside the name, or below it where there is little room."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if self.console.width < 60:
            self.console.print(Text.assemble("  ", (f"{mark:<2}", color), f"  {name}"))
            self.console.print(Padding(Text(words, overflow="fold"), (0, 0, 0, 6)))
            return
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=4)
        line.add_column(width=WIDE)
        line.add_column(overflow="fold")
        line.add_row(Text(f"  {mark}", color), Text(name), Text(words))
        self.console.print(line)
