"""Kill training again and again, resume it every time, and compare its end with that of a run that nothing happened to.

python benchmarks/reliability/kills.py                      # 240 kills at random moments, then one at every file operation
python benchmarks/reliability/kills.py --kills 12 --seed 3
"""

import argparse
import io
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Process, finished, folder, table
from runs import (
    RUNS,
    check_all_is_whole,
    check_no_row_is_missing,
    check_same_end,
    checkpoints,
    newest_of,
    rows,
    serial,
    training,
)

from tightrope.training.checkpoint_reader import CHECKPOINTS
from tightrope.training.run_directory import RunDirectory
from tightrope.training.saving import LEAVING, UNFINISHED

SAVED = 77  # exit code of a process that has come to the end of its save
PHASES = 6  # of a run that is killed at every operation
OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate", "write")


# at random moments ----------------------------------------------------------------------------------------------------


def files_of(run: Path) -> list[str]:
    """What is among its checkpoints."""
    folder = run / CHECKPOINTS
    return os.listdir(folder) if folder.exists() else []


def writing(run: Path) -> bool:
    """Whether a checkpoint is being written right now."""
    return any(name.startswith(UNFINISHED) for name in files_of(run))


def where_it_died(run: Path) -> str:
    """The moment of a kill, as the files tell it."""
    names = files_of(run)
    if not (run / CHECKPOINTS).exists():
        return "before the first save"
    if writing(run):
        return "writing a checkpoint"
    if any(name.startswith(LEAVING) for name in names):
        return "dropping an old one"
    newest = checkpoints(run)[:1]
    pointer = (run / CHECKPOINTS / "latest").read_text() if "latest" in names else ""
    if any(name.startswith(".latest.") for name in names) or (newest and newest[0] not in pointer):
        return "between checkpoint and pointer"
    return "elsewhere"


class Victim:
    """A run that is killed until it has come to its end."""

    def __init__(self, name: str, path: Path, phases: int, chance: random.Random) -> None:
        self.path, self.chance = path / "run", chance
        self.train = training(name, self.path, phases)
        self.reference = path / "reference"
        began = time.perf_counter()
        finished(*training(name, self.reference, phases))
        self.seconds = time.perf_counter() - began
        self.phase = self.seconds / phases
        self.expected = rows(self.reference)

    def begin(self, fresh: bool) -> Process:
        begun = (self.path / "config.yaml").exists()
        return Process(*(["resume", str(self.path)] if begun else self.train), fresh=fresh)

    def kill(self, fresh: bool) -> str | None:
        """Let it run for a moment and kill it; returns where that was, or None if it had come to its end before."""
        before = checkpoints(self.path)[:1]
        process = self.begin(fresh)
        if self.chance.random() < 0.6:  # during a save
            for _ in range(self.chance.choice((1, 1, 2, 4))):
                while not writing(self.path) and process.poll() is None:
                    pass
                time.sleep(self.chance.uniform(0, self.phase))
        else:
            time.sleep(self.chance.uniform(0, self.seconds / 2 + 3.0 * fresh))
        seen = checkpoints(self.path)[:1]
        process.kill()
        if process.code != -signal.SIGKILL:
            self.check_end(process)
            return None
        place = where_it_died(self.path)
        newest = check_all_is_whole(self.path)
        if seen:
            assert newest is not None
            assert newest.manifest["serial"] >= serial(seen[0]), f"{seen[0]} is lost, {newest.path.name} is there"
        if newest is not None:
            check_no_row_is_missing(self.path, newest, self.expected)
        if before and "resuming from" in process.output:
            assert f"resuming from {before[0]}\n" in process.output, process.output
        assert "damaged" not in process.output, process.output
        return place

    def check_end(self, process: Process) -> None:
        """Once it has come to its end."""
        check_same_end(self.path, self.reference, tidy="nothing to do" not in process.ends(0))
        shutil.rmtree(self.path)


def kill_at_random(kills: int, phases: int, fresh_share: float, chance: random.Random) -> tuple[Counter[str], int, int]:
    """(places of the kills, how many runs they were, how many of the processes were new interpreters)."""
    places: Counter[str] = Counter()
    runs = fresh_ones = 0
    while places.total() < kills:
        with folder() as path:
            victim = Victim(list(RUNS)[runs % len(RUNS)], path, phases, chance)
            while places.total() < kills:
                fresh = chance.random() < fresh_share
                fresh_ones += fresh
                place = victim.kill(fresh)
                if place is None:
                    break
                places[place] += 1
            else:
                victim.check_end(victim.begin(fresh=False))
        runs += 1
        print(f"{places.total()} kills, {runs} runs", file=sys.stderr, flush=True)
    return places, runs, fresh_ones


# at every operation on files, from the start of a process to the end of its first save ------------------------------------


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
        leave_after(saves=1)


def leave_after(saves: int) -> None:
    """Have this process end with its so-many-th save."""
    save, left = RunDirectory.save, iter(range(saves - 1, -1, -1))

    def save_and_leave(*args: Any) -> None:
        save(*args)
        if next(left) == 0:
            os._exit(SAVED)

    RunDirectory.save = save_and_leave  # type: ignore[method-assign]


def kill_at_every_operation(name: str) -> int:
    """How many operations there were; AssertionError if one of the kills did any harm."""
    with folder() as path:
        reference, half = path / "reference", path / "half"
        finished(*training(name, reference, PHASES))
        Process(*training(name, half, PHASES), prepare=lambda: leave_after(saves=4)).ends(SAVED)
        operation = 0
        while kill_at(operation, half, reference):
            operation += 1
        return operation


def kill_at(operation: int, half: Path, reference: Path) -> bool:
    """Whether there is such an operation; a resume that is killed there leaves all that there was."""
    run = half.with_name("run")
    shutil.copytree(half, run)
    before = newest_of(run)
    process = Process("resume", run, prepare=Fuse(operation).attach)
    if process.wait() != SAVED:
        process.ends(-signal.SIGKILL)
        newest = newest_of(run)
        assert newest.manifest["serial"] >= before.manifest["serial"], (
            f"operation {operation}: {before.path.name} is lost"
        )
        check_no_row_is_missing(run, newest, rows(reference))
        output = finished("resume", run)
        assert f"resuming from {newest.path.name}\n" in output, output
        check_same_end(run, reference)
    shutil.rmtree(run)
    return process.code != SAVED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=240, help="at random moments; 0 for none")
    parser.add_argument("--phases", type=int, default=40, help="of each run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--fresh", type=float, default=0.1, help="share of new interpreters; the others are forks")
    parser.add_argument("--operations", type=int, default=4, help="runs that are killed at every file operation")
    options = parser.parse_args()
    if options.kills:
        chance = random.Random(options.seed)
        places, runs, fresh = kill_at_random(options.kills, options.phases, options.fresh, chance)
        print(
            f"{options.kills} kills at random moments of {runs} runs of {options.phases} phases, {fresh} of the processes "
        )
        print(
            "new interpreters: every run resumed, nothing lost, ends and metrics equal to those of undisturbed runs.\n"
        )
        print(table(("the kill came", "times"), places.most_common()) + "\n")
    for name in list(RUNS)[: options.operations]:
        count = kill_at_every_operation(name)
        print(f"{name}: killed at each of the {count} file operations of a resume and its first save, the same.")


if __name__ == "__main__":
    main()
