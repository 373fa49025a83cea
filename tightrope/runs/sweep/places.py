"""Who works on which trial, so that none is lost and none is done twice, whoever dies.

A sweep of N trials has N places. A place is filled by trials that carry its number: one that came to an end (complete or
pruned) fills it for good, one that waits or runs will. The storage sees to it that a waiting trial is taken by one process
only. Whoever works on a trial gives signs of life. A trial whose process gives none is failed, which again only one process
can do, and the place gets a new one with the same settings. Should two processes fill one place at the same moment, the later
trial stands aside when it is taken. A process that was only asleep is told so when it wants to write.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ...errors import warn
from ...types import Settings
from .records import BEAT, FIXED, OUTCOME, PLACE, WORKER, malformed
from .space import Space

DEAD, ASIDE, STOPPED = "its process died", "another trial has its place", "stopped, to be done again"
FAILED, GIVEN_UP = "failed", "given up"  # how such outcomes begin
WINDOW = 64  # places that have a waiting trial at once: every look reads all of those
MOST_TOLD = 5  # malformed trials that are named
MOST_DEATHS = 5  # of processes or trials at one place, before it is left alone: its settings may be what kills them


@dataclass
class Places:
    """The places of a study, as one process sees them."""

    study: optuna.Study
    count: int
    first: Settings  # what the first trial tries
    beat_seconds: float = 5.0
    grace_seconds: float = 60.0  # without a sign of life, seen by our own clock: others' may be wrong
    patience: tuple[float, float] = (1.5, 3.0)  # seconds
    were_empty: tuple[list[int], float] = ([], 0.0)  # places, and when they count as forgotten
    space: Space | None = None  # what is searched, to hold the storage's trials to
    types: dict[str, Any] = field(default_factory=dict)  # of settings
    sound: set[int] = field(default_factory=set)  # finished trials that are well-formed: those change no more
    left_out: set[int] = field(default_factory=set)  # malformed ones
    seen: dict[int, tuple[Any, float]] = field(default_factory=dict)  # last sign of each running trial, and since when

    @property
    def storage(self) -> BaseStorage:
        """Below what a study offers: who writes to which trial is our business, not the optimiser's."""
        return self.study._storage

    def trials(self) -> list[FrozenTrial]:
        """Those that are of this sweep, as far as can be seen. Others in the storage are left out, and named once."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if self.is_sound(trial)]

    def is_sound(self, trial: FrozenTrial) -> bool:
        if trial.number in self.sound:
            return True
        why = malformed(trial, self.space, self.types)
        if why is None and trial.state.is_finished():
            self.sound.add(trial.number)
        if why is not None and trial.number not in self.left_out:
            self.left_out.add(trial.number)
            if len(self.left_out) <= MOST_TOLD:
                more = ". More of them are not named" if len(self.left_out) == MOST_TOLD else ""
                warn(f"trial {trial.number} of the storage is left out: {why}{more}")
        return why is None

    def best(self) -> FrozenTrial | None:
        """The trial with the highest score, if one came to its end."""
        scores = [(trial.value, -trial.number, trial) for trial in self.trials() if trial.state == TrialState.COMPLETE]
        return max((one for one in scores if one[0] is not None), key=lambda one: one[:2], default=(0, 0, None))[2]

    def fill(self) -> None:
        """A waiting trial for each of the next places that have none."""
        for place in self.empty()[:WINDOW]:
            self.offer(place)

    def fill_forgotten(self) -> None:
        """The same once nobody has done it for a while. Where others are at work, who may have the same idea, in no order and
        looking each time; alone in order, so that the study is that of a sweep that never stopped."""
        empty, now = self.empty(), time.monotonic()
        if empty != self.were_empty[0]:
            self.were_empty = (empty, now + random.uniform(*self.patience))
        if now <= self.were_empty[1]:
            return
        coming = empty[:WINDOW]
        if any(trial.state == TrialState.RUNNING for trial in self.trials()):
            random.shuffle(coming)
        for place in coming:
            if place in self.empty():
                self.offer(place)

    def offer(self, place: int) -> None:
        self.study.enqueue_trial(self.first if place == 0 else {}, user_attrs={PLACE: place})

    def empty(self) -> list[int]:
        taken = {trial.user_attrs.get(PLACE) for trial in self.trials() if fills(trial)}
        return [place for place in range(self.count) if place not in taken]

    def done(self) -> int:
        ended = {trial.user_attrs.get(PLACE) for trial in self.trials() if trial.state.is_finished() and fills(trial)}
        return len(ended & set(range(self.count)))

    def take(self) -> optuna.Trial | None:
        """A trial to work on, if one is waiting."""
        for waiting in [trial for trial in self.trials() if trial.state == TrialState.WAITING]:
            place = waiting.user_attrs.get(PLACE)
            if place is None or place >= self.count:  # another's, or of a sweep that was to be larger
                continue
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                if self.is_doubled(waiting):
                    self.storage.set_trial_user_attr(waiting._trial_id, OUTCOME, ASIDE)
                    self.storage.set_trial_state_values(waiting._trial_id, TrialState.FAIL)
                elif self.storage.set_trial_state_values(waiting._trial_id, TrialState.RUNNING):  # only for one of us
                    trial = optuna.Trial(self.study, waiting._trial_id)
                    trial.set_user_attr(WORKER, whoami())
                    return trial
        return None

    def is_doubled(self, trial: FrozenTrial) -> bool:
        """Whether an earlier trial fills its place; of two the same one gives way, whoever looks."""
        return any(
            fills(rival) for rival in by_place(self.trials())[trial.user_attrs[PLACE]] if rival.number < trial.number
        )

    def end(self, trial: optuna.Trial, why: str) -> None:
        """It failed, and that is all right."""
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(OUTCOME, why)
            self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def give_back(self, trial: optuna.Trial) -> None:
        """To be done again, by whoever comes next."""
        self.end(trial, STOPPED)
        attempts = by_place(self.trials())[trial.user_attrs[PLACE]]
        if not any(fills(attempt) for attempt in attempts):
            self.again(next(attempt for attempt in attempts if attempt.number == trial.number))

    def again(self, trial: FrozenTrial) -> None:
        """A waiting trial with the same settings at the same place."""
        kept = {name: value for name, value in trial.user_attrs.items() if name == PLACE}
        attributes = {name: value for name, value in trial.system_attrs.items() if name == FIXED}
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=kept,
                system_attrs=attributes,
            )
        )

    def workers_here(self) -> int:
        """Processes on this machine that work on a trial now, this one counted."""
        workers = [t.user_attrs.get(WORKER) for t in self.trials() if t.state == TrialState.RUNNING]
        here = {w.get("pid") for w in workers if isinstance(w, dict) and w.get("machine") == machine() and lives(w)}
        return len(here | {os.getpid()})

    # the dead ---------------------------------------------------------------------------------------------------------

    def bury(self) -> list[int]:
        """Fail the trials of processes that are no more, and have them done again; their numbers."""
        found = []
        for trial in self.trials():
            if (
                trial.state == TrialState.RUNNING
                and PLACE in trial.user_attrs
                and self.is_dead(trial)
                and self.fail(trial)
            ):
                found.append(trial.number)
        return found

    def is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(WORKER)
        if isinstance(worker, dict) and worker.get("machine") == machine() and os.name == "posix":
            return not lives(worker)
        sign, now = trial.user_attrs.get(BEAT), time.monotonic()
        if trial.number not in self.seen or self.seen[trial.number][0] != sign:
            self.seen[trial.number] = (sign, now)
        return now - self.seen[trial.number][1] > self.grace_seconds

    def fail(self, trial: FrozenTrial, why: str = DEAD) -> bool:
        """Whether it was us who failed it; who did sees to the place."""
        deaths = 1 + sum(map(went_wrong, by_place(self.trials())[trial.user_attrs[PLACE]]))
        outcome = why if deaths < MOST_DEATHS else f"{GIVEN_UP} after {deaths} attempts: {why}"
        try:
            self.storage.set_trial_user_attr(trial._trial_id, OUTCOME, outcome)
            self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False
        if deaths < MOST_DEATHS:
            self.again(trial)
        return True

    @contextmanager
    def alive(self, trial: optuna.Trial) -> Iterator[None]:
        """Signs of life while we work on it."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(self.beat_seconds if count else 0.0):
                count += 1
                with contextlib.suppress(Exception):  # a database that is away for a moment
                    self.storage.set_trial_user_attr(trial._trial_id, BEAT, [os.getpid(), count])
            with contextlib.suppress(Exception):
                self.storage.remove_session()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def fills(trial: FrozenTrial) -> bool:
    """Whether nothing more need be done for its place."""
    return trial.state != TrialState.FAIL or outcome_of(trial).startswith(GIVEN_UP)


def went_wrong(trial: FrozenTrial) -> bool:
    """Whether it may be the settings' fault that it came to no end, unlike that of one that was stopped."""
    return trial.state == TrialState.FAIL and outcome_of(trial).startswith((DEAD, FAILED))


def outcome_of(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(OUTCOME, ""))


def by_place(trials: list[FrozenTrial]) -> dict[int, list[FrozenTrial]]:
    """The trials of each place, in their order."""
    places: dict[int, list[FrozenTrial]] = defaultdict(list)
    for trial in trials:
        if PLACE in trial.user_attrs:
            places[trial.user_attrs[PLACE]].append(trial)
    return places


# who is who -----------------------------------------------------------------------------------------------------------


def whoami() -> dict[str, Any]:
    return {"machine": machine(), "host": socket.gethostname(), "pid": os.getpid(), "born": born(os.getpid())}


def machine() -> str:
    """This system since it was started, and the part of it in which a process's number means that process."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def lives(worker: dict[str, Any]) -> bool:
    pid = worker.get("pid")
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return born(pid) == worker.get("born")


def born(pid: int) -> str | None:
    """When a process was started: numbers of processes are used again. None for one that waits for its parent only."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] == "Z" else after_name[19]
