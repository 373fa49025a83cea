"""Assign trials to processes, so that no trial is lost and none runs twice if processes are killed.

A sweep of N trials has N slots. A worker claims a slot by creating a running trial with the slot's number in it, in one write.
Storages number trials in the order of creation: if two workers claim a slot at once, the later trial sees the earlier one and
withdraws. A complete or pruned trial fills its slot for good. A trial whose worker is dead is failed, which frees its slot; the
next trial there gets the same settings. A worker that was only suspended cannot write to a failed trial, and drops it.

Optuna's heartbeats and retries are not used: journal files have none, and a worker that is killed after it has failed a dead
trial and before it has enqueued that trial again loses it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from ...errors import UsageError, warn
from ...processes import alive
from ...types import Settings
from .space import Space, decode

# attributes of trials, by their names in saved studies
SLOT, HEARTBEAT, WORKER, OUTCOME, SCORES, OWN = "place", "beat", "worker", "outcome", "scores", "own"
ATTRIBUTES = {SLOT: int, WORKER: dict, OUTCOME: str, SCORES: list, OWN: str}
FIXED = "fixed_params"  # Optuna's attribute for parameters that are not to be sampled
DEAD, WITHDRAWN, STOPPED = "its process died", "another trial has its slot", "stopped, to be tried again"  # outcomes
FAILED, GIVEN_UP = "failed", "given up"  # beginnings of outcomes
MAX_FAILURES_OF_SLOT = 5  # after which a slot is given up: its settings may crash processes
MAX_TRIALS_NAMED = 5  # malformed trials in a warning


@dataclass
class TrialSlots:
    """The slots of a study, as one worker sees them."""

    study: optuna.Study
    count: int
    first: Settings  # the parameters of the first trial
    space: Space | None = None  # None: parameters are not checked
    heartbeat_seconds: float = 5.0
    grace_seconds: float = 60.0  # without a heartbeat, by this machine's clock
    left_out: set[int] = field(default_factory=set)  # malformed trials
    heartbeats: dict[int, tuple[object, float]] = field(default_factory=dict)  # (last heartbeat, when first seen)

    @property
    def storage(self) -> BaseStorage:
        return self.study._storage

    # reading ----------------------------------------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """The started trials of this sweep. Malformed ones, which others wrote, are left out with a warning."""
        started = [t for t in self.study.get_trials(deepcopy=False) if t.state != TrialState.WAITING]
        bad = {trial.number for trial in started if not is_well_formed(trial, self.space)}
        if bad - self.left_out:
            names = ", ".join(map(str, sorted(bad)[:MAX_TRIALS_NAMED])) + ", ..." * (len(bad) > MAX_TRIALS_NAMED)
            warn(f"left out of the storage, as no sweep with these settings wrote them: trials {names}")
        self.left_out |= bad
        return [trial for trial in started if trial.number not in bad]

    def by_slot(self) -> dict[int, list[FrozenTrial]]:
        """The trials of each slot, oldest first."""
        slots: dict[int, list[FrozenTrial]] = defaultdict(list)
        for trial in self.trials():
            if SLOT in trial.user_attrs:
                slots[trial.user_attrs[SLOT]].append(trial)
        return slots

    def free(self) -> list[int]:
        """Slots without a running or finished trial, those with the fewest failures first."""
        slots = self.by_slot()
        found = [slot for slot in range(self.count) if not any(map(fills_slot, slots[slot]))]
        return sorted(found, key=lambda slot: sum(map(is_failure, slots[slot])))

    def done(self) -> int:
        slots = self.by_slot()
        return sum(any(t.state.is_finished() and fills_slot(t) for t in slots[slot]) for slot in range(self.count))

    def best(self) -> FrozenTrial | None:
        """The complete trial with the highest score, the oldest of several."""
        complete = [trial for trial in self.trials() if trial.state == TrialState.COMPLETE]
        return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)

    def local_workers(self) -> int:
        """The number of processes on this machine that run a trial now, including this one."""
        workers = [t.user_attrs.get(WORKER, {}) for t in self.trials() if t.state == TrialState.RUNNING]
        here = {w["pid"] for w in workers if w.get("machine") == machine_id() and is_alive(w)}
        return len(here | {os.getpid()})

    # writing ----------------------------------------------------------------------------------------------------------

    def claim(self) -> optuna.Trial | None:
        """Start a trial in a free slot, a random one of the next if other processes are running; None if there is none."""
        while free := self.free():
            slots = self.by_slot()
            running = sum(trial.state == TrialState.RUNNING for trials in slots.values() for trial in trials)
            slot = secrets.choice(free[: 2 * running + 1])
            earlier = [trial.params for trial in slots[slot] if outcome_of(trial) != WITHDRAWN]
            params = (self.first if slot == 0 else {}) | (earlier[-1] if earlier else {})
            own = {SLOT: slot, WORKER: process_id()}
            new = optuna.create_trial(state=TrialState.RUNNING, user_attrs=own, system_attrs={FIXED: params})
            trial = optuna.Trial(self.study, self.storage.create_new_trial(self.study._study_id, new))
            if not any(fills_slot(other) for other in self.by_slot()[slot] if other.number < trial.number):
                return trial
            self.fail(trial._trial_id, WITHDRAWN)
        return None

    def fail(self, trial_id: int, outcome: str) -> bool:
        """Mark a trial as failed, which frees its slot; False if it had ended already."""
        if outcome.startswith((DEAD, FAILED)):
            slot = self.storage.get_trial(trial_id).user_attrs[SLOT]
            failures = 1 + sum(map(is_failure, self.by_slot()[slot]))
            if failures >= MAX_FAILURES_OF_SLOT:
                outcome = f"{GIVEN_UP} after {failures} attempts: {outcome}"
        try:
            self.storage.set_trial_user_attr(trial_id, OUTCOME, outcome)
            self.storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False
        return True

    def fail_dead_trials(self) -> list[int]:
        """Fail the trials of dead workers; returns their numbers."""
        running = [t for t in self.trials() if t.state == TrialState.RUNNING and SLOT in t.user_attrs]
        return [trial.number for trial in running if self.is_dead(trial) and self.fail(trial._trial_id, DEAD)]

    def is_dead(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a trial is dead: by its process on this machine, by its heartbeat on others."""
        worker = trial.user_attrs.get(WORKER, {})
        if worker.get("machine") == machine_id() and os.name == "posix":
            return not is_alive(worker)
        beat, now = trial.user_attrs.get(HEARTBEAT), time.monotonic()
        last, seen = self.heartbeats.get(trial.number, (None, now))
        self.heartbeats[trial.number] = (beat, seen if beat == last else now)
        return now - self.heartbeats[trial.number][1] > self.grace_seconds

    @contextmanager
    def heartbeat(self, trial: optuna.Trial) -> Iterator[None]:
        """Write heartbeats while the trial runs."""
        over = threading.Event()

        def beat() -> None:
            count = 0
            while not over.wait(self.heartbeat_seconds if count else 0.0):
                count += 1
                with contextlib.suppress(Exception):  # a database that is briefly unreachable
                    self.storage.set_trial_user_attr(trial._trial_id, HEARTBEAT, [os.getpid(), count])
            with contextlib.suppress(Exception):
                self.storage.remove_session()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def fills_slot(trial: FrozenTrial) -> bool:
    """Whether a trial fills its slot."""
    return trial.state != TrialState.FAIL or outcome_of(trial).startswith(GIVEN_UP)


def is_failure(trial: FrozenTrial) -> bool:
    """Whether a trial failed in a way that its settings may have caused."""
    return trial.state == TrialState.FAIL and outcome_of(trial).startswith((DEAD, FAILED))


def outcome_of(trial: FrozenTrial) -> str:
    """How a trial ended, in a few words."""
    return str(trial.user_attrs.get(OUTCOME) or trial.state.name.lower())


def is_well_formed(trial: FrozenTrial, space: Space | None) -> bool:
    """Whether a trial can belong to this sweep: its attributes have the right types, its parameters are in the space."""
    attributes, complete = trial.user_attrs, trial.state == TrialState.COMPLETE
    if not all(isinstance(attributes[name], kind) for name, kind in ATTRIBUTES.items() if name in attributes):
        return False
    numbers = [*attributes.get(SCORES, []), *([trial.value] if complete else []), attributes.get(SLOT, 0)]
    if (
        not all(type(number) in (int, float) and abs(number) <= sys.float_info.max for number in numbers)
        or numbers[-1] < 0
    ):
        return False
    if space is not None and (trial.params.keys() - space.keys() or (complete and space.keys() - trial.params.keys())):
        return False
    try:
        decode(trial.params, space or {})
    except UsageError:
        return False
    return True


# processes --------------------------------------------------------------------------------------------------------------


def process_id() -> Settings:
    """This process, for processes on any machine."""
    pid = os.getpid()
    return {"machine": machine_id(), "host": socket.gethostname(), "pid": pid, "born": process_start_time(pid)}


def machine_id() -> str:
    """This machine since it was booted, and the namespace in which its process numbers hold."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def is_alive(worker: Settings) -> bool:
    """Whether a process of this machine is running. Its start time tells it from a later one with the same number."""
    pid = worker.get("pid")
    return isinstance(pid, int) and 0 < pid < 2**31 and alive(pid) and process_start_time(pid) == worker.get("born")


def process_start_time(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
