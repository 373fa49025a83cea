"""Start child processes, wait for them with time limits, and end them with this process; read the status of any process.

A helper (a worker of an environment, the process that draws videos) has its own process group and ignores stop signals, since
this process ends it. If this process is killed, its helpers are killed too. Every wait for a helper has a time limit, which is
short after a stop signal.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import multiprocessing.util  # imported first, so that its exit handler, which waits for children, runs after ours
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

PROC = Path("/proc")
STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
NOTICES = [getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2", "SIGXCPU") if hasattr(signal, name)]
AFTER_STOP = 5.0  # seconds that a helper has to answer after a stop signal
LOOK = 0.5  # seconds between checks of a helper that does not answer
LINE_LENGTH = 300  # characters of an error
FOLLOW_PARENT = "from tightrope.processes import follow_parent\nfollow_parent()\n"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
PARENT = "TIGHTROPE_PARENT"  # environment variable: the process that started this one, which ends with it
SET_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG
_helpers: WeakSet[BaseProcess] = WeakSet()


# waiting ----------------------------------------------------------------------------------------------------------------


class StopRequest:
    """The time of the stop signal that this process has received, or None. One object serves all threads, as signals do."""

    since: float | None = None


stop_request = StopRequest()


class Wait:
    """Measures the wait for a helper, which the caller checks every LOOK seconds. Time while this process is suspended does not
    count."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._progress = 0.0
        self.seconds = self._after_stop = 0.0  # waited without progress, since a signal

    def over(self, limit: float, progress: float = 0.0) -> bool:
        """Whether there was no answer for `limit` seconds, or for AFTER_STOP seconds after a stop signal. A change of
        `progress` restarts the limit."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * LOOK), now
        if progress != self._progress:
            self._progress, self.seconds, self._after_stop = progress, 0.0, 0.0
        self.seconds += passed
        self._after_stop += passed if stop_request.since is not None else 0.0
        return self.seconds > limit or self._after_stop > AFTER_STOP


def kill(processes: Iterable[BaseProcess]) -> None:
    """Kill helpers, suspended ones too, except those of the parent, which a forked process still has in its memory."""
    running = [process for process in processes if process._parent_pid == os.getpid() and process.is_alive()]  # type: ignore[attr-defined]
    for process in running:
        process.kill()
    for process in running:
        process.join(LOOK)


@contextlib.contextmanager
def killed_after(seconds: float, processes: Sequence[BaseProcess]) -> Iterator[list[int]]:
    """Kill helpers that are still running after a time limit, so that code inside that waits for them returns. Yields a list
    that gets the indices of killed helpers."""
    late: list[int] = []

    def end() -> None:
        late.extend(i for i, process in enumerate(processes) if alive(process.pid or 0))
        for i in late:
            processes[i].kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


# in the parent ----------------------------------------------------------------------------------------------------------


class Parent(NamedTuple):
    """The process that starts a child."""

    pid: int
    lasting: bool  # whether by its main thread: Linux takes the end of the thread that started a child for the parent's

    @classmethod
    def here(cls) -> Parent:
        return cls(os.getpid(), threading.current_thread() is threading.main_thread())


def kill_at_exit(processes: Iterable[BaseProcess]) -> None:
    """Keep Python from waiting for these processes at exit."""
    _helpers.update(processes)


@atexit.register
def _end_helpers() -> None:
    kill(list(_helpers))


def fork(work: Callable[..., None], *arguments: object, daemon: bool = True) -> BaseProcess:
    """Fork a helper that runs `work`. A daemon cannot have helpers of its own."""
    arguments = (Parent.here(), work, *arguments)
    process = multiprocessing.get_context("fork").Process(target=_helping, args=arguments, daemon=daemon)
    process.start()
    kill_at_exit([process])
    return process


def _helping(parent: Parent, work: Callable[..., None], *arguments: object) -> None:
    become_helper(parent)
    work(*arguments)


def start_program(words: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
    """Start a program in a new session. It ends with this process if it calls `follow_parent`, as our command line does."""
    parent = Parent.here()
    environment = {**environment, PARENT: f"{parent.pid} {int(parent.lasting)}"}
    return subprocess.Popen(words, env=environment, start_new_session=True, **options)


# in the child -----------------------------------------------------------------------------------------------------------


def become_helper(parent: Parent) -> None:
    """Ignore stop signals in a helper. They get an empty handler, since programs started here would inherit ignored signals; a
    new process group protects those programs from signals of the terminal. There is no new session: Linux shares processor
    time among sessions, which made steps of an environment four times slower."""
    signal.set_wakeup_fd(-1)  # which may be the parent's
    for number in STOPS + NOTICES:
        signal.signal(number, _forget)
    end_with(parent, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    if hasattr(os, "setpgid"):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # some terminals send it to background groups that print
        with contextlib.suppress(OSError):  # already a group leader
            os.setpgid(0, 0)


def _forget(number: int, frame: object) -> None:
    """A signal that is for the parent."""


def follow_parent() -> None:
    """Let SIGTERM end this process when the process that called `start_program` ends. No effect on Windows."""
    words = os.environ.pop(PARENT, "").split()
    if len(words) == 2 and all(word.isdigit() for word in words) and os.name != "nt":
        end_with(Parent(int(words[0]), words[1] == "1"), signal.SIGTERM)


def end_with(parent: Parent, number: int) -> None:
    """Arrange a signal to this process when its parent ends: by Linux, which also reaches a suspended or busy process,
    elsewhere by a thread that checks periodically."""
    if sys.platform == "linux" and parent.lasting and os.getppid() == parent.pid:
        told = ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, number) == 0
        if os.getppid() != parent.pid:  # the parent ended before the request
            os.kill(os.getpid(), number)
        if told:
            return
    threading.Thread(target=_watch, args=(parent.pid, number), name="tightrope parent", daemon=True).start()


def _watch(parent: int, number: int) -> None:
    direct = os.name != "nt" and os.getppid() == parent
    known = multiprocessing.parent_process()  # differs from getppid for a helper that a fork server started
    while os.getppid() == parent if direct else known.is_alive() if known is not None else alive(parent):
        time.sleep(LOOK)
    os.kill(os.getpid(), number)


# status of processes ----------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether a process is running. A zombie, which has ended but was not waited for, is not."""
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
    """Whether a process is suspended by a signal or a debugger, if the system shows it."""
    return _state(pid) in ("T", "t")


def _state(pid: int) -> str:
    """The state letter of a process, as in ps; empty if there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


# code that may crash ----------------------------------------------------------------------------------------------------


class ProcessResult(NamedTuple):
    """How a process ended: its last line or its error, and its whole output."""

    worked: bool
    line: str
    output: str


def run_isolated(code: str, seconds: float, **environment: str) -> ProcessResult:
    """Run Python code that may hang or crash in a separate process, for at most `seconds`."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [inherited.get("PYTHONPATH")])])
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
    lines = out.splitlines() if process.returncode == 0 else raised or err.splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ProcessResult(process.returncode == 0, last[:LINE_LENGTH], out + err)
