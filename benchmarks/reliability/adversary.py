"""Everything that a stranger's file, a shared disk or bad luck may do to a run, done to the command line in real processes.

Prints each case with its outcome and its seconds, then a table; leaves with an error if one promise is broken.

python benchmarks/reliability/adversary.py                          # all of it
python benchmarks/reliability/adversary.py --only "^(links|locks)"  # what matches, in "group: case"
python benchmarks/reliability/adversary.py --kills 200              # and so many kills at random moments
"""

import argparse
import importlib
import importlib.util
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks import Case, Skipped
from processes import folder, table

GROUPS = {  # where the cases of each are
    "links": ("run_files", "links"),
    "pipes and devices": ("run_files", "pipes_and_devices"),
    "other links, pipes, devices and directories": ("run_files", "others"),
    "code named by a config or a storage": ("foreign_code", "cases"),
    "locks": ("locks", "cases"),
    "full-disk logs and dead readers": ("output", "cases"),
    "forged runs": ("hostile", "cases"),
    "disks": ("disk_full", "cases"),
    "signals": ("signals", "cases"),
    "two processes": ("locks", "usual_cases"),
}
TABLES = {  # who tries the cases itself, and returns (case, how it ended, seconds if it knows them) of each
    "workers and hung helpers": ("helpers", "helper_cases"),
    "attributes of an environment": (
        "attributes",
        "attribute_kinds",
    ),  # last: it trains here, and what trained is not forked
}
HELD = (True, "kept", "named")


@dataclass
class Row:
    """One line of the table."""

    group: str
    held: int = 0
    broken: int = 0
    skipped: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def cells(self) -> tuple[str, str, str, str]:
        note = f", {self.skipped} not tried" * bool(self.skipped)
        count = f"{self.held} of {self.held + self.broken}{note}"
        return self.group, count, f"{self.seconds:.0f}", f"{self.longest:.1f}" if self.longest else ""

    def add(self, case: str, outcome: str, words: str, seconds: float) -> None:
        """Count a case, and print it."""
        self.held += outcome == "held"
        self.broken += outcome == "BROKEN"
        self.skipped += outcome == "not tried"
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        print(one_line(f"{outcome:9} {seconds:5.1f} s  {self.group}: {case}{': ' * bool(words)}{words}"), flush=True)


def function_of(module: str, name: str) -> Callable[[], Any] | None:
    """None if it is not here."""
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), name, None)


def tried(case: Case) -> tuple[str, str]:
    """(held, BROKEN or not tried; in words what happened)."""
    with folder() as path:
        try:
            return "held", str(case(Path(path)) or "as promised")
        except Skipped as reason:
            return "not tried", str(reason)
        except Exception as error:
            return "BROKEN", f"{error or type(error).__name__}"


def attack(group: str, wanted: Callable[[str], object], every: int, times: int) -> Row:
    """Try the cases of a group."""
    row, function = Row(group), function_of(*GROUPS[group])
    cases: dict[str, Case] = {} if function is None else function()
    for name in [name for name in cases if wanted(f"{group}: {name}")][::every]:
        for _ in range(times):
            began = time.perf_counter()
            row.add(name, *tried(cases[name]), time.perf_counter() - began)
    return row


def gather(group: str, wanted: Callable[[str], object]) -> Row:
    """Let others try the cases of a group."""
    row = Row(group)
    if not wanted(f"{group}: "):
        return row
    if (function := function_of(*TABLES[group])) is None:
        print(f"{group}: not here", flush=True)
        return row
    began, found = time.perf_counter(), function()
    share = (time.perf_counter() - began) / max(len(found), 1)
    for name, ended, *seconds in found:
        words = ended if isinstance(ended, str) else ""
        row.add(name, "held" if ended in HELD else "BROKEN", words, *seconds or [share])
    return row


def one_line(words: str, most: int = 400) -> str:
    line = " / ".join(words.split("\n")).strip()
    return line if len(line) <= most else f"{line[:most]}..."


def kill(kills: int) -> Row:
    """Kills at random moments; kills.py has more of them, and one at every file operation."""
    from kills import kill_at_random

    row, began = Row("kills at random moments"), time.perf_counter()
    try:
        row.held = kill_at_random(kills, 40, 0.1, random.Random(0))[0].total()
    except AssertionError as error:
        print(f"BROKEN {row.group}: {error}", flush=True)
        row.broken = 1
    row.seconds = time.perf_counter() - began
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for what to try, of 'group: case'")
    parser.add_argument("--every", type=int, default=1, help="take only every so many-th case of a group")
    parser.add_argument("--times", type=int, default=1, help="how often each, at another moment each time")
    parser.add_argument("--kills", type=int, default=0, help="at random moments, afterwards")
    options = parser.parse_args()
    wanted = re.compile(options.only).search
    rows = [attack(group, wanted, options.every, options.times) for group in GROUPS]
    rows += [kill(options.kills)] if options.kills else []
    rows += [gather(group, wanted) for group in TABLES]
    found = [row for row in rows if row.held + row.broken + row.skipped]
    print("\n" + table(("what is tried", "promises held", "seconds", "longest"), [row.cells() for row in found]))
    sys.exit(not found or any(row.broken for row in found))


if __name__ == "__main__":
    main()
