"""Two machines on one: network namespaces with a cable between them, each with a host name and a hosts file of its own."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE = 180  # seconds for whatever is waited for
BOOT = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class Hosts:
    """Two of them, by name and address. They share the disk; `folder` is for what is made for them."""

    def __init__(self, addresses: dict[str, str], folder: Path) -> None:
        self.addresses, self.file = addresses, folder / "hosts"
        self.spaces = {name: f"{name}-{os.getpid()}" for name in addresses}  # several scripts do not meet
        self._write_names()
        path = os.pathsep.join([str(commands(folder / "bin")), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def _write_names(self) -> None:
        self.file.write_text("".join(f"{a} {n}\n" for n, a in {"localhost": "127.0.0.1", **self.addresses}.items()))

    @contextmanager
    def joined(self) -> Iterator[None]:
        """With the cable between them; nothing of it is left at the end."""
        try:
            one, two = self.spaces.values()
            for space in (one, two):
                run(f"ip netns add {space}")
            run(f"ip link add eth0 netns {one} type veth peer name eth0 netns {two}")
            for name, space in self.spaces.items():
                run(f"ip -n {space} address add {self.addresses[name]}/24 dev eth0")
                run(f"ip -n {space} link set eth0 up")
                run(f"ip -n {space} link set lo up")
            yield
        finally:
            for space in self.spaces.values():
                subprocess.run(["ip", "netns", "del", space], capture_output=True)  # the cable goes with them

    def move(self, name: str, address: str) -> None:
        """Give one of them another address."""
        self.addresses = {**self.addresses, name: address}
        run(f"ip -n {self.spaces[name]} address flush dev eth0")
        run(f"ip -n {self.spaces[name]} address add {address}/24 dev eth0")
        self._write_names()

    def on(self, name: str, *command: str, contained: bool = False, file: Path | None = None) -> list[str]:
        """A command as it is started on one of them; `contained`, it is process 1 of its own, and all end with it. `file` is
        its hosts file if it is not the common one."""
        space = ["nsenter", f"--net=/run/netns/{self.spaces[name]}", "unshare", "--uts", "--mount"]
        pids = ["--pid", "--fork", "--mount-proc", "--kill-child"] if contained else []
        return [*space, *pids, "sh", "-c", BOOT, "sh", name.split(".")[0], str(file or self.file), *command]


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


def commands(folder: Path) -> Path:
    """tightrope and torchrun as a job finds them, of this interpreter and of the sources beside this file."""
    folder.mkdir()
    for name, module in {"tightrope": "tightrope", "torchrun": "torch.distributed.run"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def why_no_hosts(*needed: str) -> str | None:
    """Why there can be no such machines here, with these commands on them, if so."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, to make network namespaces"
    if missing := [tool for tool in ("ip", "nsenter", "unshare", *needed) if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found"
    probe = f"probe-{os.getpid()}"
    try:
        run(f"ip netns add {probe}")
        run(f"ip netns del {probe}")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not to be had: {error.stderr.strip()}"
    return None


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.2)


def chosen_cases(
    about: str, cases: dict[str, Callable[..., None]], why_not: Callable[[], str | None]
) -> Iterator[Callable[..., None]]:
    """Those that the command line names, one after the other; leaves if they cannot be tried here."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(cases)}; all if none is given")
    args = parser.parse_args()
    if unknown := set(args.cases) - set(cases):
        parser.error(f"no such case: {', '.join(unknown)}")
    if reason := why_not():
        sys.exit(f"skipped: {reason}")
    for name in args.cases or cases:
        print(f"{name}: {cases[name].__doc__}", flush=True)
        yield cases[name]


# what a run has left -------------------------------------------------------------------------------------------------


def phases(run_dir: Path) -> list[int]:
    file = run_dir / "metrics.jsonl"
    return [json.loads(line)["phase"] for line in file.read_text().splitlines()] if file.exists() else []


def steps_saved(run_dir: Path) -> int:
    """Of the newest checkpoint."""
    return max((int(place.name.split("-")[-1]) for place in run_dir.glob("checkpoints/*-steps-*")), default=0)


def assert_whole(run_dir: Path) -> None:
    assert phases(run_dir) == list(range(1, len(phases(run_dir)) + 1)), "no phase twice, none left out"
