"""Two machines on one: network namespaces with a cable between them, a torchrun in each, and what happens when things break.

python benchmarks/scaling/two_machines.py                     # all cases; needs to be root, on Linux
python benchmarks/scaling/two_machines.py cut killed          # some

Each machine has its own network, process numbers, host name and hosts file. As on Debian, a machine knows its own name by
an address of the loopback, which is what libraries that ask for it by name then tell the others.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hosts import Hosts, chosen_cases, run, until, why_no_hosts

LOOP = Path(__file__).with_name("loop.py")
ADDRESSES = {"tightrope-a": "10.77.0.1", "tightrope-b": "10.77.0.2"}
# torchrun's agent waits for an answer over a cut link for as long as the system does, a quarter of an hour by default, and
# no option of its own shortens that: this many attempts are some 13 s.
RETRIES = os.environ.get("TCP_RETRIES2", "5")


class Machine:
    """One of the two, with a torchrun in it. `said` has all its lines, each with the time."""

    def __init__(self, name: str, hosts: Hosts, folder: Path, command: list[str]) -> None:
        file, own = folder / f"hosts-{name}", {name: "127.0.1.1"}
        file.write_text("".join(f"{a} {n}\n" for n, a in {"localhost": "127.0.0.1", **ADDRESSES, **own}.items()))
        self.name, self.ended, self.space = name, 0.0, hosts.spaces[name]
        self.said: list[tuple[float, str]] = []
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=tightrope-a:29400", "--rdzv-id=two-machines"]
        self.process = subprocess.Popen(
            hosts.on(name, *torchrun, *command, contained=True, file=file),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=folder,
            env={**hosts.env, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append((time.monotonic(), line.rstrip()))
        self.process.wait()
        self.ended = time.monotonic()

    def kill_rank(self) -> None:
        """End the process that trains: the child of torchrun, itself the child of what we have started."""
        pid = self.process.pid
        for _ in range(2):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def verdict(self) -> tuple[float, str] | None:
        return next(((when, line) for when, line in self.said if line.startswith("tightrope: ")), None)

    def stop(self) -> None:
        self.process.kill()  # and with it all that runs inside
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def machines(command: list[str], *options: str) -> Iterator[list[Machine]]:
    with tempfile.TemporaryDirectory() as name, (hosts := Hosts(ADDRESSES, Path(name))).joined():
        for space in hosts.spaces.values():
            run(f"ip netns exec {space} sysctl -w net.ipv4.tcp_retries2={RETRIES}")
        both = [Machine(machine, hosts, Path(name), [*options, *command]) for machine in ADDRESSES]
        try:
            yield both
        except BaseException:
            for machine in both:
                print(f"--- {machine.name}", *(line for _, line in machine.said[-40:]), sep="\n")
            raise
        finally:
            for machine in both:
                machine.stop()


def cut(both: list[Machine]) -> None:
    run(f"ip -n {both[0].space} link set eth0 down")


def report(both: list[Machine], since: float) -> None:
    for machine in both:
        verdict = machine.verdict()
        if verdict is not None:
            print(f"  {machine.name}: {verdict[0] - since:5.1f} s  {verdict[1]}")
        ended, code = machine.ended - since, machine.process.poll()
        print(f"  {machine.name}: {ended:5.1f} s  torchrun has ended, exit code {code}")


class Command(NamedTuple):
    """What torchrun starts, and parts of lines by which one sees that it has begun, and that it has begun again."""

    words: list[str]
    begun: str
    again: str = ""


def training(steps: int) -> Command:
    words = f"-m tightrope train CartPole-v1 --total-timesteps {steps} --run-dir run --save-seconds 1".split()
    return Command(words, begun="phase ", again="resuming from")


def wait_for_start(both: list[Machine], command: Command) -> None:
    until(lambda: any(command.begun in line for _, line in both[0].said), "the start of training")
    time.sleep(1)


def check_ends_well(both: list[Machine], since: float) -> None:
    until(lambda: all(m.ended for m in both), "the end of the run")
    report(both, since)
    assert [m.process.poll() for m in both] == [0, 0], "both end well"


def breaks(command: Command, event: Callable[[list[Machine]], None], within: float, by: int = 1) -> None:
    """Something breaks: so many of the machines say so within the time, and both end with an error."""
    with machines(command.words) as both:
        wait_for_start(both, command)
        since = time.monotonic()
        event(both)
        until(lambda: all(m.ended for m in both), "the end of both torchruns")
        report(both, since)
        said = [verdict[0] - since for m in both if (verdict := m.verdict())]
        assert len(said) == by, "whoever is left says what was lost"
        assert max(said) < within, f"said within {within} s"
        assert all(m.process.poll() != 0 for m in both), "both end with an error"


# cases ---------------------------------------------------------------------------------------------------------------

LONG, SHORT = training(1_000_000_000), training(100_000)


def completes(command: Command = SHORT) -> None:
    """A run over both machines comes to its end."""
    start = time.monotonic()
    with machines(command.words) as both:
        check_ends_well(both, start)
        assert not any(m.verdict() for m in both), "nobody was missed"


def link_cut() -> None:
    """The cable is cut: both ends say so within the stated time."""
    breaks(LONG, cut, within=31, by=2)


def killed() -> None:
    """The rank on the second machine is killed: the one on the first ends and names it."""
    breaks(LONG, lambda both: both[1].kill_rank(), within=10)


def killed_first() -> None:
    """The rank on the first machine is killed, next to which the store of the launcher lives."""
    breaks(LONG, lambda both: both[0].kill_rank(), within=10)


def restarts() -> None:
    """A killed rank with --max-restarts: both machines start again and come to the end."""
    with machines(SHORT.words, "--max-restarts=1") as both:
        wait_for_start(both, SHORT)
        time.sleep(1)
        since = time.monotonic()
        both[1].kill_rank()
        check_ends_well(both, since)
        again = [(when - since, line) for when, line in both[0].said if SHORT.again in line]
        assert again, "it goes on from where it was"
        print(f"  tightrope-a: {again[0][0]:5.1f} s  {again[0][1]}")


CASES = {"completes": completes, "cut": link_cut, "killed": killed, "killed_first": killed_first, "restarts": restarts}


if __name__ == "__main__":
    for case in chosen_cases(__doc__ or "", CASES, why_no_hosts):
        case()
