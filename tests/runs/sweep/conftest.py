"""A PostgreSQL of the tests' own, from the system's package, where there is one."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def programs() -> Path | None:
    """Where initdb and postgres lie; Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of an empty database, gone with the tests. The server refuses to be root, and is nobody else's."""
    bin_dir = programs()
    if bin_dir is None:
        pytest.skip("PostgreSQL is not here: apt-get install postgresql")
    user = "postgres" if os.geteuid() == 0 else None
    if user and subprocess.run(["id", user], capture_output=True).returncode:
        pytest.skip("PostgreSQL cannot run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="tightrope-postgres-"))
    if user:
        shutil.chown(folder, user)
    port = free_port()
    call = dict(user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    initdb = [bin_dir / "initdb", "-D", folder / "data", "-U", "tightrope", "--auth=trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(initdb, check=True, timeout=60, **call)
    words = ["-D", folder / "data", "-k", folder, "-h", "127.0.0.1", "-p", str(port), "-F"]
    server = subprocess.Popen([bin_dir / "postgres", *words], **call)
    try:
        wait_until_ready(bin_dir, port, server)
        yield f"postgresql://tightrope:not-to-be-shown@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(bin_dir: Path, port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while subprocess.run([bin_dir / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.skip("PostgreSQL does not start here")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
