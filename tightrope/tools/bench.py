"""Measure the speed of training and where its time goes.

There are three measurements, each of a separate run so that none disturbs another: the speed of the undisturbed loop; the share
of each part of a phase, from marks between the parts (on CUDA these are events, which also work inside a graph); and the
launches of a phase, counted by torch's profiler.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..algorithms import ALGORITHMS
from ..engine import Guard, Runtime, State, Unit, choose_threads, threads, unguarded
from ..engine.metrics import Reading
from ..engine.rollout_policy import RolloutPolicy
from ..errors import plural
from ..files import Place
from ..logging import MetricsFile
from ..training.build import build, configured, configured_with
from ..training.config import Config
from ..training.own_code import imported, is_import_path
from ..training.user_objects import from_user, named_by_user
from ..types import Settings

WARM_UP = 3  # phases: an eager one, one that captures the graph, one more
SPLIT_PHASES = 5
ENDLESS = 1_000_000  # phases of the plan, so many that schedules hardly change
PARTS = {"estimate": "advantages", "learn": "learning"}  # by the algorithm's function, without inner parts
LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync",
)  # fmt: skip
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
HEADER = (
    f"{'envs x steps':>13} {'mode':<8} {'steps/s':>12} {'a phase':>12} {'set-up':>8} {'launches':>16} {'waits':>6} "
    f"{'memory':>12}  split of a phase"
)


@dataclass(frozen=True)
class Measurement:
    """The measurements of one run."""

    config: Config
    mode: str
    set_up: float  # seconds from the start to the end of the second phase
    steps_per_second: float
    phase: float  # mean seconds of a phase after warm-up
    split: dict[str, float]  # share of a phase, by part
    logging: float  # share of a phase that the host spends on metrics, while a device keeps working
    launches: int  # kernel and graph launches in one phase; on the CPU, operations
    graphs: int  # graphs among the launches
    syncs: int  # waits of the host for the device in one phase
    memory: int  # bytes: peak memory of torch on a device; on the CPU, peak memory of the process

    def line(self) -> str:
        """The measurements as a row of the table under HEADER."""
        size = f"{self.config.algorithm.num_envs} x {self.config.algorithm.num_steps}"
        asked = f"{self.launches:,}" + (f" ({plural(self.graphs, 'graph')})" if self.graphs else "")
        parts = [f"{name} {share:.0%}" for name, share in self.split.items()] + [f"(logging {self.logging:.0%})"]
        return (
            f"{size:>13} {self.mode:<8} {self.steps_per_second:>12,.0f} {self.phase * 1e3:>9.2f} ms {self.set_up:>6.1f} s "
            f"{asked:>16} {self.syncs:>6} {self.memory / 2**20:>8,.0f} MiB  {', '.join(parts)}"
        )


def measure(env: str, algo: str, settings: Settings, seconds: float = 2.0, trace: Path | None = None) -> Measurement:
    """Measure a run for about `seconds`; with `trace`, write one phase to a file for Perfetto."""
    began = time.perf_counter()
    state, config = start_run(env, algo, settings)
    device = state.env.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with threads(config.run.threads or choose_threads(state.policy, config.algorithm.minibatch_size)):
        loop = unguarded(ALGORITHMS[algo].loop)(state, config.algorithm)
        next(loop)
        next(loop)
        wait(device)
        set_up = time.perf_counter() - began
        steps_per_second, phase, logging = speed(loop, state, seconds)
        launches, graphs, syncs = demands(loop, device, trace)
        memory, mode = memory_in_use(device), state.runtime.mode
        state.env.close()
        del loop, state
        split = time_shares(env, algo, settings)
    return Measurement(
        config, mode, set_up, steps_per_second, phase, split, logging / phase, launches, graphs, syncs, memory
    )


def start_run(env: str, algo: str, settings: Settings) -> tuple[State, Config]:
    """Build a run with a plan that the benchmark never finishes."""
    layers, own = (settings, {"total_timesteps": 2**40}), None
    if is_import_path(env):
        config, own = configured_with(imported(env), algo, *layers)
    else:
        config = configured(env, algo, *layers)
    named_by_user(config.run.train_env, "train_env")
    config = config.changed(total_timesteps=config.algorithm.batch_size * ENDLESS)
    given = None if own is None else from_user(own, config, config.algorithm.num_envs)
    return build(config, given, config.network.network), config


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed(loop: Iterator[Any], state: State, seconds: float) -> tuple[float, float, float]:
    """(steps per second, seconds of a phase, seconds of it that the host spends on metrics). Metrics are read and written as in
    training."""
    logging, count = 0.0, 0
    guard = Guard(state)
    pending: list[Reading] = []
    next(loop)
    wait(state.env.device)
    with tempfile.TemporaryDirectory() as folder:
        file = MetricsFile(Place(Path(folder)) / "metrics.jsonl")
        began, steps = time.perf_counter(), state.steps
        while time.perf_counter() - began < seconds or count < SPLIT_PHASES:
            guard.snapshot()
            guard.add(next(loop))
            pending.append(guard.newest)
            count += 1
            if len(pending) > guard.late:
                pending[0].wait()  # so that waiting for the phase does not count as logging
                paused = time.perf_counter()
                guard.check_metrics(except_last=guard.late)
                file.write({"step": state.steps, "phase": state.phase} | pending.pop(0).row())
                logging += time.perf_counter() - paused
        wait(state.env.device)
        elapsed = time.perf_counter() - began
        file.close()
    return (state.steps - steps) / elapsed, elapsed / count, logging / count


def demands(loop: Iterator[Any], device: torch.device, trace: Path | None) -> tuple[int, int, int]:
    """(launches, graphs among them, waits) of one phase; on the CPU, (operations, 0, 0)."""
    calls = profiled(lambda: next(loop), device, trace)
    if device.type != "cuda":
        return sum(count for name, count in calls.items() if name.startswith("aten::")), 0, 0
    calls.subtract(profiled(lambda: None, device))  # calls of the profiler itself
    graphs = calls["cudaGraphLaunch"]
    return graphs + sum(calls[name] for name in LAUNCHES), graphs, sum(calls[name] for name in SYNCS)


def profiled(function: Callable[[], object], device: torch.device, trace: Path | None = None) -> Counter[str]:
    """The number of calls of each operation and each CUDA function."""
    with silenced_stderr(), torch.profiler.profile(acc_events=True) as profile:
        function()
        wait(device)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(trace))
    return Counter({event.key: event.count for event in profile.key_averages()})


@contextmanager
def silenced_stderr() -> Iterator[None]:
    """Suppress the lines that torch's profiler writes to stderr from C++."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def memory_in_use(device: torch.device) -> int:
    """Peak memory of torch on a device since the last reset of its statistics; on the CPU, of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


# the split of a phase ------------------------------------------------------------------------------------------------


class Marks:
    """A stopwatch that assigns time to the parts of a phase. `in_graphs`: marks may become part of a CUDA graph, whose replays
    record them again. They must then be kept as long as the graph."""

    def __init__(self, device: torch.device, in_graphs: bool) -> None:
        self.device, self.in_graphs = device, in_graphs
        self.marks: list[tuple[str, Any]] = []
        self.now: list[str] = ["rest"]

    def mark(self, part: str) -> None:
        """Assign the time from now on to a part."""
        if self.device.type != "cuda":
            self.marks.append((part, time.perf_counter()))
            return
        if not self.in_graphs and torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
        event.record()
        self.marks.append((part, event))

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.now.append(part)
            self.mark(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.now.pop()
                self.mark(self.now[-1])

        return call

    def totals(self) -> Counter[str]:
        """The time of each part, between the first mark and the last."""
        totals: Counter[str] = Counter()
        for (part, begin), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            totals[part] += begin.elapsed_time(end) if self.device.type == "cuda" else end - begin
        return totals


class MarkedPolicy:
    """A policy that marks the time of its calls."""

    def __init__(self, policy: RolloutPolicy, marks: Marks) -> None:
        self.evaluates_in_act = policy.evaluates_in_act
        self.act = marks.around("policy", policy.act)
        self.evaluate_actions = marks.around("policy", policy.evaluate_actions)
        self.choose = None if policy.choose is None else marks.around("policy", policy.choose)


class MarkedRuntime(Runtime):
    """A runtime that marks the time of the parts of a phase and of the policy."""

    def __init__(self, runtime: Runtime, marks: Marks) -> None:
        unit: Unit = "phase" if runtime.unit is None else runtime.unit
        super().__init__(runtime.mode, unit, runtime.precision, runtime.device, runtime.say)
        self.marks = marks

    def collect(self, *args: Any) -> Any:
        return self.marks.around("environment", super().collect)(*args)

    def call(self, unit: Unit, function: Callable[..., Any], *args: Any) -> Any:
        part = PARTS.get(getattr(function, "__name__", ""))
        call = super().call
        return (call if part is None else self.marks.around(part, call))(unit, function, *args)

    def rollout_policy(self, *args: Any) -> RolloutPolicy:
        return MarkedPolicy(super().rollout_policy(*args), self.marks)


def time_shares(env: str, algo: str, settings: Settings) -> dict[str, float]:
    """The share of a phase that each part takes."""
    state, config = start_run(env, algo, settings)
    whole = state.runtime.unit == "phase"
    marks, totals = Marks(state.env.device, in_graphs=whole), Counter[str]()
    state.runtime = MarkedRuntime(state.runtime, marks)
    for number, _ in enumerate(unguarded(ALGORITHMS[algo].loop)(state, config.algorithm)):
        wait(state.env.device)
        if number >= WARM_UP:
            totals += marks.totals()
        if not whole or number < 1:  # each replay of a captured phase records its events again
            marks.marks.clear()
        if number == WARM_UP + SPLIT_PHASES:
            break
    state.env.close()
    everything = sum(totals.values())
    return {part: time / everything for part, time in totals.items()}
