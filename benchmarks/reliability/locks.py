"""Two processes that want one run directory, while something happens to its lock."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from attacks import Case, attempt
from processes import Process, finished, nothing, until
from runs import CARTPOLE, check_phases, checkpoints, newest_of, training, under_way

from tightrope.processes import alive

ASYNC = "CartPole-v1 --backend gymnasium --vectorization-mode async --num-envs 2 --num-steps 8 --num-minibatches 1"
ASYNC += " --total-timesteps 160000 --save-seconds 0 --device cpu --threads 1"


def second_after(run: Path, event: Callable[[], object], prepare: Callable[[], None] = nothing) -> str:
    """Train, do something to the lock, and try to resume the run meanwhile: only one of the two may write."""
    first = under_way(run, prepare=prepare)
    event()
    second = attempt("resume", run)
    assert second.code == 2, second.output
    assert "is being written by" in second.output, second.output
    assert first.poll() is None, first.output
    first.send(signal.SIGTERM)
    first.ends(143)
    check_phases(run, newest_of(run).manifest["phase"])
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

    def wait_for_copies() -> None:
        end = time.monotonic() + 30
        while not copied.exists():
            assert time.monotonic() < end, "nothing was copied"
            time.sleep(0.01)
        assert (path / "copy0" / ".lock").exists()

    return second_after(run, wait_for_copies, threading.Thread(target=copy, daemon=True).start)


def removed(path: Path) -> str:
    """.lock is removed while the run trains."""
    return second_after(path / "run", (path / "run" / ".lock").unlink)


def second_process(path: Path) -> None:
    """A second process is refused; `eval` works meanwhile; a killed one leaves no lock."""
    run = path / "run"
    first = under_way(run)
    lines = [line for line in finished("resume", run, code=2).splitlines() if line.startswith("tightrope: ")]
    assert len(lines) == 1, lines
    assert f"is being written by process {first.pid} on " in lines[0], lines
    finished(*training(CARTPOLE, run, 3), code=2)
    for _ in range(10):
        output = finished("eval", run, "--episodes", "1")
        assert "damaged" not in output, output
        assert "instead" not in output, output
    assert first.poll() is None, first.output
    first.kill()
    saves_again(run).kill()


def workers(path: Path) -> None:
    """A training that is killed takes its workers along, stopped ones too, and leaves no lock."""
    run = path / "run"
    first = Process("train", *ASYNC.split(), "--run-dir", run)
    until(lambda: checkpoints(run), first)
    children = first.children
    assert len(children) >= 2, f"no workers: {first.output}"
    for child in children:  # so that they cannot notice that it has gone
        os.kill(child, signal.SIGSTOP)
    first.kill()
    second = saves_again(run)
    assert not any(map(alive, children))
    second.send(signal.SIGTERM)
    second.ends(143)


def saves_again(run: Path) -> Process:
    """The run, resumed, once it has saved something."""
    before, process = checkpoints(run), Process("resume", run)
    until(lambda: checkpoints(run) != before, process)
    return process


def cases() -> dict[str, Case]:
    """What happens to the lock itself."""
    return {"the run is copied by a thread of its training": copied_in_a_thread, ".lock is removed": removed}


def usual_cases() -> dict[str, Case]:
    """Nothing happens to it."""
    return {"a second process": second_process, "workers of a killed training": workers}
