"""One trial: several seeds of the same settings, trained side by side, scored together, given up where others did better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import optuna

from ...engine import State
from ...errors import NotFinite, UsageError
from ...types import Settings
from ..config import settings_of
from ..evaluate import Evaluation
from ..signals import Interrupts
from ..train import Outcome
from .places import OUTCOME
from .space import Space, fitted, suggested

SEEDS, SCORES, SETTINGS = "seeds", "scores", "settings"  # what a trial remembers besides its score
DIVERGED, UNFIT = "diverged", "does not fit"


class Learner(Protocol):
    """What a sweep asks of an agent."""

    @property
    def state(self) -> State: ...
    @property
    def finished(self) -> bool: ...
    def train(self, *, quiet: bool, until: int | None) -> Outcome: ...
    def evaluate(self, episodes: int) -> Evaluation: ...


class Stop(Exception):
    """Somebody wants the process to end."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Task:
    """What every trial of a study does with the settings that it tries."""

    algo: str
    make: Callable[[Settings], Learner]  # an untrained agent; UsageError where these settings are none
    usual: Settings  # all settings, before anything is tried
    space: Space
    seeds: Sequence[int]
    evaluations: int

    @property
    def steps(self) -> list[int]:
        """When to look at how it goes."""
        total = int(self.usual["total_timesteps"])
        return [total * look // self.evaluations for look in range(1, self.evaluations + 1)]

    def tried(self, trial: Any) -> Settings:
        """What a trial changes about the usual settings."""
        return fitted(suggested(trial, self.space, settings_of(self.algo)), self.usual)

    def score(self, trial: optuna.Trial, interrupts: Interrupts) -> float:
        """The mean of the seeds' last evaluations. TrialPruned where the study has seen enough of it, Stop on a signal."""
        settings = self.tried(trial)
        trial.set_user_attr(SETTINGS, {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()})
        agents: list[Learner] = []
        try:
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
                agent.state.env.close()

    def together(self, trial: optuna.Trial, agents: Sequence[Learner], interrupts: Interrupts) -> float:
        scores: list[float] = []
        for look, steps in enumerate(self.steps, 1):
            scores = [self.trained(agent, None if look == self.evaluations else steps, interrupts) for agent in agents]
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
        score = agent.evaluate(int(self.usual["eval_episodes"])).mean
        if interrupts.received is not None:
            raise Stop(interrupts.received)
        return score
