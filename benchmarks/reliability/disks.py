"""Run directories that cannot be written to: a full disk, a read-only one, one that has gone. Training goes on and says so."""

import ctypes
import functools
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
from runs import (
    CARTPOLE,
    PHASE,
    check_all_is_whole,
    check_phases,
    check_same_end,
    checkpoints,
    newest_of,
    training,
    under_way,
)


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte."""
    with folder() as path:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, text=True)
        if done.returncode:
            raise Skipped(f"mount says: {done.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", path], check=True, capture_output=True)


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


def check_goes_on(process: Process, *once: str) -> None:
    """Training does, and has said each of these words once."""
    time.sleep(0.5)
    assert process.poll() is None, f"training has ended: {process.output}"
    for words in once:
        assert process.output.count(words) == 1, f"{words!r} {process.output.count(words)} times: {process.output}"


def check_says_unsaved(process: Process) -> None:
    """Ask it to stop: the end could not be saved, which is an exit code of 1 and a line that says so."""
    process.send(signal.SIGTERM)
    output = process.ends(1)
    assert "the end of training" in output, output
    assert "is not saved" in output, output


def check_can_go_on(run: Path) -> None:
    """Resumed where there is room, it comes to an end with all its metrics."""
    phases = newest_of(run).manifest["phase"] + 5
    with folder() as path:
        shutil.copytree(run, path / "run", ignore=shutil.ignore_patterns(".lock"))
        finished("resume", path / "run", "--total-timesteps", str(phases * PHASE), "--no-anneal-lr")
        check_phases(path / "run", phases)


def check_as_undisturbed(run: Path, phases: int) -> None:
    with folder() as path:
        finished(*training(CARTPOLE, path / "run", phases))
        check_same_end(run, path / "run")


# what happens to the disk ---------------------------------------------------------------------------------------------


def full(disk: Path) -> None:
    """The disk is full for good."""
    run = disk / "run"
    process = under_way(run, saves=3)
    fill_during(process, disk)
    check_goes_on(process, "cannot be saved to (No space left on device): training continues")
    check_says_unsaved(process)
    finished("eval", run, "--episodes", "1")
    check_can_go_on(run)


def full_for_a_while(disk: Path) -> None:
    """Room is made again: what was not written is, and the run is that of a disk with room."""
    run = disk / "run"
    process = under_way(run, saves=3)
    ballast = fill_during(process, disk)
    until(lambda: "metrics.jsonl cannot be written" in process.output, process)
    check_goes_on(process)
    ballast.unlink()
    until(lambda: "can be saved to again" in process.output, process)
    check_goes_on(process, "cannot be saved to", "metrics.jsonl cannot be written")
    process.send(signal.SIGTERM)
    process.ends(143)
    check_phases(run, newest_of(run).manifest["phase"])
    check_can_go_on(run)


def full_at_the_start(disk: Path) -> None:
    """No room for the settings even: refused."""
    fill(disk)
    output = finished(*training(CARTPOLE, disk / "run", 3), code=2)
    assert output.count("tightrope: ") == 1, output
    assert "No space left" in output, output


def full_on_resume(disk: Path) -> None:
    """No room to go on: refused, and what is there stays."""
    run = disk / "run"
    under_way(run, saves=3).kill()
    newest = check_all_is_whole(run)
    ballast = fill(disk)
    output = finished("resume", run, code=2)
    assert "No space left" in output, output
    assert check_all_is_whole(run) == newest
    ballast.unlink()
    check_can_go_on(run)


def read_only(disk: Path) -> None:
    """The file system is mounted for reading only: `eval` works, `train` and `resume` are refused."""
    run = disk / "run"
    under_way(run, saves=3).kill()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    finished("eval", run, "--episodes", "1")
    for words in (["resume", run], training(CARTPOLE, disk / "another", 3)):
        output = finished(*words, code=2)
        assert output.count("tightrope: ") == 1, output
        assert "ead-only" in output, output
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    check_can_go_on(run)


def forbidden(disk: Path) -> None:
    """Writing is forbidden from one moment on, and later allowed again."""
    run = disk / "run"
    process = under_way(run, saves=3, prepare=without_rights)
    (run / "checkpoints").chmod(0o555)
    until(lambda: "cannot be saved to" in process.output, process)
    check_goes_on(process, "cannot be saved to (Permission denied): training continues")
    (run / "checkpoints").chmod(0o755)
    until(lambda: "can be saved to again" in process.output, process)
    (run / "checkpoints").chmod(0o555)
    until(lambda: process.output.count("cannot be saved to") == 2, process)
    check_says_unsaved(process)
    (run / "checkpoints").chmod(0o755)
    check_can_go_on(run)


def without_rights() -> None:
    """As anybody, who may write only where it is allowed; root could everywhere."""
    if os.getuid() == 0:
        version_3, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(version_3, nothing) == 0


def removed(disk: Path) -> None:
    """rm -rf of the run's directory."""
    run = disk / "run"
    process = under_way(run, saves=3)
    while run.exists():  # it may be in the middle of writing
        shutil.rmtree(run, ignore_errors=True)
    check_goes_on(process, "cannot be saved to (No such file or directory): training continues")
    check_says_unsaved(process)
    assert not run.exists(), "it was made again"


def moved(disk: Path) -> None:
    """The directory is moved away, and back again."""
    run, away = disk / "run", disk / "away"
    process = under_way(run, saves=3)
    run.rename(away)
    until(lambda: "cannot be saved to" in process.output, process)
    check_goes_on(process)
    assert not run.exists(), "it was made again"
    away.rename(run)
    until(lambda: "can be saved to again" in process.output, process)
    process.send(signal.SIGTERM)
    process.ends(143)
    check_can_go_on(run)


def replaced(disk: Path) -> None:
    """Another run takes the place of one that was removed while it was training: neither writes into the other's."""
    run = disk / "run"
    process = under_way(run, saves=3)
    run.rename(disk / "away")
    finished(*training(CARTPOLE, run, 4))
    check_goes_on(process)
    check_says_unsaved(process)
    check_as_undisturbed(run, 4)


def file_too_large(disk: Path) -> None:
    """A limit on the size of files, which needs no rights: a training whose checkpoints are larger than it."""
    run = disk / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    output = Process(*training(CARTPOLE, run, 20), prepare=limit).ends(1)
    for words in (
        "cannot be saved to (File too large): training continues, nothing is saved yet",
        "metrics.jsonl cannot be written (File too large)",
        "the end of training, 480 steps, is not saved",
    ):
        assert output.count(words) == 1, output
    assert checkpoints(run) == []
    check_phases(run)
    finished("resume", run)
    check_as_undisturbed(run, 20)


def on_small_disk(case: Case) -> Case:
    @functools.wraps(case)
    def mounted(_: Path) -> object:
        with small_disk() as disk:
            return case(disk)

    return mounted


def cases() -> dict[str, Case]:
    mounted = map(on_small_disk, (full, full_for_a_while, full_at_the_start, full_on_resume, read_only))
    anywhere = (forbidden, removed, moved, replaced, file_too_large)
    return {(case.__doc__ or "").removesuffix("."): case for case in (*mounted, *anywhere)}
