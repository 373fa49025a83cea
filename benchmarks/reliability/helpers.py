"""Helper processes (workers of environments, the renderer of videos) that are signalled, stopped, hung or left alone.

python benchmarks/reliability/helpers.py
"""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from processes import Process, folder, table, until
from runs import check_all_is_whole, checkpoints

import tightrope as tr
import tightrope.processes
from tightrope.processes import alive

LIMIT = 10.0  # seconds from what happens to the end
SMALL = (
    "--num-steps 8 --num-minibatches 1 --update-epochs 1 --hidden-sizes 8 --device cpu --threads 1 --eval-episodes 1"
)
ASYNC = f"--backend gymnasium --vectorization-mode async --num-envs 2 --video-every 0 --save-seconds 0 {SMALL}"
FILMED = f"--num-envs 4 --video-every 1 {SMALL}"


class LongStep(gymnasium.Env[Any, Any]):
    """Its first eight steps are quick, the ninth takes an hour."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        time.sleep(3600 if self.steps > 8 else 0)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class EndlessDrawing(tr.envs.CartPole):
    """Its pictures are never finished."""

    def draw(self, obs: torch.Tensor, action: torch.Tensor | None = None) -> np.ndarray:
        while True:
            time.sleep(1)


if "LongStep-v0" not in gymnasium.registry:
    gymnasium.register("LongStep-v0", LongStep, max_episode_steps=100)


def training(env: str, flags: str, run: Path, steps: int = 10**7) -> Process:
    return Process("train", env, *flags.split(), "--total-timesteps", str(steps), "--run-dir", run)


def children(process: Process) -> list[int]:
    """Processes that it has started and that have not ended."""
    try:
        found = [task.read_text().split() for task in Path(f"/proc/{process.pid}/task").glob("*/children")]
    except FileNotFoundError:
        return []
    return [int(pid) for pids in found for pid in pids if alive(int(pid))]


def check_stopped(process: Process, run: Path, number: int, line: str = "") -> None:
    """It ended by that signal's code, with everything saved, a line that has these words, and nobody left."""
    assert process.wait(LIMIT) == 128 + number, (process.code, process.output)
    newest = check_all_is_whole(run)
    assert newest is not None, "nothing is saved"
    assert f"stopped after {newest.steps:,} steps; `tightrope resume {run}` goes on" in process.output, process.output
    assert "Traceback" not in process.output, process.output
    warnings = [said for said in process.output.splitlines() if said.startswith("warning: ")]
    assert len(warnings) == bool(line), process.output
    assert line in "".join(warnings), process.output


def gone(pids: list[int]) -> None:
    end = time.monotonic() + LIMIT
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.01)


# cases ----------------------------------------------------------------------------------------------------------------
# Each yields once all is as it should be for the mischief, then makes it and checks what comes of it.


def signalled(number: int) -> Callable[[Path], Any]:
    def case(path: Path) -> Any:
        run = path / "run"
        process = training("CartPole-v1", ASYNC, run)
        until(lambda: checkpoints(run), process)
        workers = children(process)
        assert len(workers) >= 2, process.output
        yield process
        process.send(number, group=True)
        for pid in workers:  # as a service manager does
            os.kill(pid, number)
        check_stopped(process, run, number)
        gone(workers)

    return case


def stopped_worker(path: Path) -> Any:
    run = path / "run"
    process = training("CartPole-v1", ASYNC, run)
    until(lambda: checkpoints(run), process)
    workers = sorted(children(process))
    yield process
    os.kill(workers[1], signal.SIGSTOP)
    until(lambda: is_quiet(run / "metrics.jsonl"), process)  # it waits for that worker
    process.send(signal.SIGTERM, group=True)
    check_stopped(process, run, signal.SIGTERM, "env 'CartPole-v1' number 1 failed")
    assert "its process is stopped" in process.output, process.output
    gone(workers)


def endless_drawing(path: Path) -> Any:
    run = path / "run"
    process = training("helpers:EndlessDrawing", FILMED, run)
    until(lambda: children(process) and is_quiet(run / "metrics.jsonl"), process)  # it waits for the renderer
    renderer = children(process)
    yield process
    process.send(signal.SIGTERM)
    assert process.wait(LIMIT) == 143, (process.code, process.output)
    assert check_all_is_whole(run) is not None
    assert process.output.count("warning: ") == 1, process.output
    assert "warning: video failed and is left out from here on: no frame was drawn in" in process.output
    gone(renderer)


def is_quiet(path: Path) -> bool:
    return path.exists() and time.time() - path.stat().st_mtime > 0.3


def stopped_renderer(path: Path) -> Any:
    run = path / "run"
    process = training("CartPole-v1", FILMED, run, steps=32 * 40)
    until(lambda: children(process), process)
    yield process
    for pid in children(process):
        os.kill(pid, signal.SIGSTOP)
    assert process.wait(LIMIT) == 0, (process.code, process.output)
    warning = "warning: video failed and is left out from here on: the process that draws is stopped"
    assert process.output.splitlines().count(warning) == process.output.count("warning: ") == 1, process.output
    assert "greedy return" in process.output, process.output


def killed_trainer(env: str, flags: str) -> Callable[[Path], Any]:
    def case(path: Path) -> Any:
        run = path / "run"
        process = training(env, flags, run)
        until(lambda: children(process) and is_quiet(run / "metrics.jsonl"), process)  # all wait for its helpers
        helpers = children(process)
        yield process
        process.kill()
        gone(helpers)

    return case


CASES: dict[str, Callable[[Path], Any]] = {
    "async, SIGTERM to the group": signalled(signal.SIGTERM),
    "async, SIGHUP to the group": signalled(signal.SIGHUP),
    "async, SIGINT to the group": signalled(signal.SIGINT),
    "async, a stopped worker and SIGTERM": stopped_worker,
    "draw() that never returns and SIGTERM": endless_drawing,
    "a stopped renderer: training goes on": stopped_renderer,
    "the renderer of a killed trainer is gone": killed_trainer("helpers:EndlessDrawing", FILMED),
    "the workers of a killed trainer are gone": killed_trainer("LongStep-v0", ASYNC),
}


def seconds_of(name: str) -> float:
    """How long it took from the mischief to the end; AssertionError if that was not as promised."""
    with folder() as path:
        case = CASES[name](path)
        process = next(case)
        began = time.monotonic()
        try:
            assert next(case, None) is None
        finally:
            if process.poll() is None:
                process.kill()
        return time.monotonic() - began


def helper_cases(only: str = "") -> list[tuple[str, bool, float]]:
    """(case, whether it ended as promised within ten seconds, seconds) for each; prints the table."""
    found = []
    for name in CASES:
        if not re.search(only, name):
            continue
        began = time.monotonic()
        try:
            seconds, ok = seconds_of(name), True
        except AssertionError as error:
            seconds, ok = time.monotonic() - began, False
            print(f"{name}: {error}", file=sys.stderr)
        found.append((name, ok and seconds <= LIMIT, seconds))
    rows = [(name, "yes" if ok else "NO", f"{seconds:.1f}") for name, ok, seconds in found]
    print(table(("case", "as promised", "seconds"), rows))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases that have this in their name, as a regular expression")
    parser.add_argument("--grace", type=float, help="seconds that a helper has after a signal, if not as usual")
    options = parser.parse_args()
    if options.grace is not None:
        tightrope.processes.AFTER_STOP = options.grace
    sys.exit(not all(ok for _, ok, _ in helper_cases(options.only)))


if __name__ == "__main__":
    main()
