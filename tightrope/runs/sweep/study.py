"""The study that all processes of a sweep share, and what one of them does until all trials are done."""

from __future__ import annotations

import gc
import json
import logging
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import optuna
import torch
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from ...engine import stream_seed
from ...errors import UsageError
from ...types import Settings
from ..signals import Interrupts
from .places import DEAD, FAILED, Places
from .records import OUTCOME, PLACE, SCORES
from .storage import TROUBLES
from .trial import UNFIT, Failed, Stop, Task, in_words

SAME = "tightrope"  # the attribute of a study that says what it is a study of
STARTUP = 10  # trials at random, before there is something to learn from
PATIENCE = 5.0  # seconds that whoever began a study has for saying what it is, and for making its trials
MOST_IN_A_ROW = 5  # places at which a process may fail one after the other, before it is the process that is to blame


def open_study(storage: BaseStorage, name: str, terms: Settings) -> tuple[optuna.Study, bool]:
    """(the study of that name, whether it is new). One that was begun on other terms is refused."""
    quiet_optuna()
    terms = json.loads(json.dumps(terms))  # as a storage gives them back
    try:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize", pruner=pruner())
        study.set_user_attr(SAME, terms)
        return study, True
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, pruner=pruner())
    deadline = time.monotonic() + PATIENCE
    while SAME not in study.user_attrs and time.monotonic() < deadline:
        time.sleep(0.1)
    if SAME not in study.user_attrs:
        if study.get_trials(deepcopy=False):
            raise UsageError(f"study {name!r} of that storage is not one of ours: give another name with --study")
        study.set_user_attr(SAME, terms)  # whoever began it died at once
    check_same(name, study.user_attrs[SAME], terms)
    return study, False


def check_same(name: str, before: Any, now: Settings) -> None:
    """That both mean the same sweep."""
    if not isinstance(before, dict):
        raise UsageError(f"study {name!r} of that storage is not one of ours: give another name with --study")
    for key in [*now, *before]:
        theirs, ours = before.get(key), now.get(key)
        if isinstance(theirs, dict) and isinstance(ours, dict):
            check_same(name, theirs, ours)
        elif theirs != ours:
            raise UsageError(
                f"{key} {shown(ours)} is not the {shown(theirs)} with which study {name!r} was begun: give that, or begin "
                "another with --study NAME"
            )


def shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def pruner() -> optuna.pruners.BasePruner:
    """Below the median of what others had at the same point, once five are known; never at the first look."""
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)


def sampler(seed: int, place: int) -> optuna.samplers.BaseSampler:
    """A new one for each trial, seeded by its place: a sweep by one process is the same each time, also after a stop."""
    number = stream_seed(seed, "sweep", place) % 2**32
    return optuna.samplers.TPESampler(seed=number, multivariate=True, n_startup_trials=STARTUP)


def quiet_optuna() -> None:
    """We say ourselves what there is to say."""
    optuna.logging.set_verbosity(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


# working --------------------------------------------------------------------------------------------------------------


class Failing(Exception):
    """Trial after trial fails in this process. One line, with the last one's words."""


@dataclass
class Worker:
    """One process of a sweep."""

    study: optuna.Study
    task: Task
    places: Places
    seed: int
    say: Callable[[str], None]
    tell: Callable[[], None]  # after every trial
    failed: set[int] = field(default_factory=set)  # places at which we did
    in_a_row: int = 0  # of them, since a trial went well

    def work(self, new: bool) -> int | None:
        """Until all places are filled, by whomever; the signal that ended it before. Failing if nothing goes well here."""
        if new:
            self.places.fill()
        waiting = False
        with Interrupts() as interrupts:
            while self.places.done() < self.places.count:
                for number in self.places.bury():
                    self.say(f"trial {number}: its process is no more, so that it is done again")
                trial = self.places.take()
                if trial is not None:
                    waiting = False
                    if (signal := self.attempt(trial, interrupts)) is not None:
                        return signal
                    continue
                if not waiting and not self.places.empty():
                    self.say("all trials are taken: waiting for other processes to end theirs")
                    waiting = True
                if (signal := rest(interrupts)) is not None:
                    return signal
                self.places.fill_forgotten()
        return None

    def attempt(self, trial: optuna.Trial, interrupts: Interrupts) -> int | None:
        began, why = time.monotonic(), ""
        self.study.sampler = sampler(self.seed, trial.user_attrs[PLACE])
        with self.places.alive(trial):
            try:
                score = self.task.score(trial, interrupts, self.places.workers_here())
                self.study.tell(trial, score, skip_if_finished=True)
                self.in_a_row = 0
            except optuna.TrialPruned:
                self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
                self.in_a_row = 0
            except Stop as stop:
                self.places.give_back(trial)
                return stop.signal
            except optuna.exceptions.UpdateFinishedTrialError:  # others took us for dead, and do it again
                pass
            except TROUBLES:
                self.places.give_back(trial)
                raise
            except Exception as error:
                why = self.fail(trial, error)
            except BaseException:
                self.places.give_back(trial)
                raise
        self.say(self.line(trial.number, time.monotonic() - began))
        self.tell()
        if why:
            self.check_health(trial.user_attrs[PLACE], why)
        return interrupts.received

    def fail(self, trial: optuna.Trial, error: Exception) -> str:
        """A bad trial is no reason to stop: others try it again, a few times, unless that is of no use; what went wrong."""
        why = str(error) if isinstance(error, Failed) else in_words(error)
        if isinstance(error, Failed) and error.for_good:
            with suppress(optuna.exceptions.UpdateFinishedTrialError):
                trial.set_user_attr(OUTCOME, f"{UNFIT}: {why}")
                self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        else:
            self.places.fail(self.places.storage.get_trial(trial._trial_id), f"{FAILED}: {why}")
        return why

    def check_health(self, place: int, why: str) -> None:
        """Stop where one place after the other fails, so that a broken machine does not go through all of them. Failing again
        where we did before says nothing new."""
        clear_memory()
        if place not in self.failed:
            self.failed.add(place)
            self.in_a_row += 1
        if self.in_a_row >= MOST_IN_A_ROW:
            raise Failing(f"{self.in_a_row} trials in a row failed, the last with {why}")

    def line(self, number: int, seconds: float) -> str:
        """What has become of a trial."""
        trial = next((t for t in self.places.trials() if t.number == number), None)
        if trial is None:
            return f"trial {number}: the storage no longer has it as it was; {self.places.done()} of {self.places.count} done"
        how = trial.user_attrs.get(OUTCOME, "")
        if how == DEAD:
            how = "others took this process for dead, and do it again"
        elif trial.state == TrialState.PRUNED and not how:
            how = f"given up at {trial.last_step} of {self.task.evaluations}, score {trial.value or 0:.4g}"
        elif trial.state == TrialState.COMPLETE:
            seeds = ", ".join(f"{score:.4g}" for score in trial.user_attrs.get(SCORES, []))
            how = f"score {trial.value:.4g} ({seeds})"
        ours = self.places.best()
        lead = "" if ours is None else f"; best {ours.value:.4g} (trial {ours.number})"
        return f"trial {number}: {how} in {seconds:.1f} s; {self.places.done()} of {self.places.count} done{lead}"


def clear_memory() -> None:
    """What a failed trial held, for the next one and for others on the same GPU."""
    gc.collect()
    with suppress(Exception):  # a GPU that is lost
        torch.cuda.empty_cache()


def rest(interrupts: Interrupts) -> int | None:
    """A moment, or less if a signal comes."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until and interrupts.received is None:
        time.sleep(0.05)
    return interrupts.received
