"""Signals at every kind of moment, and two processes that want one directory.

python benchmarks/reliability/signals.py
"""

import argparse
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Process, finished, folder, table, until
from runs import check_all_is_whole, check_same_numbers, checkpoints, rows, training

from tightrope.processes import alive
from tightrope.runs import scoring
from tightrope.runs.directory import RunDirectory

NAME = "PPO, Pendulum, evaluations"
PHASES = 16
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def slow(owner: Any, name: str, mark: Path) -> Callable[[], None]:
    """In a process: leave a mark at the third call of a function, which takes its time."""

    def prepare() -> None:
        original, calls = getattr(owner, name), iter(range(1, 10**9))

        def slowed(*args: Any, **options: Any) -> Any:
            if next(calls) == 3:
                mark.touch()
                time.sleep(0.2)
            return original(*args, **options)

        setattr(owner, name, slowed)

    return prepare


def stopped(path: Path, number: int, prepare: Callable[[], None], mark: Path, group: bool = False) -> Process:
    """A training that got a signal once the mark was there."""
    process = Process(*training(NAME, path / "run", PHASES), prepare=prepare)
    until(mark.exists, process)
    process.send(number, group)
    return process


def check_stopped(process: Process, number: int, path: Path) -> None:
    """It left as asked, with everything saved; resumed, it comes to the end of an undisturbed run."""
    run = path / "run"
    assert process.wait() == CODES[signal.Signals(number)], (process.code, process.output)
    newest = check_all_is_whole(run)
    assert newest is not None
    assert f"stopped after {newest.steps:,} steps; `tightrope resume {run}` goes on" in process.output, process.output
    assert "Traceback" not in process.output, process.output
    assert len(rows(run)) == newest.manifest["phase"], "phases that were not saved"
    check_resumes(path)


def check_resumes(path: Path) -> None:
    code, output = finished("resume", path / "run")
    assert code == 0, output
    code, output = finished(*training(NAME, path / "reference", PHASES))
    assert code == 0, output
    check_same_numbers(path / "run", path / "reference")


def during(owner: Any, name: str) -> Callable[[Path, int], None]:
    def case(path: Path, number: int) -> None:
        mark = path / "mark"
        check_stopped(stopped(path, number, slow(owner, name, mark), mark), number, path)

    return case


def anywhere(path: Path, number: int) -> None:
    process = Process(*training(NAME, path / "run", PHASES))
    until(lambda: checkpoints(path / "run"), process)
    time.sleep(random.uniform(0, 0.3))
    process.send(number)
    check_stopped(process, number, path)


def twice(path: Path, number: int) -> None:
    """The second one leaves at once; what was saved before stays."""
    mark = path / "mark"

    def very_slow() -> None:
        slow(RunDirectory, "save", mark)()
        save = RunDirectory.save
        RunDirectory.save = lambda *args: (save(*args), time.sleep(60 * mark.exists()))[0]  # type: ignore

    process = stopped(path, number, very_slow, mark)
    time.sleep(0.5)
    assert process.poll() is None, process.output
    process.send(number)
    code = process.wait(5)
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM), (code, process.output)
    assert check_all_is_whole(path / "run") is not None
    check_resumes(path)


def during_the_last_evaluation(path: Path, number: int) -> None:
    """Training is over and saved."""
    mark = path / "mark"

    def prepare() -> None:
        import tightrope.agent

        slow(tightrope.agent, "evaluate", mark)()
        evaluate = tightrope.agent.evaluate
        tightrope.agent.evaluate = lambda *args, **rest: (mark.touch(), time.sleep(60), evaluate(*args, **rest))[2]

    process = stopped(path, number, prepare, mark)
    code = process.wait(5)
    assert code == CODES[signal.Signals(number)], (code, process.output)
    assert f"stopped during the last evaluation; the trained agent is in {path / 'run'}" in process.output
    code, output = finished("resume", path / "run")
    assert code == 0, output
    assert "nothing to do" in output, output


SIGNALS: dict[str, Callable[[Path, int], None]] = {
    "anywhere": anywhere,
    "during a save": during(os, "fsync"),
    "during a save, before the pointer is moved": during(os, "rename"),
    "during an evaluation": during(scoring, "evaluate"),
    "twice, during a save": twice,
    "during the last evaluation": during_the_last_evaluation,
}


# locks ----------------------------------------------------------------------------------------------------------------


def refused(process: Process, holder: int) -> None:
    assert process.wait() == 2, process.output
    lines = [line for line in process.output.splitlines() if line.startswith("tightrope: ")]
    assert len(lines) == 1, process.output
    assert f"is being written by process {holder} on " in lines[0], process.output
    assert "Traceback" not in process.output


def second_process(path: Path) -> None:
    """A second process is refused; `eval` works meanwhile; a killed one leaves no lock."""
    run = path / "run"
    first = Process(*training(NAME, run, 10**6))
    until(lambda: checkpoints(run), first)
    refused(Process("resume", run), first.pid)
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
    args = "CartPole-v1 --backend gymnasium --vectorization-mode async --num-envs 2 --num-steps 8 --num-minibatches 1"
    more = "--total-timesteps 160000 --save-seconds 0 --device cpu --threads 1"
    first = Process("train", *args.split(), *more.split(), "--run-dir", run)
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


LOCKS = [second_process, workers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="how often each")
    parser.add_argument("--only", default="", help="what has this in its name, as a regular expression")
    options = parser.parse_args()
    wanted = re.compile(options.only).search
    began, happened = time.perf_counter(), []
    for name, case in SIGNALS.items():
        for number in CODES:
            if not wanted(f"{number.name} {name}"):
                continue
            for _ in range(options.times):
                with folder() as path:
                    case(path, number)
            happened.append((f"{number.name} {name}", options.times))
            print(happened[-1], file=sys.stderr, flush=True)
    for lock in LOCKS:
        if not wanted(lock.__doc__ or ""):
            continue
        for _ in range(options.times):
            with folder() as path:
                lock(path)
        happened.append(((lock.__doc__ or "").removesuffix("."), options.times))
        print(happened[-1], file=sys.stderr, flush=True)
    print("Exit code, message and files as promised, and the run resumed to the same end:\n")
    print(table(("what happened", "times"), happened))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
