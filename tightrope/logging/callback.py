"""Callbacks: code that runs during training. The console, trackers, videos and the report are callbacks too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ..output import print_line
from ..types import Env, Rollout, Settings

MetricsRow = dict[str, Any]  # one row of metrics.jsonl


class StopTraining(Exception):
    """Raise this in a callback to end training after the current phase. The run is saved, and `learn` can continue it."""


@dataclass(frozen=True)
class Target:
    """The return at which a task counts as solved."""

    value: float
    source: str  # the origin of the number, as a sentence without its full stop
    published: bool = True  # False if it is only the result of our preset


@dataclass(frozen=True)
class RunInfo:
    """The description of a run, before it starts or resumes."""

    title: str  # such as "CartPole-v1 ppo"
    settings: Settings
    plan: list[str]  # the plan of the run, as lines of text
    steps: int  # environment steps so far
    total_steps: int  # environment steps at the end
    run_dir: Path | None = None
    facts: dict[str, str] = field(default_factory=dict)  # versions, device, number of parameters
    steps_taken: Callable[[], int] | None = None  # environment steps of this process, if they can be counted in a phase
    target: Target | None = None
    traits: Settings = field(default_factory=dict)  # of the environment, as far as defaults depend on them
    unit: str = ""  # in which the task measures itself besides its reward, such as "rad/s"


class StateView(Protocol):
    """The state of a run, as far as callbacks read it."""

    @property
    def phase(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def env(self) -> Env: ...
    @property
    def policy(self) -> Any: ...  # the network
    @property
    def optimizer(self) -> Any: ...  # with the last gradient
    @property
    def rollout(self) -> Rollout: ...
    @property
    def obs(self) -> Tensor: ...  # (N, ...) current observations
    @property
    def solved(self) -> bool: ...


class EvaluationResult(Protocol):
    """The result of an evaluation: `tr.Evaluation`."""

    @property
    def returns(self) -> list[float]: ...
    @property
    def mean(self) -> float: ...
    @property
    def metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended."""

    state: StateView
    error: BaseException | None = None  # the exception that ended it
    stopped: str | None = None  # the message of StopTraining
    score: EvaluationResult | None = None  # of the trained agent, if one was requested

    @property
    def steps(self) -> int:
        return self.state.steps


class Callback:
    """Code that runs while an agent trains: `agent.learn(callbacks=[MyCallback()])`. Override the methods you need.

    Any method may raise `StopTraining("why")`: training then ends after the current phase, and the run is saved. Any other
    exception ends training as well, unless `may_fail` is set: then it is printed once, as a warning, and the callback is not
    called again.

    With several ranks, only rank 0 calls a callback. Set `every_rank` for a callback that changes settings or environments,
    which must be the same on all ranks. Random numbers that a callback draws from the global generators follow the run's seed.
    """

    name = ""  # in warnings; the class's name if empty
    may_fail = False
    every_rank = False

    def on_start(self, run: RunInfo) -> None:
        """Training starts or resumes."""

    def on_update(self, state: StateView) -> None:
        """A phase has run. Its rollout and its gradients can be read until the next phase overwrites them."""

    def on_phase(self, row: MetricsRow) -> None:
        """The metrics of a phase, as in metrics.jsonl. On a GPU they come one phase later than `on_update`."""

    def on_evaluation(self, result: EvaluationResult) -> None:
        """The result of an evaluation during training (setting `eval_every`)."""

    def on_evaluation_progress(self, done: int, episodes: int) -> None:
        """`done` of `episodes` episodes of a slow evaluation are over."""

    def on_video(self, path: Path, step: int) -> None:
        """A video of training has been written."""

    def on_trained(self, state: StateView) -> None:
        """The last phase is saved. Next the trained agent is evaluated, then `on_end` is called."""

    def on_end(self, result: TrainingResult) -> None:
        """Training has ended, normally or by an exception. No other method is called after this."""


class CallbackList:
    """Calls one method of several callbacks, in order."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.callbacks = list(callbacks)
        self.stopped: str | None = None  # the message of the first StopTraining
        self.raised: Exception | None = None  # the last one; a callback that was calling others passes it on

    def add(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks += callbacks

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of all callbacks, then raise the first exception, if there was one."""
        first: Exception | None = None
        for callback in list(self.callbacks):
            if callback not in self.callbacks:  # removed by a nested call
                continue
            name = callback.name or type(callback).__name__
            try:
                getattr(callback, method)(*arguments)
            except StopTraining as stop:
                self.stopped = self.stopped or str(stop) or f"by {name}"
            except Exception as error:
                if callback.may_fail and error is not self.raised:
                    self.callbacks.remove(callback)
                    line = f"warning: {name} failed and is disabled: {failure_text(error)}"
                    print_line(line, error=True)
                else:
                    first = first or error
        if first is not None:
            self.raised = first
            raise first


def failure_text(error: Exception) -> str:
    """An exception in one line: its type and its message, or the message alone for RuntimeError."""
    message = " ".join(str(error).split())[:200]
    if not message:
        return type(error).__name__
    return message if type(error) is RuntimeError else f"{type(error).__name__}: {message}"
