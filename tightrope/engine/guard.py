"""Training stops at a phase whose numbers are not finite, with one line that names the first of them; the state goes back to
before that phase.

A loop marked with `@under_guard` is always watched. `training/nonfinite.py` has the guard of `learn`, which finds out more.
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

RECENT = 20  # phases whose metrics are kept, for a report of what led to a bad one

S = TypeVar("S", bound=State)
C = TypeVar("C")
M = TypeVar("M")
Row = dict[str, Any]


def under_guard(loop: Callable[[S, C], Iterator[M]]) -> Callable[[S, C], Iterator[M]]:
    """The loop under a guard: it raises NotFinite when a phase did not stay finite, with the state from before that phase."""

    @functools.wraps(loop)
    def watched(state: S, config: C) -> Iterator[M]:
        return Guard(state).over(loop(state, config))

    return watched


def unguarded(loop: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The loop itself, to be run under another guard."""
    return inspect.unwrap(loop)


def lateness(env: Env) -> int:
    """How many phases later metrics may be read. A device gets the next phase before the last is read, unless the env cannot be
    put back: its rollout, which the next phase overwrites, is then the only record of a bad phase."""
    return 0 if env.device.type == "cpu" or not env.resumable else 1


class Guard:
    """Keeps the states from before the last phases. `late` is how many phases later metrics are read than they are made."""

    def __init__(self, state: State) -> None:
        self.state, self.late = state, lateness(state.env)
        self.snapshots = deque(Snapshot(state) for _ in range(self.late + 1))
        self.unread: list[tuple[Row, Reading]] = []
        self.recent: deque[tuple[Row, Reading]] = deque(maxlen=RECENT)  # found to be finite
        self.ranks_differ = False

    def over(self, phases: Iterator[M]) -> Iterator[M]:
        """The metrics of these phases. NotFinite ends them; whatever else breaks in a phase leaves the state from before it."""
        self.remember()
        try:
            for metrics in phases:
                self.add(metrics)
                self.look(but=self.late)
                yield metrics
                self.remember()
            self.look()
        except GeneratorExit:  # the caller has left its loop, where no error would reach it
            try:
                self.look()
            except NotFinite as error:
                print_line(f"warning: {error}", error=True)
            raise
        except NotFinite:
            raise
        except BaseException:
            self.go_back()
            raise

    def remember(self) -> None:
        """Keep the state as it is now, before its next phase."""
        self.snapshots.rotate(-1)
        self.snapshots[-1].take()

    def add(self, metrics: Any) -> None:
        """Take in the metrics of a phase, which a device may still be computing."""
        self.newest = Reading(metrics)
        self.unread.append(({"step": self.state.steps, "phase": self.state.phase}, self.newest))

    def look(self, but: int = 0) -> None:
        """Read the metrics of all phases but the last few, and raise NotFinite if one was not finite. That phase and later ones
        are undone."""
        while len(self.unread) > but:
            row, reading = self.unread.pop(0)
            if parts := reading.unhealthy():
                self.unread.clear()
                raise NotFinite(self._describe_on(reading.bad_rank, row | reading.row(), parts))
            if not self.ranks_differ and world().is_distributed and not reading.ranks_agree:
                self.ranks_differ = True
                words = "ranks no longer have the same parameters: are they the same machines? Only the first one's are saved"
                print_line(f"warning: {words}", error=True)
            self.recent.append((row, reading))

    def go_back(self) -> None:
        """Go back to the end of the last good phase, when something broke in the middle of the next."""
        newest = self.snapshots[-1]
        with suppress(Exception), distributed.local_only():  # a device that is gone; others may not know yet
            if newest.phase == self.state.phase:  # no phase has ended since
                restore_to(newest)
            self.look()

    def describe(self, row: Row, parts: list[str]) -> str:
        """The line to be raised. It may change the state, which is put back afterwards."""
        what = " and ".join(parts)
        if self.late == 0:  # the rollout is still there
            before, rows = self.before(row), self.state.env.num_envs * world().size
            rollout = self.state.rollout.first((row["step"] - int(before.counters["steps"])) // rows)
            found = first_bad_entry(rollout, self.state.obs, self.state.env.observation)
            what = what if found is None else found.words
        return f"phase {row['phase']} is not finite: {what}; the state is as it was before"

    def before(self, row: Row) -> Snapshot:
        """The state from before a phase."""
        return next(s for s in self.snapshots if s.phase == row["phase"] - 1)

    def _describe_on(self, rank: int, row: Row, parts: list[str]) -> str:
        """The failing rank's line, broadcast to all ranks."""

        def line() -> bytes:
            with distributed.local_only():
                return printable((f"rank {rank}: " if world().size > 1 else "") + self.describe(row, parts)).encode()

        described = distributed.broadcast_from(rank, line).decode()
        restore_to(self.before(row))
        return printable(described)


def restore_to(snapshot: Snapshot) -> None:
    """Restore the state from before a bad phase, ready to go on from."""
    state = snapshot.state
    snapshot.restore()
    if not state.env.resumable:  # fresh episodes, as when a run is resumed
        with suppress(Exception):  # an env may be too broken for that
            state.obs.copy_(state.env.reset(seed=stream_seed(state.seed, "env", state.phase, world().rank)))
