"""A kill at every single operation on files that a process does from its start to the end of its first save."""

import io
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Process, finished, folder
from runs import check_all_is_whole, check_no_row_is_missing, check_same_end, checkpoints, rows, training

from tightrope.training.run_directory import RunDirectory

SAVED = 77  # exit code of a process that has come to the end of its save
PHASES = 6
OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate", "write")


class Fuse:
    """Lets so many operations pass and kills its process before the next."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def burn(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.burn()
            return operation(*args, **options)

        return counted

    def attach(self) -> None:
        """To everything in this process that changes a file."""
        fuse = self

        class Slow(io.FileIO):
            """Writes in two halves, so that a kill can come between them."""

            def write(self, content: Any) -> int:
                half = len(content) // 2
                fuse.burn()
                super().write(content[:half])
                fuse.burn()
                return half + (super().write(content[half:]) or 0)

            def truncate(self, size: int | None = None) -> int:
                fuse.burn()
                return super().truncate(size)

        fdopen, open_ = os.fdopen, os.open
        os.fdopen = lambda number, mode, **k: fdopen(number, mode, **k) if mode == "rb" else Slow(number, mode)  # type: ignore
        os.open = lambda path, flags, *a, **k: (flags & os.O_CREAT and fuse.burn(), open_(path, flags, *a, **k))[1]  # type: ignore
        for name in OPERATIONS:
            setattr(os, name, self.before(getattr(os, name)))
        save = RunDirectory.save

        def save_and_leave(*args: Any) -> None:
            save(*args)
            os._exit(SAVED)

        RunDirectory.save = save_and_leave  # type: ignore[method-assign]


def kill_at_every_operation(name: str) -> int:
    """How many operations there were; AssertionError if one of the kills did any harm."""
    with folder() as path:
        reference, half = path / "reference", path / "half"
        code, output = finished(*training(name, reference, PHASES))
        assert code == 0, output
        stop_after(training(name, half, PHASES), half, phases=4)
        operation = 0
        while kill_at(operation, half, reference):
            operation += 1
        return operation


def stop_after(args: list[str], run: Path, phases: int) -> None:
    """Train that far and no further."""
    saves = iter(range(1, phases + 1))

    def leave_after_the_last() -> None:
        save = RunDirectory.save

        def counted(*given: Any) -> None:
            save(*given)
            if next(saves) == phases:
                os._exit(SAVED)

        RunDirectory.save = counted  # type: ignore[method-assign]

    process = Process(*args, prepare=leave_after_the_last)
    assert process.wait() == SAVED, process.output
    assert checkpoints(run)


def kill_at(operation: int, half: Path, reference: Path) -> bool:
    """Whether there is such an operation; a resume that is killed there leaves all that there was."""
    run = half.with_name("run")
    shutil.copytree(half, run)
    before = check_all_is_whole(run)
    process = Process("resume", run, prepare=Fuse(operation).attach)
    code = process.wait()
    if code == SAVED:
        shutil.rmtree(run)
        return False
    assert code == -signal.SIGKILL, process.output
    newest = check_all_is_whole(run)
    assert newest is not None
    assert before is not None
    assert newest.manifest["serial"] >= before.manifest["serial"], f"operation {operation}: {before.path.name} is lost"
    check_no_row_is_missing(run, newest, rows(reference))
    code, output = finished("resume", run)
    assert code == 0, output
    assert f"going on from {newest.path.name}\n" in output, output
    check_same_end(run, reference)
    shutil.rmtree(run)
    return True
