"""Run directories that cannot be written to: a full disk, a read-only one, one that has gone. Training goes on and says so."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks import Case, Skipped
from processes import Process, finished, folder, until
from runs import PHASE, check_all_is_whole, check_same_end, checkpoints, rows, training

NAME = "PPO, CartPole"
ENDLESS = 100_000  # phases


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte."""
    with folder() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True, capture_output=True)
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", path], check=True, capture_output=True)


def why_no_mount() -> str | None:
    """Why a small file system cannot be had here, if it cannot."""
    if os.name == "nt" or shutil.which("mount") is None:
        return "there is no mount command"
    try:
        with small_disk():
            return None
    except subprocess.CalledProcessError as error:
        return f"mount says: {error.stderr.decode().strip()}"


def fill(disk: Path) -> Path:
    """Leave not a byte free."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def fill_during(process: Process, disk: Path) -> Path:
    """Fill it up, and again what old checkpoints leave when they are dropped, until nothing can be saved."""
    until(lambda: fill(disk) and "cannot be saved to" in process.output, process)
    return fill(disk)


def training_there(run: Path, phases: int = ENDLESS) -> Process:
    """A training under way that has saved something."""
    process = Process(*training(NAME, run, phases))
    until(lambda: len(checkpoints(run)) == 3, process)
    return process


def phases_pass(process: Process, run: Path, seconds: float = 0.5) -> None:
    time.sleep(seconds)
    assert process.poll() is None, f"training has ended: {process.output}"


def said_once(process: Process, words: str) -> None:
    assert process.output.count(words) == 1, f"{words!r} was said {process.output.count(words)} times: {process.output}"


def ends_with_complaint(process: Process, run: Path) -> None:
    """Ask it to stop: the end could not be saved, which is an exit code of 1 and a line that says so."""
    process.send(signal.SIGTERM)
    assert process.wait() == 1, process.output
    assert "the end of training" in process.output, process.output
    assert "is not saved" in process.output, process.output
    assert "Traceback" not in process.output, process.output


def goes_on_as_if_nothing_had_been(run: Path) -> None:
    """Resumed where there is room, it comes to the end of a run that nothing happened to."""
    newest = check_all_is_whole(run)
    assert newest is not None
    phases = newest.manifest["phase"] + 5
    with folder() as path:
        shutil.copytree(run, path / "run", ignore=shutil.ignore_patterns(".lock"))
        code, output = finished("resume", path / "run", "--total-timesteps", str(phases * PHASE), "--no-anneal-lr")
        assert code == 0, output
        found = [row["phase"] for row in rows(path / "run")]
        assert found == list(range(1, phases + 1)), "the metrics have a gap or a double"


# what happens ----------------------------------------------------------------------------------------------------------


def full(disk: Path) -> None:
    """The disk is full for good."""
    run = disk / "run"
    process = training_there(run)
    fill_during(process, disk)
    phases_pass(process, run)
    said_once(process, "cannot be saved to (No space left on device): training goes on")
    ends_with_complaint(process, run)
    assert check_all_is_whole(run) is not None
    code, output = finished("eval", run, "--episodes", "1")
    assert code == 0, output
    goes_on_as_if_nothing_had_been(run)


def full_for_a_while(disk: Path) -> None:
    """Room is made again: what was not written is, and the run is that of a disk with room."""
    run = disk / "run"
    process = training_there(run)
    before = check_all_is_whole(run)
    assert before is not None
    ballast = fill_during(process, disk)
    until(lambda: "metrics.jsonl cannot be written" in process.output, process)
    phases_pass(process, run)
    ballast.unlink()
    until(lambda: "can be saved to again" in process.output, process)
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.output
    said_once(process, "cannot be saved to")
    said_once(process, "metrics.jsonl cannot be written")
    found = rows(run)
    assert [row["phase"] for row in found] == list(range(1, len(found) + 1)), "the metrics have a gap or a double"
    newest = check_all_is_whole(run)
    assert newest is not None
    assert newest.manifest["phase"] == len(found)
    goes_on_as_if_nothing_had_been(run)


def full_at_the_start(disk: Path) -> None:
    """No room for the settings even: refused."""
    fill(disk)
    code, output = finished(*training(NAME, disk / "run", 3))
    assert code == 2, output
    assert output.count("tightrope: ") == 1, output
    assert "No space left" in output, output


def full_on_resume(disk: Path) -> None:
    """No room to go on: refused, and what is there stays."""
    run = disk / "run"
    process = training_there(run)
    process.kill()
    newest = check_all_is_whole(run)
    ballast = fill(disk)
    code, output = finished("resume", run)
    assert code == 2, output
    assert "No space left" in output, output
    assert check_all_is_whole(run) == newest
    ballast.unlink()
    goes_on_as_if_nothing_had_been(run)


def read_only(disk: Path) -> None:
    """The file system is mounted for reading only: `eval` works, `train` and `resume` are refused."""
    run = disk / "run"
    training_there(run).kill()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert finished("eval", run, "--episodes", "1")[0] == 0
    for code, output in (finished("resume", run), finished(*training(NAME, disk / "another", 3))):
        assert code == 2, output
        assert output.count("tightrope: ") == 1, output
        assert "ead-only" in output, output
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    goes_on_as_if_nothing_had_been(run)


def forbidden(disk: Path) -> None:
    """Writing is forbidden from one moment on, and later allowed again."""
    run = disk / "run"
    process = Process(*training(NAME, run, ENDLESS), prepare=without_rights)
    until(lambda: len(checkpoints(run)) == 3, process)
    (run / "checkpoints").chmod(0o555)
    until(lambda: "cannot be saved to" in process.output, process)
    phases_pass(process, run)
    said_once(process, "cannot be saved to (Permission denied): training goes on")
    (run / "checkpoints").chmod(0o755)
    until(lambda: "can be saved to again" in process.output, process)
    (run / "checkpoints").chmod(0o555)
    until(lambda: process.output.count("cannot be saved to") == 2, process)
    ends_with_complaint(process, run)
    (run / "checkpoints").chmod(0o755)
    goes_on_as_if_nothing_had_been(run)


def without_rights() -> None:
    """As anybody, who may write only where it is allowed; root could everywhere."""
    if os.getuid() == 0:
        version_3, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_3, nothing) == 0


def removed(disk: Path) -> None:
    """rm -rf of the run's directory."""
    run = disk / "run"
    process = training_there(run)
    while run.exists():  # it may be in the middle of writing
        shutil.rmtree(run, ignore_errors=True)
    phases_pass(process, run)
    said_once(process, "cannot be saved to (No such file or directory): training goes on")
    ends_with_complaint(process, run)
    assert not run.exists(), "it was made again"


def moved(disk: Path) -> None:
    """The directory is moved away, and back again."""
    run, away = disk / "run", disk / "away"
    process = training_there(run)
    run.rename(away)
    until(lambda: "cannot be saved to" in process.output, process)
    phases_pass(process, run)
    assert not run.exists(), "it was made again"
    away.rename(run)
    until(lambda: "can be saved to again" in process.output, process)
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.output
    goes_on_as_if_nothing_had_been(run)


def replaced(disk: Path) -> None:
    """Another run takes the place of one that was removed while it was training: neither writes into the other's."""
    run = disk / "run"
    process = training_there(run)
    run.rename(disk / "away")
    code, output = finished(*training(NAME, run, 4))
    assert code == 0, output
    phases_pass(process, run)
    ends_with_complaint(process, run)
    with folder() as path:
        code, output = finished(*training(NAME, path / "run", 4))
        assert code == 0, output
        check_same_end(run, path / "run")


def file_too_large(disk: Path) -> None:
    """A limit on the size of files, which needs no rights: a training whose checkpoints are larger than it."""
    run = disk / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    process = Process(*training(NAME, run, 20), prepare=limit)
    assert process.wait() == 1, process.output
    said_once(process, "cannot be saved to (File too large): training goes on, nothing is saved yet")
    said_once(process, "metrics.jsonl cannot be written (File too large)")
    assert "the end of training, 480 steps, is not saved" in process.output, process.output
    assert checkpoints(run) == []
    found = rows(run)
    assert [row["phase"] for row in found] == list(range(1, len(found) + 1)), "a torn row"
    code, output = finished("resume", run)
    assert code == 0, output
    with folder() as path:
        code, output = finished(*training(NAME, path / "run", 20))
        assert code == 0, output
        check_same_end(run, path / "run")


MOUNTED = [full, full_for_a_while, full_at_the_start, full_on_resume, read_only]
ANYWHERE = [forbidden, removed, moved, replaced, file_too_large]


def on_small_disk(case: Case) -> Case:
    def mounted(path: Path) -> object:
        if (reason := why_no_mount()) is not None:
            raise Skipped(reason)
        with small_disk() as disk:
            return case(disk)

    return mounted


def cases() -> dict[str, Case]:
    found = {**{case: on_small_disk(case) for case in MOUNTED}, **{case: case for case in ANYWHERE}}
    return {(case.__doc__ or "").removesuffix("."): tried for case, tried in found.items()}
