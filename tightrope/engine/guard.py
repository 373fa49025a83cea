"""The guard of a training loop: it stops training after a phase with non-finite numbers, and restores the state before it.

The error names the first non-finite number. A loop marked with `@under_guard` always has a guard; `learn` uses the one in
`training/nonfinite.py`, which also looks for the cause.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import NotFinite, printable
from ..output import print_line
from ..types import Env
from . import distributed
from .distributed import world
from .metrics import Reading, first_bad_entry
from .noise import stream_seed
from .state import Snapshot, State

RECENT = 20  # good phases whose metrics are kept for a report about a bad phase

S = TypeVar("S", bound=State)
C = TypeVar("C")
M = TypeVar("M")
MetricsRow = dict[str, Any]


def under_guard(loop: Callable[[S, C], Iterator[M]]) -> Callable[[S, C], Iterator[M]]:
    """Decorate a loop with a Guard: it raises NotFinite after a bad phase, with the state restored to before that phase."""

    @functools.wraps(loop)
    def watched(state: S, config: C) -> Iterator[M]:
        return Guard(state).watch(loop(state, config))

    return watched


def unguarded(loop: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Return the loop without its guard, for use with another guard."""
    return inspect.unwrap(loop)


def lateness(env: Env) -> int:
    """Return how many phases late metrics are read: 1 on a device, so that the next phase can start without waiting.

    It is 0 if the env cannot be restored: the rollout is then the only trace of a bad phase, and the next phase would
    overwrite it.
    """
    return 0 if env.device.type == "cpu" or not env.resumable else 1


class Guard:
    """Checks the metrics of each phase, `late` phases after it ran, and keeps the states needed to undo those phases."""

    def __init__(self, state: State) -> None:
        self.state, self.late = state, lateness(state.env)
        self.snapshots = deque(Snapshot(state) for _ in range(self.late + 1))
        self.unread: list[tuple[MetricsRow, Reading]] = []
        self.recent: deque[tuple[MetricsRow, Reading]] = deque(maxlen=RECENT)  # of phases that were finite
        self.ranks_differ = False

    def watch(self, phases: Iterator[M]) -> Iterator[M]:
        """Yield the metrics of these phases. After any error in a phase, the state is restored to before that phase."""
        self.snapshot()
        try:
            for metrics in phases:
                self.add(metrics)
                self.check_metrics(except_last=self.late)
                yield metrics
                self.snapshot()
            self.check_metrics()
        except GeneratorExit:  # the caller has left its loop, and would not see an error
            try:
                self.check_metrics()
            except NotFinite as error:
                print_line(f"warning: {error}", error=True)
            raise
        except NotFinite:
            raise
        except BaseException:
            self.rollback_unfinished_phase()
            raise

    def snapshot(self) -> None:
        """Copy the state before its next phase."""
        self.snapshots.rotate(-1)
        self.snapshots[-1].take()

    def add(self, metrics: Any) -> None:
        """Add the metrics of a phase. A device may still be computing them."""
        self.newest = Reading(metrics)
        self.unread.append(({"step": self.state.steps, "phase": self.state.phase}, self.newest))

    def check_metrics(self, except_last: int = 0) -> None:
        """Check the metrics of all phases except the last `except_last`. Undo the first bad phase and all later ones, and raise
        NotFinite."""
        while len(self.unread) > except_last:
            row, reading = self.unread.pop(0)
            if parts := reading.unhealthy():
                self.unread.clear()
                raise NotFinite(self._describe_on(reading.bad_rank, row | reading.row(), parts))
            if not self.ranks_differ and world().is_distributed and not reading.ranks_agree:
                self.ranks_differ = True
                words = "the ranks' parameters differ, as with different GPUs or library versions; rank 0's are saved"
                print_line(f"warning: {words}", error=True)
            self.recent.append((row, reading))

    def rollback_unfinished_phase(self) -> None:
        """Restore the state at the end of the last phase, after an error in the middle of the next."""
        newest = self.snapshots[-1]
        # the device may be lost, and other ranks may not know of the error
        with suppress(Exception), distributed.local_only():
            if newest.phase == self.state.phase:  # the state is from within the next phase
                restore_to(newest)
            self.check_metrics()

    def describe(self, row: MetricsRow, parts: list[str]) -> str:
        """Return the message of NotFinite. The method may change the state, which is restored afterwards."""
        what = " and ".join(parts)
        if self.late == 0:  # the rollout is still that of the bad phase
            before, rows = self.before(row), self.state.env.num_envs * world().size
            rollout = self.state.rollout.first((row["step"] - int(before.counters["steps"])) // rows)
            found = first_bad_entry(rollout, self.state.obs, self.state.env.observation)
            what = what if found is None else found.words
        return f"phase {row['phase']} is not finite: {what}; the state is as it was before"

    def before(self, row: MetricsRow) -> Snapshot:
        """Return the snapshot from before a phase."""
        return next(s for s in self.snapshots if s.phase == row["phase"] - 1)

    def _describe_on(self, rank: int, row: MetricsRow, parts: list[str]) -> str:
        """Return the message of the failing rank, on all ranks, and restore the state."""

        def line() -> bytes:
            with distributed.local_only():
                return printable((f"rank {rank}: " if world().size > 1 else "") + self.describe(row, parts)).encode()

        described = distributed.broadcast_from(rank, line).decode()
        restore_to(self.before(row))
        return printable(described)


def restore_to(snapshot: Snapshot) -> None:
    """Restore a snapshot so that training can continue from it."""
    state = snapshot.state
    snapshot.restore()
    if not state.env.resumable:  # start new episodes, as a resumed run does
        with suppress(Exception):  # a broken env may fail to reset
            state.obs.copy_(state.env.reset(seed=stream_seed(state.seed, "env", state.phase, world().rank)))
