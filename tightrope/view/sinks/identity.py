"""RUN/trackers.json: which run of a tracker belongs to this run, so that it goes on there after a resume."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

NAME = "trackers.json"
ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_writing = threading.Lock()  # trackers write from threads of their own


def known(run_dir: Path | None) -> dict[str, str]:
    """The ids by tracker. A file that is not as we write it knows none."""
    if run_dir is None:
        return {}
    try:
        with (run_dir / NAME).open("rb") as file:
            found = json.loads(file.read(10_000))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, str) and ID.fullmatch(v)}


def remember(run_dir: Path | None, tracker: str, run_id: str) -> None:
    """Keep an id; the file is whole at any moment."""
    if run_dir is None:
        return
    with _writing:
        content = json.dumps(known(run_dir) | {tracker: run_id}, indent=1, sort_keys=True) + "\n"
        temporary = run_dir / f"{NAME}.tmp"
        with temporary.open("w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(run_dir / NAME)
