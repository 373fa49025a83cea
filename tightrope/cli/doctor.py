"""tightrope doctor: what works on this machine, what is missing, and the command that installs it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..engine import distributed
from ..version import __version__
from .arguments import cli_command

if TYPE_CHECKING:
    from ..tools.doctor import Check, CheckResult

MARKS = {"ok": "ok", "absent": "-", "warning": "!", "broken": "X"}
MARK_COLORS = {"ok": 32, "absent": 2, "warning": 33, "broken": 31}  # green, dim, yellow, red
NAME_WIDTH = 15
NARROW = 60  # columns, below which a name has a line of its own
wrap = partial(textwrap.fill, break_on_hyphens=False)


@dataclass(kw_only=True)
class DoctorOptions:
    device: str = "auto"
    """Device to try things on: auto, cpu, cuda, cuda:1 or mps; auto chooses as training would."""
    quick: bool = False
    """Do not try to compile, which takes longer than everything else together."""
    json: bool = False
    """Print one JSON object instead of lines."""


@cli_command("doctor", DoctorOptions)
def doctor_main(options: DoctorOptions) -> int:
    """Check versions, devices, threads and disk, try what a run needs, and print what is missing and what installs it.

    Exit code 1 if no run would work. Under torchrun it also measures the communication between ranks:
    torchrun --nproc-per-node 2 -m tightrope doctor. Example: tightrope doctor --quick
    """
    from ..tools.doctor import RANKS, checks, run_check

    several = distributed.is_launched() and int(os.environ["WORLD_SIZE"]) > 1
    if several and os.environ["RANK"] != "0":  # the first rank reports for all, unless this one could not join
        failed = [result for result in run_check(RANKS) if result.verdict == "broken" and not result.fix]
        for result in failed:
            print(f"tightrope: rank {os.environ['RANK']}: {result.words}", file=sys.stderr)
        return 1 if failed else 0
    to_do = [*[RANKS] * several, *checks(options.device, options.quick)]
    if options.json:
        found = [result for check in to_do for result in run_check(check)]
        works = all(result.verdict != "broken" for result in found)
        records = [asdict(result) for result in found]
        print(json.dumps({"tightrope": __version__, "works": works, "findings": records}, allow_nan=False))
    else:
        terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        found = print_report(to_do, Lines(shutil.get_terminal_size().columns if terminal else None))
    return 1 if any(result.verdict == "broken" for result in found) else 0


def print_report(to_do: Sequence[Check], lines: Lines) -> list[CheckResult]:
    """Run the checks and print each result at once, then a summary."""
    from ..tools.doctor import run_check

    found: list[CheckResult] = []
    for check in to_do:
        lines.status(f"checking {check.name}")
        new = run_check(check)
        lines.status("")
        lines.results(new)
        found += new
    lines.summary(found)
    return found


class Lines:
    """One line for each result under the title of its part: for a terminal in color and wrapped, for a pipe plain."""

    def __init__(self, width: int | None) -> None:
        self.width = width  # None: not a terminal
        self.color = width is not None and "NO_COLOR" not in os.environ
        self.part = ""

    def results(self, found: list[CheckResult]) -> None:
        for result in found:
            if result.part != self.part:
                self.title(result.part)
                self.part = result.part
            self.row(result, result.words)

    def summary(self, found: list[CheckResult]) -> None:
        wrong = [result for result in found if result.verdict in ("broken", "warning")]
        missing = [result for result in found if result.verdict == "absent" and result.fix]
        broken = [result.name for result in found if result.verdict == "broken"]
        if wrong:
            self.title("what to look at")
        for result in wrong:
            self.row(result, f"{result.fix} ({result.words})" if result.fix else result.words)
        if missing:
            self.title("what could be added")
        for result in missing:
            self.row(result, result.fix)
        works = "runs work here: tightrope train CartPole-v1"
        self.title(f"no run works here: see {', '.join(broken)}" if broken else works)

    def status(self, words: str) -> None:
        """What is being checked, on a terminal; the next line replaces it."""
        if self.width is not None:
            print(f"\r\x1b[K{words[: self.width - 1]}", end="", flush=True)

    def title(self, words: str) -> None:
        text = wrap(words, self.width or len(words))
        print("\n" * bool(self.part) + (f"\x1b[1m{text}\x1b[0m" if self.color else text), flush=True)

    def row(self, result: CheckResult, words: str) -> None:
        mark = f"{MARKS[result.verdict]:<2}"
        start = f"  {mark}  {result.name:<{NAME_WIDTH}}  "
        if self.width is None:
            text = start + words
        elif self.width < NARROW:
            text = start.rstrip() + "\n" + textwrap.indent(wrap(words, self.width - 6), " " * 6)
        else:
            text = start + textwrap.indent(wrap(words, self.width - len(start)), " " * len(start)).lstrip()
        if self.color:
            text = text.replace(mark, f"\x1b[{MARK_COLORS[result.verdict]}m{mark}\x1b[0m", 1)
        print(text, flush=True)
