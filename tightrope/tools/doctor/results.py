"""Results of checks, checks that cannot fail, and code that runs in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import UsageError, printable
from ...processes import start_program
from ...types import Settings

# absent: not here and not needed; broken: no run works without it
Verdict = Literal["ok", "absent", "warning", "broken"]
ROOT = Path(__file__).parents[3]  # the directory of the package, which need not be installed
FOLLOW_PARENT = "from tightrope.processes import follow_parent\nfollow_parent()\n"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
ERROR_LENGTH = 300  # letters


@dataclass(frozen=True)
class CheckResult:
    """One line of the report. `fix` is a command or a short instruction; `facts` are the numbers, in bytes and seconds."""

    name: str
    words: str
    verdict: Verdict = "ok"
    fix: str = ""
    facts: Settings = field(default_factory=dict)
    part: str = ""


class Check(NamedTuple):
    """A function that looks at something, and the verdict if it raises."""

    part: str
    name: str
    function: Callable[[], CheckResult | Iterable[CheckResult]]
    if_it_raises: Verdict = "warning"


def run_check(check: Check) -> list[CheckResult]:
    """The results of a check; an exception is one of them. What the check prints goes to stderr."""
    results: list[CheckResult] = []
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            found = check.function()
            results.extend([found] if isinstance(found, CheckResult) else found)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also the panic of a library in another language
        words = str(error) if isinstance(error, UsageError) else f"the check failed: {error_line(error)}"
        results.append(CheckResult(check.name, words, check.if_it_raises))
    return [replace(result, part=result.part or check.part, words=printable(result.words)) for result in results]


def error_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return printable(f"{type(error).__name__}: {first}" if first else type(error).__name__)[:ERROR_LENGTH]


def format_bytes(count: float) -> str:
    power = max((p for p in range(5) if count >= 0.9995 * 1000**p), default=0)
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def format_seconds(seconds: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{seconds / size:.3g} {unit}"


class ProcessResult(NamedTuple):
    """How a process ended: its last line, or its error; and all that it printed."""

    worked: bool
    line: str
    output: str


def run_isolated(code: str, seconds: float, **environment: str) -> ProcessResult:
    """Run Python code that may hang or crash, in a process of its own and for so many seconds at most."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join([str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])])
    process = start_program(
        [sys.executable, "-c", FOLLOW_PARENT + code], {**inherited, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return ProcessResult(False, f"not done after {seconds:g} s", "")
    if process.returncode < 0:
        return ProcessResult(False, f"its process died of {signal.Signals(-process.returncode).name}", out + err)
    # the exception that a traceback ends with, whatever a library prints after it
    raised = [line for line in err.splitlines() if re.match(r"[\w.]+(Error|Exception|Missing|Exit)\b", line)]
    lines = out.split("\n") if process.returncode == 0 else raised or err.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ProcessResult(process.returncode == 0, printable(last)[:ERROR_LENGTH], out + err)
