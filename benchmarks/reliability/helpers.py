"""Helper processes (workers of environments, the renderer of videos) that are signalled, stopped, hung or left alone."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from attacks import Case
from processes import Process, until
from runs import check_stopped, checkpoints, newest_of

import tightrope as tr
from tightrope.processes import alive

LIMIT = 10.0  # seconds from what happens to the end
SMALL = (
    "--num-steps 8 --num-minibatches 1 --update-epochs 1 --hidden-sizes 8 --device cpu --threads 1 --eval-episodes 1"
)
ASYNC = f"--backend gymnasium --vectorization-mode async --num-envs 2 --video-every 0 --save-seconds 0 {SMALL}"
FILMED = f"--num-envs 4 --video-every 1 {SMALL}"
LEFT_OUT = "warning: video failed and is disabled: "
Event = Callable[[Path], Iterator[None]]  # stops before what happens, then makes it happen and checks what comes of it


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


def train(env: str, flags: str, run: Path, steps: int = 10**7) -> Process:
    return Process("train", env, *flags.split(), "--total-timesteps", str(steps), "--run-dir", run)


def waits_for_helpers(process: Process, run: Path) -> bool:
    """Whether it has helpers and nothing has been written for a while."""
    file = run / "metrics.jsonl"
    return bool(process.children) and file.exists() and time.time() - file.stat().st_mtime > 0.3


def check_warning(process: Process, line: str) -> None:
    """It has warned once, with these words, besides saying that a phase is finished first."""
    said = [
        said
        for said in process.output.splitlines()
        if said.startswith("warning: ") and "received: stopping after" not in said
    ]
    assert len(said) == 1, process.output
    assert line in said[0], process.output


def check_gone(pids: list[int]) -> None:
    end = time.monotonic() + LIMIT
    while any(map(alive, pids)):
        assert time.monotonic() < end, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.01)


def signalled(number: int) -> Event:
    def event(path: Path) -> Iterator[None]:
        run = path / "run"
        process = train("CartPole-v1", ASYNC, run)
        until(lambda: checkpoints(run), process)
        workers = process.children
        assert len(workers) >= 2, process.output
        yield
        process.send(number, group=True)
        for pid in workers:  # as a service manager does
            os.kill(pid, number)
        check_stopped(process, run, number, LIMIT)
        assert "warning: " not in process.output, process.output
        check_gone(workers)

    return event


def stopped_worker(path: Path) -> Iterator[None]:
    run = path / "run"
    process = train("CartPole-v1", ASYNC, run)
    until(lambda: checkpoints(run), process)
    workers = process.children
    yield
    os.kill(workers[1], signal.SIGSTOP)
    until(lambda: waits_for_helpers(process, run), process)
    process.send(signal.SIGTERM, group=True)
    check_stopped(process, run, signal.SIGTERM, LIMIT)
    check_warning(process, "env 'CartPole-v1' number 1 failed")
    assert "its process is stopped" in process.output, process.output
    check_gone(workers)


def endless_drawing(path: Path) -> Iterator[None]:
    run = path / "run"
    process = train("helpers:EndlessDrawing", FILMED, run)
    until(lambda: waits_for_helpers(process, run), process)
    renderer = process.children
    yield
    process.send(signal.SIGTERM)
    process.ends(143, LIMIT)
    newest_of(run)
    check_warning(process, f"{LEFT_OUT}no frame was drawn in")
    check_gone(renderer)


def stopped_renderer(path: Path) -> Iterator[None]:
    process = train("CartPole-v1", FILMED, path / "run", steps=32 * 40)
    until(lambda: process.children, process)
    yield
    for pid in process.children:
        os.kill(pid, signal.SIGSTOP)
    assert "greedy return" in process.ends(0, LIMIT), process.output
    check_warning(process, f"{LEFT_OUT}the process that draws is stopped")


def killed_trainer(env: str, flags: str) -> Event:
    def event(path: Path) -> Iterator[None]:
        run = path / "run"
        process = train(env, flags, run)
        until(lambda: waits_for_helpers(process, run), process)
        helpers = process.children
        yield
        process.kill()
        check_gone(helpers)

    return event


EVENTS: dict[str, Event] = {
    "async, SIGTERM to the group": signalled(signal.SIGTERM),
    "async, SIGHUP to the group": signalled(signal.SIGHUP),
    "async, SIGINT to the group": signalled(signal.SIGINT),
    "async, a stopped worker and SIGTERM": stopped_worker,
    "draw() that never returns and SIGTERM": endless_drawing,
    "a stopped renderer: training goes on": stopped_renderer,
    "the renderer of a killed trainer is gone": killed_trainer("helpers:EndlessDrawing", FILMED),
    "the workers of a killed trainer are gone": killed_trainer("LongStep-v0", ASYNC),
}


def timed(event: Event) -> Case:
    def case(path: Path) -> str:
        steps = event(path)
        next(steps)
        began = time.monotonic()
        next(steps, None)
        seconds = time.monotonic() - began
        assert seconds <= LIMIT, f"it took {seconds:.1f} s"
        return f"all ended {seconds:.1f} s after it"

    return case


def cases() -> dict[str, Case]:
    return {name: timed(event) for name, event in EVENTS.items()}
