"""Kill training again and again, resume it every time, and compare its end with that of a run that nothing happened to.

python benchmarks/reliability/kills.py                      # 240 kills at random moments, then one at every file operation
python benchmarks/reliability/kills.py --kills 12 --seed 3
"""

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from every_operation import kill_at_every_operation
from processes import Process, finished, folder, table
from runs import RUNS, check_all_is_whole, check_no_row_is_missing, check_same_end, checkpoints, rows, serial, training

from tightrope.training.checkpoint import CHECKPOINTS
from tightrope.training.persistence import LEAVING, UNFINISHED


def writing(run: Path) -> bool:
    """Whether a checkpoint is being written right now."""
    try:
        return any(name.startswith(UNFINISHED) for name in os.listdir(run / CHECKPOINTS))
    except FileNotFoundError:
        return False


def where_it_died(run: Path) -> str:
    """The moment of a kill, as the files tell it."""
    try:
        names = os.listdir(run / CHECKPOINTS)
    except FileNotFoundError:
        return "before the first save"
    if any(name.startswith(UNFINISHED) for name in names):
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
        code, output = finished(*training(name, self.reference, phases))
        assert code == 0, output
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
        if process.code != -9:
            self.came_to_its_end(process)
            return None
        place = where_it_died(self.path)
        newest = check_all_is_whole(self.path)
        if seen:
            assert newest is not None
            assert newest.manifest["serial"] >= serial(seen[0]), f"{seen[0]} is lost, {newest.path.name} is there"
        if newest is not None:
            check_no_row_is_missing(self.path, newest, self.expected)
        if before and "going on from" in process.output:
            assert f"going on from {before[0]}\n" in process.output, process.output
        assert "damaged" not in process.output, process.output
        return place

    def come_to_the_end(self) -> None:
        process = self.begin(fresh=False)
        process.wait()
        self.came_to_its_end(process)

    def came_to_its_end(self, process: Process) -> None:
        assert process.code == 0, process.output
        check_same_end(self.path, self.reference, tidy="nothing to do" not in process.output)
        shutil.rmtree(self.path)


def kill_at_random(kills: int, phases: int, fresh_share: float, chance: random.Random) -> tuple[Counter[str], int, int]:
    """(places of the kills, how many runs they were, how many of the processes were new interpreters)."""
    places: Counter[str] = Counter()
    runs = fresh_ones = 0
    while places.total() < kills:
        name = list(RUNS)[runs % len(RUNS)]
        with folder() as path:
            victim = Victim(name, path, phases, chance)
            ended = False
            while not ended:
                fresh = chance.random() < fresh_share
                fresh_ones += fresh
                place = victim.kill(fresh)
                places.update([place] if place else [])
                ended = place is None
                if places.total() >= kills and not ended:
                    victim.come_to_the_end()
                    ended = True
        runs += 1
        print(f"{places.total()} kills, {runs} runs", file=sys.stderr, flush=True)
    return places, runs, fresh_ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=240, help="at random moments; 0 for none")
    parser.add_argument("--phases", type=int, default=40, help="of each run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--fresh", type=float, default=0.1, help="share of new interpreters; the others are forks")
    parser.add_argument("--operations", type=int, default=4, help="runs that are killed at every file operation")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.kills:
        chance = random.Random(options.seed)
        places, runs, fresh = kill_at_random(options.kills, options.phases, options.fresh, chance)
        print(
            f"{places.total()} kills at random moments of {runs} runs of {options.phases} phases, {fresh} of the processes "
        )
        print(
            "new interpreters: every run resumed, nothing lost, ends and metrics equal to those of undisturbed runs.\n"
        )
        print(table(("the kill came", "times"), places.most_common()) + "\n")
    for name in list(RUNS)[: options.operations]:
        count = kill_at_every_operation(name)
        print(f"{name}: killed at each of the {count} file operations of a resume and its first save, the same.")
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
