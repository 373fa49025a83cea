"""One trial: several seeds of the same settings, trained side by side, scored together, given up where others did better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import optuna
import torch

from ...engine import State, shared_cores
from ...errors import NotFinite, UsageError, plain
from ...types import Settings
from ..config import settings_of
from ..evaluate import Evaluation
from ..signals import Interrupts
from ..train import Outcome
from .records import OUTCOME, SCORES
from .space import Space, fitted, kept_settings, suggested

THREADS = "threads"  # an attribute: with how many it was trained
DIVERGED, UNFIT = "diverged", "does not fit"


class Learner(Protocol):
    """What a sweep asks of an agent."""

    @property
    def state(self) -> State: ...
    @property
    def finished(self) -> bool: ...
    def train(self, *, quiet: bool, until: int | None) -> Outcome: ...
    def evaluate(self, episodes: int) -> Evaluation: ...
    def close(self) -> None: ...


class Stop(Exception):
    """Somebody wants the process to end."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class Failed(Exception):
    """What was tried failed, not the storage that was to hear of it. One line; the cause is what was raised."""

    @property
    def for_good(self) -> bool:
        """Whether another attempt would only fail again."""
        return isinstance(self.__cause__, (MemoryError, torch.OutOfMemoryError))


@contextmanager
def blamed_on_trial() -> Iterator[None]:
    """Whatever an environment or a network raises here is the trial's trouble, also if the storage might raise the same."""
    try:
        yield
    except (UsageError, NotFinite, Stop):
        raise
    except Exception as error:
        raise Failed(in_words(error)) from error


def in_words(error: Exception) -> str:
    """One line: what kind of error, and how its own words begin."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    return plain(f"{kind}: {first}" if first else kind)


@dataclass(frozen=True)
class Task:
    """What every trial of a study does with the settings that it tries."""

    algo: str
    make: Callable[[Settings], Learner]  # an untrained agent; UsageError where these settings are none
    usual: Settings  # all settings, before anything is tried
    space: Space
    seeds: Sequence[int]
    evaluations: int
    images: bool = False  # whether their networks gain from several threads

    @property
    def steps(self) -> list[int]:
        """When to look at how it goes."""
        total = int(self.usual["total_timesteps"])
        return [total * look // self.evaluations for look in range(1, self.evaluations + 1)]

    def tried(self, trial: Any) -> Settings:
        """What a trial changes about the usual settings."""
        return fitted(suggested(trial, self.space, settings_of(self.algo)), self.usual)

    def tried_before(self, trial: optuna.trial.FrozenTrial) -> Settings:
        """What a trial of the storage has changed about them."""
        return fitted(kept_settings(trial.params, self.space, settings_of(self.algo)), self.usual)

    def score(self, trial: optuna.Trial, interrupts: Interrupts, workers: int = 1) -> float:
        """The mean of the seeds' last evaluations. TrialPruned where the study has seen enough of it, Stop on a signal.
        `workers` processes share the cores of this machine."""
        settings = self.tried(trial)
        if self.images and self.usual["threads"] is None:
            settings = {**settings, "threads": shared_cores(workers)}
            trial.set_user_attr(THREADS, settings["threads"])
        agents: list[Learner] = []
        try:
            with blamed_on_trial():
                agents += [self.make({**settings, "seed": seed}) for seed in self.seeds]
            return self.together(trial, agents, interrupts)
        except UsageError as error:  # not each on its own, but these together
            trial.set_user_attr(OUTCOME, f"{UNFIT}: {error}")
            raise optuna.TrialPruned from None
        except NotFinite as error:
            trial.set_user_attr(OUTCOME, f"{DIVERGED}: {error}")
            raise optuna.TrialPruned from None
        finally:
            for agent in agents:
                with suppress(Exception):  # one that failed may not close either
                    agent.close()

    def together(self, trial: optuna.Trial, agents: Sequence[Learner], interrupts: Interrupts) -> float:
        scores: list[float] = []
        for look, steps in enumerate(self.steps, 1):
            until = None if look == self.evaluations else steps
            with blamed_on_trial():
                scores = [self.trained(agent, until, interrupts) for agent in agents]
            if not math.isfinite(sum(scores)):  # Optuna would fail the trial, and its place be tried for ever
                raise NotFinite(f"scores {', '.join(map(str, scores))} after {steps:,} steps")
            trial.set_user_attr(SCORES, scores)
            trial.report(float(np.mean(scores)), look)
            if look < self.evaluations and trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(scores))

    def trained(self, agent: Learner, until: int | None, interrupts: Interrupts) -> float:
        """Its score after so many steps, or at the end."""
        if not agent.finished:
            stopped = agent.train(quiet=True, until=until).interrupted or interrupts.received
            if stopped is not None:
                raise Stop(stopped)
        try:
            score = agent.evaluate(int(self.usual["eval_episodes"])).mean
        except (KeyboardInterrupt, SystemExit):  # which ended the evaluation
            if interrupts.received is None:
                raise
            raise Stop(interrupts.received) from None
        if interrupts.received is not None:
            raise Stop(interrupts.received)
        return score
