"""The command in a directory of its own, slots of a study in a journal file, and a PostgreSQL where the system has one."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from tightrope.tools.sweep.slots import TrialSlots
from tightrope.tools.sweep.storage import open_storage, silence_optuna


@pytest.fixture
def sweep(tightrope: Callable[..., Any], own_directory: Path) -> Callable[..., Any]:
    """`tightrope sweep` with some words, in a directory of its own."""
    return lambda words, env="CartPole-v1": tightrope("sweep", env, words)


@pytest.fixture
def make_slots(tmp_path: Path) -> Callable[[int], TrialSlots]:
    silence_optuna()
    study = optuna.create_study(storage=open_storage(str(tmp_path / "a.journal")), direction="maximize")
    return lambda count: TrialSlots(study, count, {"x": 0.5}, heartbeat_seconds=0.01, grace_seconds=0.1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an empty database. The server refuses to be root."""
    initdb = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), shutil.which("initdb"))
    if initdb is None:
        pytest.skip("PostgreSQL is not here: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None
    if user and subprocess.run(["id", user], capture_output=True).returncode:
        pytest.skip("PostgreSQL cannot run as root, and there is no user postgres")
    programs, folder = Path(initdb).parent, Path(tempfile.mkdtemp(prefix="tightrope-postgres-"))
    if user:
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    call = dict(user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    words = ["-D", folder / "data", "-U", "tightrope", "--auth=trust", "--no-sync", "-E", "UTF8"]
    subprocess.run([initdb, *words], check=True, timeout=60, **call)
    words = ["-D", folder / "data", "-k", folder, "-h", "127.0.0.1", "-p", port, "-F"]
    server = subprocess.Popen([programs / "postgres", *words], **call)
    deadline = time.monotonic() + 30
    try:
        while subprocess.run([programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip("PostgreSQL does not start here")
            time.sleep(0.05)
        yield f"postgresql://tightrope:not-to-be-shown@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
