"""Everything that a stranger's file, a shared disk or bad luck may do to a run, done to the command line in real processes.

Prints each case with its outcome and its seconds, then a table; leaves with an error if one promise is broken.

python benchmarks/reliability/adversary.py                          # all of it
python benchmarks/reliability/adversary.py --only "^(links|locks)"  # what matches, in "group: case"
python benchmarks/reliability/adversary.py --kills 200              # and so many kills at random moments
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import attributes
import disks
import helpers
import locks
import output
import run_files
import signals
import strangers
from attacks import Case, Skipped
from kills import kill_at_random
from processes import folder, table

import tightrope.processes

GROUPS: dict[str, Callable[[], dict[str, Case]]] = {
    "links": run_files.links,
    "pipes, devices and directories": run_files.other_kinds,
    "code named by a config or a storage": strangers.named_code,
    "locks": locks.cases,
    "full-disk logs and dead readers": output.cases,
    "forged runs": strangers.forged_runs,
    "disks": disks.cases,
    "signals": signals.cases,
    "two processes": locks.usual_cases,
    "workers and hung helpers": helpers.cases,
    "attributes of an environment": attributes.cases,  # last: it trains here, and what trained is not forked
}


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
        line = " / ".join(f"{outcome:9} {seconds:5.1f} s  {self.group}: {case}: {words}".split("\n"))
        print(line if len(line) <= 400 else f"{line[:400]}...", flush=True)


def tried(case: Case) -> tuple[str, str]:
    """(held, BROKEN or not tried; in words what happened)."""
    with folder() as path:
        try:
            return "held", str(case(path) or "as promised")
        except Skipped as reason:
            return "not tried", str(reason)
        except Exception as error:
            return "BROKEN", f"{error or type(error).__name__}"


def attack(group: str, wanted: Callable[[str], object], every: int) -> Row:
    """Try the cases of a group."""
    row, cases = Row(group), GROUPS[group]()
    for name in [name for name in cases if wanted(f"{group}: {name}")][::every]:
        began = time.perf_counter()
        row.add(name, *tried(cases[name]), time.perf_counter() - began)
    return row


def kill(kills: int) -> Row:
    """Kills at random moments; kills.py has more of them, and one at every file operation."""
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
    parser.add_argument("--kills", type=int, default=0, help="at random moments, before all the rest")
    parser.add_argument("--grace", type=float, help="seconds that a helper has after a signal, if not as usual")
    options = parser.parse_args()
    if options.grace is not None:
        tightrope.processes.AFTER_STOP = options.grace
    rows = [kill(options.kills)] if options.kills else []
    rows += [attack(group, re.compile(options.only).search, options.every) for group in GROUPS]
    found = [row for row in rows if row.held + row.broken + row.skipped]
    print("\n" + table(("what is tried", "promises held", "seconds", "longest"), [row.cells() for row in found]))
    sys.exit(not found or any(row.broken for row in found))


if __name__ == "__main__":
    main()
