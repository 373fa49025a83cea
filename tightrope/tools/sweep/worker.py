"""One process of a sweep: claim a slot, train and score its trial, and repeat until all slots are done."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import optuna
import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from ...engine import shared_cores, stream_seed
from ...errors import NotFinite, UsageError, in_unit, raised
from ...training.evaluate import Evaluation
from ...training.signals import Interrupted, Interrupts
from ...training.trainer import Outcome
from ...types import Settings
from .slots import DEAD, FAILED, OUTCOME, OWN, SCORES, SLOT, STOPPED, TrialSlots, outcome_of
from .space import Space, decode, fit_divisors
from .storage import STORAGE_ERRORS

THREADS = "threads"  # trial attribute
DIVERGED, INVALID = "diverged", "does not fit"  # beginnings of outcomes
RANDOM_TRIALS = 10  # before the sampler learns from earlier ones
MAX_FAILURES_IN_A_ROW = 5  # slots in which a worker may fail one after the other
WAIT_SECONDS = 0.5


class Learner(Protocol):
    """The part of an agent that a sweep uses."""

    @property
    def finished(self) -> bool: ...
    def train(self, *, quiet: bool, until: int | None) -> Outcome: ...
    def evaluate(self, episodes: int) -> Evaluation: ...
    def close(self) -> None: ...


class TrialError(Exception):
    """The environment or network of a trial failed, not the storage; `__cause__` is the error."""


class TooManyFailures(Exception):
    """Several trials in a row failed in this process; the message names the last error."""


@contextmanager
def as_trial_error() -> Iterator[None]:
    """Inside, an error of an environment or a network becomes a TrialError. UsageError and NotFinite pass unchanged."""
    try:
        yield
    except (UsageError, NotFinite):
        raise
    except Exception as error:
        raise TrialError(raised(error)) from error


@dataclass(frozen=True)
class Objective:
    """Trains several seeds with the settings of a trial and scores them together."""

    make: Callable[[Settings], Learner]  # an untrained agent; UsageError if the settings do not fit together
    defaults: Settings  # all settings, before anything is searched
    space: Space
    seeds: Sequence[int]
    evaluations: int
    images: bool = False  # whether observations are images, whose networks gain from several threads

    def settings(self, params: Settings) -> Settings:
        """The settings that a trial with these stored parameters changes."""
        return fit_divisors(decode(params, self.space), self.defaults)

    def score(self, trial: optuna.Trial, interrupts: Interrupts, workers: int = 1) -> float:
        """Train a trial and return the mean of its seeds' last evaluations. TrialPruned if other trials were better at some
        point, or if the settings are invalid or diverge; Interrupted on a signal. `workers` processes share the cores."""
        settings = self.settings({name: dimension.suggest(trial, name) for name, dimension in self.space.items()})
        if self.images and self.defaults["threads"] is None:
            settings["threads"] = shared_cores(workers)
            trial.set_user_attr(THREADS, settings["threads"])
        agents: list[Learner] = []
        try:
            with as_trial_error():
                agents += [self.make({**settings, "seed": seed}) for seed in self.seeds]
            return self.train(trial, agents, interrupts)
        except (UsageError, NotFinite) as error:
            trial.set_user_attr(OUTCOME, f"{INVALID if isinstance(error, UsageError) else DIVERGED}: {error}")
            raise optuna.TrialPruned from None
        finally:
            for agent in agents:
                with suppress(Exception):  # after a failure, closing may fail too
                    agent.close()

    def train(self, trial: optuna.Trial, agents: Sequence[Learner], interrupts: Interrupts) -> float:
        total, score = int(self.defaults["total_timesteps"]), 0.0
        for evaluation in range(1, self.evaluations + 1):
            steps, last = total * evaluation // self.evaluations, evaluation == self.evaluations
            with as_trial_error():
                found = [self.train_one(agent, None if last else steps, interrupts) for agent in agents]
                scores = [one.mean for one in found]
            if not math.isfinite(sum(scores)):  # Optuna would fail the trial
                raise NotFinite(f"scores {', '.join(map(str, scores))} after {steps:,} steps")
            score = float(np.mean(scores))
            trial.set_user_attr(SCORES, scores)
            if found[0].measured is not None:
                trial.set_user_attr(OWN, in_unit(float(np.mean([one.measured for one in found])), found[0].unit))
            trial.report(score, evaluation)
            if not last and trial.should_prune():
                trial.set_user_attr(OUTCOME, f"pruned at {evaluation} of {self.evaluations}")
                raise optuna.TrialPruned
        return score

    def train_one(self, agent: Learner, until: int | None, interrupts: Interrupts) -> Evaluation:
        """Train an agent to `until` steps, or to its end, and return its score."""
        if not agent.finished:
            signal = agent.train(quiet=True, until=until).interrupted or interrupts.received
            if signal is not None:
                raise Interrupted(signal)
        try:
            score = agent.evaluate(int(self.defaults["eval_episodes"]))
        except (KeyboardInterrupt, SystemExit):  # a signal during the evaluation
            if interrupts.received is None:
                raise
        if interrupts.received is not None:
            raise Interrupted(interrupts.received)
        return score


@dataclass
class Worker:
    """One process of a sweep."""

    objective: Objective
    slots: TrialSlots
    seed: int
    log: Callable[[str], None]  # prints a line
    after_trial: Callable[[], None]
    failed_slots: set[int] = field(default_factory=set)  # slots whose trial failed in this process
    in_a_row: int = 0  # failed slots since the last success

    def work(self) -> int | None:
        """Run trials until all slots are done, by any process; returns the signal if one stopped it earlier."""
        waiting = False
        with Interrupts() as interrupts:
            while interrupts.received is None and self.slots.done() < self.slots.count:
                for number in self.slots.fail_dead_trials():
                    self.log(f"trial {number}: its process died; its settings are tried again")
                trial = self.slots.claim()
                if trial is not None:
                    self.run(trial, interrupts)
                elif not waiting:
                    self.log("all trials are taken: waiting for other processes to finish theirs")
                waiting = trial is None
                until = time.monotonic() + WAIT_SECONDS
                while waiting and time.monotonic() < until and interrupts.received is None:
                    time.sleep(0.05)
        return interrupts.received

    def run(self, trial: optuna.Trial, interrupts: Interrupts) -> None:
        """Run one trial. If it fails, the worker continues; if it is interrupted, its slot becomes free."""
        began, slot, error = time.monotonic(), trial.user_attrs[SLOT], ""
        # a new sampler for each trial: the study depends only on the seed, also after a restart
        seed = stream_seed(self.seed, "sweep", slot) % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=RANDOM_TRIALS)
        self.slots.study.sampler = sampler
        with self.slots.heartbeat(trial):
            try:
                score = self.objective.score(trial, interrupts, self.slots.local_workers())
                self.slots.study.tell(trial, score, skip_if_finished=True)
            except optuna.TrialPruned:
                self.slots.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
            except UpdateFinishedTrialError:  # other processes took this one for dead
                pass
            except (*STORAGE_ERRORS, KeyboardInterrupt, SystemExit) as stop:
                self.slots.fail(trial._trial_id, STOPPED)
                if isinstance(stop, Interrupted):
                    return
                raise
            except Exception as failure:
                error = self.fail(trial, failure)
        self.log(self.summary(self.slots.storage.get_trial(trial._trial_id), time.monotonic() - began))
        self.after_trial()
        self.count_failures(slot, error)

    def fail(self, trial: optuna.Trial, failure: Exception) -> str:
        """Record why a trial failed. Its settings are tried again, unless they need too much memory."""
        error = str(failure) if isinstance(failure, TrialError) else raised(failure)
        if isinstance(failure.__cause__, (MemoryError, torch.OutOfMemoryError)):
            with suppress(UpdateFinishedTrialError):
                trial.set_user_attr(OUTCOME, f"{INVALID}: {error}")
                self.slots.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.slots.fail(trial._trial_id, f"{FAILED}: {error}")
        return error

    def count_failures(self, slot: int, error: str) -> None:
        """Raise TooManyFailures if many slots in a row failed: a broken machine must not use up all slots."""
        if not error:
            self.in_a_row = 0
            return
        gc.collect()
        with suppress(Exception):  # a GPU that is lost
            torch.cuda.empty_cache()
        self.in_a_row += slot not in self.failed_slots
        self.failed_slots.add(slot)
        if self.in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise TooManyFailures(f"{self.in_a_row} trials in a row failed, the last with {error}")

    def summary(self, trial: FrozenTrial, seconds: float) -> str:
        """A line with the result of a trial."""
        taken = "other processes took this one for dead, and try its settings again"
        outcome = taken if outcome_of(trial) == DEAD else outcome_of(trial)
        scores = ", ".join(f"{score:.4g}" for score in trial.user_attrs.get(SCORES, []))
        own = f", {own}" if (own := trial.user_attrs.get(OWN)) else ""
        score = "" if trial.value is None else f", score {trial.value:.4g} ({scores}){own}"
        best = self.slots.best()
        lead = "" if best is None else f"; best {best.value:.4g} (trial {best.number})"
        progress = f"in {seconds:.1f} s; {self.slots.done()} of {self.slots.count} done"
        return f"trial {trial.number}: {outcome}{score} {progress}{lead}"
