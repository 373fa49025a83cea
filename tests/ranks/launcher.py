"""Real processes for the tests beside this file: ranks with the variables that launchers set, or a torchrun that starts them.

As a program it is one of those ranks, which runs workers: modules with `main(*arguments)`, whose results it leaves as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forks import ROOT, forked

HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


class Job:
    """Ranks that run a script or `-m module` with its arguments; they end with the `with` block. `torchrun` are its options."""

    def __init__(
        self, *command: str, ranks: int = 2, torchrun: tuple[str, ...] | None = None, cwd: Path | None = None
    ) -> None:
        path = os.pathsep.join([str(ROOT), str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.size, self.has_torchrun = ranks, torchrun is not None
        self.folder = tempfile.TemporaryDirectory()
        self.output = Path(self.folder.name, "output.txt")
        self.output.touch()  # read while the processes are still starting
        if torchrun is not None:
            words = *TORCHRUN, f"--nproc-per-node={ranks}", *torchrun, *command
            self.processes = [forked(words, env, self.output, cwd)]
            return
        with socket.create_server(("127.0.0.1", 0)) as free:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "GROUP_RANK": "0"}
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        each = [{**env, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
        self.processes = [forked(command, variables, self.output, cwd) for variables in each]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *error: object) -> None:
        for pid in [*self.pids().values(), *(process.pid for process in self.processes if process.exitcode is None)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.join()
        self.folder.cleanup()

    @property
    def printed(self) -> str:
        return self.output.read_text()

    @property
    def lines(self) -> list[str]:
        """Those that are ours to users."""
        return [line for line in self.printed.splitlines() if line.startswith("tightrope: ")]

    def pids(self) -> dict[int, int]:
        """The processes that are there, by rank."""
        if not self.has_torchrun:
            return {rank: process.pid for rank, process in enumerate(self.processes) if process.exitcode is None}
        found, launcher = {}, self.processes[0].pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children")
        for child in children.read_text().split() if self.processes[0].exitcode is None else []:
            words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0") if Path(f"/proc/{child}").exists() else []
            found |= {int(word[5:]): int(child) for word in words if word.startswith(b"RANK=")}
        return found

    def send(self, number: int, rank: int) -> float:
        """A signal to a rank; returns when."""
        os.kill(self.pids()[rank], number)
        return time.monotonic()

    def wait_for(self, condition: Callable[[], object], within: float = 60) -> None:
        until = time.monotonic() + within
        while not condition():
            assert time.monotonic() < until, f"it did not happen: {self.printed[-3000:]}"
            time.sleep(0.05)

    def codes(self, within: float = 120) -> list[int]:
        """The exit codes, once all have ended: of torchrun, or of the ranks."""
        self.wait_for(lambda: all(process.exitcode is not None for process in self.processes), within)
        return [process.exitcode for process in self.processes]


def results(*workers: str, ranks: int = 2) -> list[list[Any]]:
    """What each worker returns on each rank; a worker is the name of a module, then its arguments."""
    with tempfile.TemporaryDirectory() as folder, Job(__file__, folder, *workers, ranks=ranks) as job:
        assert job.codes() == [0] * ranks, job.printed[-5000:]
        each = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]
    return [list(found) for found in zip(*each, strict=True)]


if __name__ == "__main__":
    from tightrope.engine import distributed

    world = distributed.join(collectives=True)
    calls = [worker.split() for worker in sys.argv[2:]]
    found = [importlib.import_module(name).main(*arguments) for name, *arguments in calls]
    Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps(found))
