"""Two processes that want one run directory, while something happens to its lock."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from attacks import Case, attempt, nothing
from processes import Process, finished, until
from runs import check_all_is_whole, checkpoints, rows, training

from tightrope.processes import alive

NAME = "PPO, CartPole"
ENDLESS = 10**6  # phases
ASYNC = "CartPole-v1 --backend gymnasium --vectorization-mode async --num-envs 2 --num-steps 8 --num-minibatches 1"
ASYNC += " --total-timesteps 160000 --save-seconds 0 --device cpu --threads 1"


def check_refused(process: Process, holder: int) -> None:
    assert process.wait() == 2, process.output
    lines = [line for line in process.output.splitlines() if line.startswith("tightrope: ")]
    assert len(lines) == 1, process.output
    assert f"is being written by process {holder} on " in lines[0], process.output
    assert "Traceback" not in process.output


def second_after(run: Path, mischief: Callable[[], object], prepare: Callable[[], None] = nothing) -> str:
    """Train, do something to the lock, and try to resume the run meanwhile: only one of the two may write."""
    first = Process(*training(NAME, run, ENDLESS), prepare=prepare)
    try:
        until(lambda: checkpoints(run), first)
        mischief()
        second = attempt("resume", run)
        assert second.code == 2, second.output
        assert "is being written by" in second.output, second.output
        assert first.poll() is None, first.output
        first.send(signal.SIGTERM)
        assert first.wait() == 143, first.output
    finally:
        first.end_group()
    newest = check_all_is_whole(run)
    assert newest is not None
    found = [row["phase"] for row in rows(run)]
    assert found == list(range(1, newest.manifest["phase"] + 1)), "the metrics have a gap or a double"
    return "the second is refused"


def copied_in_a_thread(path: Path) -> str:
    """A thread of the training copies the run with all its files, .lock among them."""
    run, copied = path / "run", path / "copied"

    def copy() -> None:
        while not checkpoints(run):
            time.sleep(0.01)
        for number in range(3):
            with suppress(OSError, shutil.Error):  # checkpoints come and go
                shutil.copytree(run, path / f"copy{number}")
        copied.touch()

    def prepare() -> None:
        threading.Thread(target=copy, daemon=True).start()

    def wait_for_copies() -> None:
        end = time.monotonic() + 30
        while not copied.exists():
            assert time.monotonic() < end, "nothing was copied"
            time.sleep(0.01)
        assert (path / "copy0" / ".lock").exists()

    return second_after(run, wait_for_copies, prepare)


def removed(path: Path) -> str:
    """.lock is removed while the run trains."""
    return second_after(path / "run", (path / "run" / ".lock").unlink)


def second_process(path: Path) -> None:
    """A second process is refused; `eval` works meanwhile; a killed one leaves no lock."""
    run = path / "run"
    first = Process(*training(NAME, run, ENDLESS))
    until(lambda: checkpoints(run), first)
    check_refused(Process("resume", run), first.pid)
    assert finished(*training(NAME, run, 3))[0] == 2
    for _ in range(10):
        code, output = finished("eval", run, "--episodes", "1")
        assert code == 0, output
        assert "damaged" not in output, output
        assert "instead" not in output, output
    assert first.poll() is None, first.output
    first.kill()
    process = Process("resume", run)
    before = checkpoints(run)
    until(lambda: checkpoints(run) != before, process)
    process.kill()


def workers(path: Path) -> None:
    """A training that is killed takes its workers along, stopped ones too, and leaves no lock."""
    run = path / "run"
    first = Process("train", *ASYNC.split(), "--run-dir", run)
    until(lambda: checkpoints(run), first)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    assert len(children) >= 2, f"no workers: {first.output}"
    for child in children:  # so that they cannot notice that it has gone
        os.kill(int(child), signal.SIGSTOP)
    first.kill()
    second = Process("resume", run)
    before = checkpoints(run)
    until(lambda: checkpoints(run) != before, second)
    assert not any(alive(int(child)) for child in children)
    second.send(signal.SIGTERM)
    assert second.wait() == 143, second.output


def cases() -> dict[str, Case]:
    """What happens to the lock itself."""
    return {"the run is copied by a thread of its training": copied_in_a_thread, ".lock is removed": removed}


def usual_cases() -> dict[str, Case]:
    """Nothing happens to it."""
    return {"a second process": second_process, "workers of a killed training": workers}
