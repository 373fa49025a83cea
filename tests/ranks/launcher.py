"""Real processes under torchrun, for the tests beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def started(
    *command: str, ranks: int = 2, launcher: tuple[str, ...] = (), cwd: Path | None = None
) -> subprocess.Popen[str]:
    """torchrun with a script or `-m module` and its arguments."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*words, *launcher, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd
    )


def finished(process: subprocess.Popen[str], within: float = 120) -> tuple[int, str]:
    """Exit code and everything it said."""
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        raise AssertionError(f"still running after {within} s: {said[-3000:]}") from None
    return process.returncode, said


def results(worker: str, *args: str, ranks: int = 2) -> list[dict[str, Any]]:
    """What each rank of a worker beside this file has written down as JSON in its last argument, a folder; in their order."""
    with tempfile.TemporaryDirectory() as folder:
        code, said = finished(started(str(Path(__file__).with_name(worker)), *args, folder, ranks=ranks))
        assert code == 0, said[-5000:]
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(ranks)]


def pid_of(launcher: int, rank: int, within: float = 60) -> int:
    """The process of a rank under a torchrun."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            try:
                words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RANK={rank}".encode() in words:
                return int(child)
        time.sleep(0.05)
    raise AssertionError(f"there is no rank {rank}")


def wait_for(condition: Any, within: float = 60) -> None:
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
