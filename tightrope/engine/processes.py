"""What the system tells about other processes of this machine."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended; one that has, but that nobody has asked how, counts as gone."""
    if (PROC / "self/stat").exists():
        return _state(pid) not in ("", "Z", "X")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def standing_still(pid: int) -> bool:
    """Whether it was stopped by a signal or a debugger, as far as the system tells."""
    return _state(pid) in ("T", "t")


def _state(pid: int) -> str:
    """The system's letter for it, as ps shows it; none if there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]
