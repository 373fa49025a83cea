"""The bug museum on the command line: `tightrope probe --museum`."""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError, printable
from ..tools.museum import MUTATIONS, catches, page


def show_museum(seed: int, out: Path | None) -> int:
    """Print for each mutation the checks that catch it and the first words, and write the page if `out` names a file."""
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"out {out} is in a directory that does not exist: make it first")
    rows = []
    for mutation in MUTATIONS:
        found = catches(mutation, seed=seed)
        rows.append((mutation, found))
        by = ", ".join(one.check for one in found) or "nothing"
        print(f"{'caught' if found else 'MISSED'} {mutation.mistake}: by {by}", flush=True)
        if found:
            print(f"       {found[0].words}")
    print(f"{sum(bool(found) for _, found in rows)} of {len(rows)} mistakes are caught")
    if out is not None:
        out.write_text(page(rows))
        print(printable(f"written: {out}"))
    return 0
