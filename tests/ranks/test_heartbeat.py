"""Real processes under torchrun: what the others do when one dies, stands still, fails, is busy or ends in good order."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "benchmarks" / "scaling" / "loop.py"
STARTED = re.compile(r"rank (\d) pid (\d+) attempt (\d)")
Launch = Callable[..., "Launched"]


class Launched:
    """torchrun on this machine, and what has been said so far."""

    def __init__(self, out: Path, *args: str, ranks: int = 2, restarts: int = 0) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            f"--max-restarts={restarts}", str(LOOP), *args,
        ]  # fmt: skip
        self.out, self.ranks = out, ranks
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with out.open("w") as file:
            self.process = subprocess.Popen(command, env=env, stdout=file, stderr=file, cwd=ROOT)

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def lines(self) -> list[str]:
        return [line for line in self.said.splitlines() if line.startswith("tightrope:")]

    def pids(self, attempt: int = 0) -> list[int]:
        """Of all ranks, once they are there."""
        found: dict[int, int] = {}

        def all_there() -> bool:
            found.update({int(r): int(pid) for r, pid, a in STARTED.findall(self.said) if int(a) == attempt})
            return len(found) == self.ranks

        self.wait_until(all_there, 60)
        return [found[rank] for rank in range(self.ranks)]

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """How long it took."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < seconds, self.said
            time.sleep(0.05)
        return time.monotonic() - start


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    launched: list[Launched] = []

    def start(*args: str, **options: int) -> Launched:
        launched.append(Launched(tmp_path / f"out{len(launched)}.txt", *args, **options))
        return launched[-1]

    yield start
    for one in launched:
        if one.process.poll() is None:
            one.process.kill()
        for _, pid, _ in STARTED.findall(one.said):
            if Path(f"/proc/{pid}/cmdline").exists() and str(LOOP) in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)
        one.process.wait()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_rank_ends_the_others_in_seconds_and_is_named_once(launch: Launch) -> None:
    run = launch("--seconds=60", ranks=3)
    pids = run.pids()
    os.kill(pids[1], signal.SIGKILL)
    assert run.wait_until(lambda: gone(pids[0]) and gone(pids[2]), 10) < 10
    assert run.process.wait(20) == 1
    assert len(run.lines) == 1
    assert re.fullmatch(rf"tightrope: rank 1 \(pid {pids[1]} on \S+\) has died: the run ends here", run.lines[0])


def test_a_rank_that_stands_still_is_missed_after_the_silence(launch: Launch) -> None:
    run = launch("--seconds=60", "--silence=2")
    first, second = run.pids()
    os.kill(first, signal.SIGSTOP)
    took = run.wait_until(lambda: gone(second), 20)
    os.kill(first, signal.SIGKILL)  # or torchrun waits half a minute for it
    assert took > 1.5
    assert len(run.lines) == 1
    assert f"rank 0 (pid {first} on" in run.lines[0]
    assert "has not been heard for" in run.lines[0]


def test_an_error_in_one_rank_is_told_by_the_others(launch: Launch) -> None:
    run = launch("--seconds=60", "--fails=1")
    assert run.process.wait(60) == 1
    assert "ValueError: made up" in run.said
    assert "RankLost: rank 1" in run.said
    assert "has failed: ValueError: made up" in run.lines[0]


def test_who_is_busy_is_not_missed_and_who_ends_in_good_order_neither(launch: Launch) -> None:
    run = launch("--seconds=1", "--silence=0.5", "--busy=3")
    assert run.process.wait(60) == 0
    assert run.lines == []
    assert run.said.count("is done") == 2


def test_a_restart_by_the_launcher_meets_anew(launch: Launch) -> None:
    run = launch("--seconds=3", restarts=1)
    os.kill(run.pids()[1], signal.SIGKILL)
    run.pids(attempt=1)
    assert "has died: torchrun starts the run again" in run.said
    assert run.process.wait(60) == 0
    assert run.said.count("is done") == 2
