"""The command line in real processes, at the price of a fork: the parent has imported everything and computed nothing."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NoReturn

import tightrope.cli.resuming
import tightrope.cli.trained
import tightrope.cli.training
from tightrope.processes import alive


def nothing() -> None:
    """To be done before a command."""


class Process:
    """`tightrope ARGS` under way; `fresh` for a new interpreter instead of a fork. `prepare` runs in a fork before it."""

    started: ClassVar[list["Process"]] = []

    def __init__(self, *args: str | Path, fresh: bool = False, prepare: Callable[[], None] = nothing) -> None:
        self.args = [str(arg) for arg in args]
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.code: int | None = None  # as subprocess gives it: minus the signal that ended it
        self.peak = 0.0  # MB of memory that it ever had
        self.pid = self._begin_fresh() if fresh else self._fork(prepare)
        Process.started.append(self)

    def _begin_fresh(self) -> int:
        words = [sys.executable, "-m", "tightrope", *self.args]
        process = subprocess.Popen(words, stdout=self.file, stderr=self.file, start_new_session=True)
        process.returncode = 0  # we wait for it ourselves
        return process.pid

    def _fork(self, prepare: Callable[[], None]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: none of ours is running
            pid = os.fork()
        if pid == 0:
            self._be_the_child(prepare)
        return pid

    def _be_the_child(self, prepare: Callable[[], None]) -> NoReturn:
        code = 99
        try:
            os.setsid()
            os.dup2(self.file.fileno(), 1)
            os.dup2(self.file.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w", 1, closefd=False), open(2, "w", 1, closefd=False)  # noqa: SIM115
            signal.signal(signal.SIGINT, signal.default_int_handler)
            prepare()
            tightrope.cli.main(self.args)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self, seconds: float = 120.0) -> int:
        """The exit code; a process that hangs is ended and reported."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise AssertionError(f"tightrope {' '.join(self.args)} did not end in {seconds:g} s: {self.output}")
            time.sleep(0.002)
        assert self.code is not None
        return self.code

    def ends(self, code: int, seconds: float = 120.0) -> str:
        """Its output, once it has ended with that exit code and without a traceback."""
        assert self.wait(seconds) == code, f"exit code {self.code} instead of {code}: {self.output}"
        assert "Traceback (most recent" not in self.output, self.output
        return self.output

    def send(self, number: int, group: bool = False) -> None:
        if self.poll() is None:
            (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._reap(0)

    def end_group(self) -> None:
        """Leave nothing of it behind, nor of what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()

    def _reap(self, flags: int) -> int | None:
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, flags)
            if pid:
                self.code, self.peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024
        return self.code

    @property
    def output(self) -> str:
        """What it has said so far, on both streams."""
        return os.pread(self.file.fileno(), 1 << 20, 0).decode(errors="replace")

    @property
    def children(self) -> list[int]:
        """Processes that it has started and that have not ended."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += task.read_text().split()
        return sorted(int(pid) for pid in found if alive(int(pid)))


def finished(*args: str | Path, code: int = 0) -> str:
    """Output of a command that runs to its end, with that exit code."""
    return Process(*args).ends(code)


def until(condition: Callable[[], object], process: Process, seconds: float = 60.0) -> None:
    """Wait for something to happen while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it ended before that: {process.output}"
        assert time.monotonic() < end, f"waited in vain; so far: {process.output}"
        time.sleep(0.0005)


@contextmanager
def folder() -> Iterator[Path]:
    """A directory that is there for a while. Processes begun meanwhile end with it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        before = len(Process.started)
        try:
            yield Path(name)
        finally:
            for process in Process.started[before:]:
                if process.code is None:
                    process.end_group()
            del Process.started[before:]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
