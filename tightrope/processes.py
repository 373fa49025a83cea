"""Child processes: how those that help us start, how they end with us, how long we wait for them; what the system tells of any.

A helper (a worker of an environment, the process that draws videos) has a process group of its own and takes no notice of
signals that ask us to stop, for we end it ourselves. If we are killed it is killed too. Nobody waits for it without a limit,
and after a signal that limit is short.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import multiprocessing.util  # its handler at exit, which waits for children, then runs after ours, which kills them
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
AFTER_STOP = 5.0  # seconds that a helper has left for its answer once we were asked to stop
LOOK = 0.5  # seconds between looks at a helper that does not answer
LINE_LENGTH = 300  # letters of an error
FOLLOW_PARENT = "from tightrope.processes import follow_parent\nfollow_parent()\n"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
PARENT = "TIGHTROPE_PARENT"  # environment variable: who started this process and wants it to end with itself
SET_DEATH_SIGNAL = 1  # Linux's PR_SET_PDEATHSIG
_helpers: WeakSet[BaseProcess] = WeakSet()


# waiting ----------------------------------------------------------------------------------------------------------------


class StopRequest:
    """Since when this process has been asked to stop by a signal; None while it has not. There is one for all threads, as
    there is of signals."""

    since: float | None = None


stop_request = StopRequest()


class Wait:
    """Somebody waits for a helper and looks every LOOK seconds whether it has had its time. What passes while this process is
    stopped itself, with its helpers perhaps, does not count."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._progress = 0.0
        self.seconds = self._after_stop = 0.0  # waited without progress, since a signal

    def over(self, limit: float, progress: float = 0.0) -> bool:
        """Whether there was no answer for `limit` seconds, or for AFTER_STOP seconds after a signal. A helper that makes
        `progress`, whose number then changes, has its time again."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, 2 * LOOK), now
        if progress != self._progress:
            self._progress, self.seconds, self._after_stop = progress, 0.0, 0.0
        self.seconds += passed
        self._after_stop += passed if stop_request.since is not None else 0.0
        return self.seconds > limit or self._after_stop > AFTER_STOP


def kill(processes: Iterable[BaseProcess]) -> None:
    """End helpers at once, stopped ones too; but not those of our parent, which a fork finds in its memory."""
    running = [process for process in processes if process._parent_pid == os.getpid() and process.is_alive()]  # type: ignore[attr-defined]
    for process in running:
        process.kill()
    for process in running:
        process.join(LOOK)


@contextlib.contextmanager
def killed_after(seconds: float, processes: Sequence[BaseProcess]) -> Iterator[list[int]]:
    """What happens inside waits for helpers: those that are there after so many seconds are killed, which ends the wait.
    Gives a list that then has their indices."""
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
    """See to it that Python's own end does not wait for these."""
    _helpers.update(processes)


@atexit.register
def _end_helpers() -> None:
    kill(list(_helpers))


def fork(work: Callable[..., None], *arguments: object) -> BaseProcess:
    """A helper that begins as a copy of this process and does `work`."""
    arguments = (Parent.here(), work, *arguments)
    process = multiprocessing.get_context("fork").Process(target=_helping, args=arguments, daemon=True)
    process.start()
    kill_at_exit([process])
    return process


def _helping(parent: Parent, work: Callable[..., None], *arguments: object) -> None:
    become_helper(parent)
    work(*arguments)


def start_program(words: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:
    """A program in a session of its own. It ends with us if it calls `follow_parent`, as tightrope's command line does."""
    parent = Parent.here()
    environment = {**environment, PARENT: f"{parent.pid} {int(parent.lasting)}"}
    return subprocess.Popen(words, env=environment, start_new_session=True, **options)


# in the child -----------------------------------------------------------------------------------------------------------


def become_helper(parent: Parent) -> None:
    """Serve nobody but the parent. Signals are caught and forgotten rather than ignored, which programs started here would
    inherit; a process group of our own keeps those from the terminal's reach. It is no session of our own: Linux shares
    out processor time by sessions, and steps of an environment took four times as long."""
    signal.set_wakeup_fd(-1)  # which may be the parent's
    for number in STOPS + NOTICES:
        signal.signal(number, _forget)
    end_with(parent, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    if hasattr(os, "setpgid"):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # what some terminals send to other groups that print
        with contextlib.suppress(OSError):  # it leads one already
            os.setpgid(0, 0)


def _forget(number: int, frame: object) -> None:
    """A signal that is for the parent."""


def follow_parent() -> None:
    """End, by SIGTERM, with the process that called `start_program`, if that started this one. Windows does not tell."""
    words = os.environ.pop(PARENT, "").split()
    if len(words) == 2 and all(word.isdigit() for word in words) and os.name != "nt":
        end_with(Parent(int(words[0]), words[1] == "1"), signal.SIGTERM)


def end_with(parent: Parent, number: int) -> None:
    """Have this process sent a signal when the parent is gone: by the system where it can, which reaches a process that is
    stopped or busy too, otherwise by a thread that looks every now and then."""
    if sys.platform == "linux" and parent.lasting and os.getppid() == parent.pid:
        told = ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, number) == 0
        if os.getppid() != parent.pid:  # it had gone before the system knew
            os.kill(os.getpid(), number)
        if told:
            return
    threading.Thread(target=_watch, args=(parent.pid, number), name="tightrope parent", daemon=True).start()


def _watch(parent: int, number: int) -> None:
    direct = os.name != "nt" and os.getppid() == parent
    known = multiprocessing.parent_process()  # of a helper that a server has forked for its parent
    while os.getppid() == parent if direct else known.is_alive() if known is not None else alive(parent):
        time.sleep(LOOK)
    os.kill(os.getpid(), number)


# what the system tells --------------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether a process is running; one that has ended but was not waited for (a zombie) is not."""
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


# code that may crash ----------------------------------------------------------------------------------------------------


class ProcessResult(NamedTuple):
    """How a process ended: its last line, or its error; and all that it printed."""

    worked: bool
    line: str
    output: str


def run_isolated(code: str, seconds: float, **environment: str) -> ProcessResult:
    """Run Python code that may hang or crash, in a process of its own and for so many seconds at most."""
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
