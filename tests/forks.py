"""Python processes for tests, forked from one that has imported torch, Optuna and Tightrope: more work than most tests are."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "pytest",
        "gymnasium",
        "tightrope.saved",
        "tightrope.cli.training",
        "tightrope.cli.trained",
        "torch.distributed.run",
        "optuna.importance",
        "optuna.storages",
        "optuna.visualization",
    ]
)


def forked(
    command: tuple[str, ...], variables: Mapping[str, str], output: Path, cwd: Path | None, errors: Path | None = None
) -> Any:
    """Start `python *command` with these variables. Its errors go to its output if there is no other file for them."""
    process = FORKS.Process(target=be_python, args=(command, dict(variables), output, errors or output, cwd or ROOT))
    process.start()
    return process


def be_python(command: tuple[str, ...], variables: dict[str, str], output: Path, errors: Path, cwd: Path) -> None:
    """What `python *command` does, to the handlers at its exit."""
    for number, path in ((1, output), (2, errors)):
        with path.open("a") as file:
            os.dup2(file.fileno(), number)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    if "PYTHONWARNINGS" in variables:
        warnings.simplefilter(variables["PYTHONWARNINGS"])  # type: ignore[arg-type]
    torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))  # which torch reads as it is imported
    sys.path[:0] = variables.get("PYTHONPATH", "").split(os.pathsep)
    try:
        run_python(command)
    except Exception as error:
        sys.last_value = error
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def run_python(command: tuple[str, ...]) -> None:
    if command[0] == "-m":
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")


class PythonProcess:
    """`python *command` under way, with the methods of `subprocess.Popen` that tests need. Its streams are files."""

    def __init__(
        self,
        *command: str,
        variables: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        joined: bool = False,
    ) -> None:
        """`variables` are added to those of this process, or taken away where they are None. `joined`: what it prints and its
        errors are one text."""
        self.args, folder = command, Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        self.streams = folder / "out", folder / ("out" if joined else "err")
        for path in self.streams:
            path.touch()
        all_variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})}
        given = {name: value for name, value in all_variables.items() if value is not None}
        self.process = forked(command, given, self.streams[0], cwd, self.streams[1])
        self.pid: int = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float = 120.0) -> tuple[str, str]:
        """What it has printed, and its errors, once it has ended."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        out, err = (path.read_text() for path in self.streams)
        return out, "" if self.streams[0] == self.streams[1] else err

    def done(self, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """How it has ended, as `subprocess.run` returns it."""
        out, err = self.communicate(timeout)
        return subprocess.CompletedProcess(self.args, self.process.exitcode, out, err)

    def send_signal(self, number: int) -> None:
        if self.process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
