"""RUN/trackers.json: which run of a tracker belongs to this run, so that it goes on there after a resume."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

from ...files import Place, Unreadable

NAME = "trackers.json"
MOST_BYTES = 10_000
ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_writing = threading.Lock()  # trackers write from threads of their own


def known(run_dir: Path | None) -> dict[str, str]:
    """The ids by tracker. A file that is not as we write it knows none."""
    if run_dir is None:
        return {}
    try:
        found = json.loads((Place(run_dir) / NAME).read(MOST_BYTES))
    except (Unreadable, ValueError, RecursionError):
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
        (Place(run_dir) / NAME).write(content.encode())
