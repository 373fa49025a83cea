"""How fast a run is and where its time goes: the loop that training drives, timed.

Three looks, each at a run of its own so that none disturbs another: its speed with nothing in between; how a phase is split,
by marks at the borders of its parts (on CUDA these are events, which are recorded inside a graph too); and what a phase
asks of the device, by torch's profiler.
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
from ..training.user_objects import from_user, import_training_env, imported, is_import_path
from ..types import Settings

WARM_UP = 3  # phases: one as written, one that captures, one to be sure
SPLIT_PHASES = 5
ENDLESS = 1_000_000  # phases of the plan, so that schedules stand still
PARTS = {"estimate": "advantages", "learn": "learning"}  # whose time a page's function takes, but for inner ones
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
    """What was measured of one run."""

    config: Config
    mode: str
    set_up: float  # seconds from nothing to the end of the second phase
    steps_per_second: float
    phase: float  # seconds of one, in the long run
    split: dict[str, float]  # share of a phase, by part
    logging: float  # share of a phase that the host is busy with metrics; a device works on meanwhile
    launches: int  # by the host in one phase; on the CPU, operations
    graphs: int  # of the launches, whole graphs
    syncs: int  # at which the host waits for the device, in one phase
    memory: int  # bytes: the most that torch held on a device; on the CPU, what the process holds

    def line(self) -> str:
        """A row under HEADER."""
        size = f"{self.config.algorithm.num_envs} x {self.config.algorithm.num_steps}"
        asked = f"{self.launches:,}" + (f" ({plural(self.graphs, 'graph')})" if self.graphs else "")
        parts = [f"{name} {share:.0%}" for name, share in self.split.items()] + [f"(logging {self.logging:.0%})"]
        return (
            f"{size:>13} {self.mode:<8} {self.steps_per_second:>12,.0f} {self.phase * 1e3:>9.2f} ms {self.set_up:>6.1f} s "
            f"{asked:>16} {self.syncs:>6} {self.memory / 2**20:>8,.0f} MiB  {', '.join(parts)}"
        )


def measure(env: str, algo: str, settings: Settings, seconds: float = 2.0, trace: Path | None = None) -> Measurement:
    """Measure a run for about as many seconds; with `trace`, write one phase to a file that Perfetto opens."""
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
        split = shares(env, algo, settings)
    return Measurement(
        config, mode, set_up, steps_per_second, phase, split, logging / phase, launches, graphs, syncs, memory
    )


def start_run(env: str, algo: str, settings: Settings) -> tuple[State, Config]:
    """A run whose plan has no end within reach."""
    layers, own = (settings, {"total_timesteps": 2**40}), None
    if is_import_path(env):
        config, own = configured_with(imported(env), algo, *layers)
    else:
        config = configured(env, algo, *layers)
    import_training_env(config.run.train_env)
    config = config.changed(total_timesteps=config.algorithm.batch_size * ENDLESS)
    given = None if own is None else from_user(own, config, config.algorithm.num_envs)
    return build(config, given, config.network.network), config


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed(loop: Iterator[Any], state: State, seconds: float) -> tuple[float, float, float]:
    """(steps per second, seconds of a phase, seconds of it that the host spends on metrics), which are written, and looked at,
    as training does it."""
    logging, count = 0.0, 0
    guard = Guard(state)
    pending: list[Reading] = []
    next(loop)
    wait(state.env.device)
    with tempfile.TemporaryDirectory() as folder:
        file = MetricsFile(Place(Path(folder)) / "metrics.jsonl")
        began, steps = time.perf_counter(), state.steps
        while time.perf_counter() - began < seconds or count < SPLIT_PHASES:
            guard.remember()
            guard.add(next(loop))
            pending.append(guard.newest)
            count += 1
            if len(pending) > guard.late:
                pending[0].wait()  # the phase's own time, not logging's
                paused = time.perf_counter()
                guard.look(but=guard.late)
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
    calls.subtract(profiled(lambda: None, device))  # what the profiler itself asks for
    graphs = calls["cudaGraphLaunch"]
    return graphs + sum(calls[name] for name in LAUNCHES), graphs, sum(calls[name] for name in SYNCS)


def profiled(function: Callable[[], object], device: torch.device, trace: Path | None = None) -> Counter[str]:
    """How often each operation was run and each function of CUDA called."""
    with silenced_stderr(), torch.profiler.profile(acc_events=True) as profile:
        function()
        wait(device)
    if trace is not None:
        trace.parent.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(trace))
    return Counter({event.key: event.count for event in profile.key_averages()})


@contextmanager
def silenced_stderr() -> Iterator[None]:
    """Without the lines that torch's profiler writes there from C++."""
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
    """The most that torch held on a device since it was asked to start anew; on the CPU, what the process holds now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # where it is in bytes


# the split of a phase ------------------------------------------------------------------------------------------------


class Marks:
    """A clock that always belongs to one part of a phase."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[str, Any]] = []
        self.now: list[str] = ["rest"]

    def mark(self, part: str) -> None:
        """From here on the time is that part's."""
        if self.device.type != "cuda":
            self.marks.append((part, time.perf_counter()))
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
        """Time by part, between the first mark and the last."""
        totals: Counter[str] = Counter()
        for (part, begin), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            totals[part] += begin.elapsed_time(end) if self.device.type == "cuda" else end - begin
        return totals


class MarkedPolicy:
    """A policy that sets marks around what it does."""

    def __init__(self, policy: RolloutPolicy, marks: Marks) -> None:
        self.evaluates_in_act = policy.evaluates_in_act
        self.act = marks.around("policy", policy.act)
        self.evaluate_actions = marks.around("policy", policy.evaluate_actions)
        self.choose = None if policy.choose is None else marks.around("policy", policy.choose)


class MarkedRuntime(Runtime):
    """A runtime that sets marks around the parts of a phase and around the policy."""

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


def shares(env: str, algo: str, settings: Settings) -> dict[str, float]:
    """The share of a phase that each part takes."""
    state, config = start_run(env, algo, settings)
    marks, totals = Marks(state.env.device), Counter[str]()
    whole = state.runtime.unit == "phase"
    state.runtime = MarkedRuntime(state.runtime, marks)
    for number, _ in enumerate(unguarded(ALGORITHMS[algo].loop)(state, config.algorithm)):
        wait(state.env.device)
        if number >= WARM_UP:
            totals += marks.totals()
        if not whole or number < 1:  # the events of a captured phase are recorded anew by each replay
            marks.marks.clear()
        if number == WARM_UP + SPLIT_PHASES:
            break
    state.env.close()
    everything = sum(totals.values())
    return {part: time / everything for part, time in totals.items()}
