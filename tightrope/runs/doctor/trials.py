"""What may hang or take its process with it is tried in a process of its own, with a limit of time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ...errors import plain
from ...processes import start

ROOT = Path(__file__).parents[3]  # where the package lies, which need not be installed
BEGIN = "from tightrope.processes import follow_parent\nfollow_parent()\n"
OF_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # a child is no rank


class Trial(NamedTuple):
    """How it went: the last line that it said, and everything if it failed."""

    worked: bool
    said: str
    everything: str
    seconds: float


def trial(code: str, limit: float, **environment: str) -> Trial:
    """Run Python code in a new process, for at most `limit` seconds; it takes its own children with it."""
    inherited = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHER}
    path = os.pathsep.join([str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])])
    began = time.perf_counter()
    process = start(
        [sys.executable, "-c", BEGIN + code], {**inherited, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except BaseException as error:
        end(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return Trial(False, f"not done after {limit:g} s", "", limit)
    taken = time.perf_counter() - began
    if process.returncode < 0:
        return Trial(False, f"its process died of {signal.Signals(-process.returncode).name}", out + err, taken)
    worked = process.returncode == 0
    return Trial(worked, last_line(out) if worked else complaint(err), out + err, taken)


def end(process: subprocess.Popen[str]) -> None:
    """The process and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def complaint(text: str) -> str:
    """The exception that a traceback ends with; some libraries say more after it, and less."""
    raised = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Missing|Exit)\b", line)]
    return last_line(raised[-1] if raised else text)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return plain(lines[-1])[:300] if lines else ""
