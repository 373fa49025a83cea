"""Rows of metrics, one for each phase: to the metrics file and to the callbacks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..engine import State, world
from ..engine.metrics import Reading
from ..envs.training_warnings import STEPS_WITHOUT_END, endless_warning, find_action_mask, mask_in_info, mask_warning
from ..logging import CallbackList
from .directory import RunDirectory

ENOUGH = 20  # episodes whose mean return is that at the end of training
AT_THE_END = 0.1  # of the steps so far


class Log:
    """Reads the metrics of a phase once the device has the next one to do, so that nobody waits."""

    def __init__(
        self,
        state: State,
        callbacks: CallbackList,
        run: RunDirectory | None,
        late: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.callbacks, self.run, self.say = callbacks, run, say
        self.endless = endless_warning(state.env)  # to be said if no episode ends for long
        self.unmasked = None if find_action_mask(state.env) else state.env  # whose answers may yet show masks
        self.num_envs = state.env.num_envs * world().size
        self.late = late  # phases
        self.unread: list[tuple[dict[str, Any], Reading]] = []
        self.began, self.seconds_before, self.steps_before = time.perf_counter(), state.seconds, state.steps
        self.recent: deque[tuple[int, float, float]] = (
            deque()
        )  # steps, episodes, the sum of their returns, phase by phase
        self.stopped = 0.0  # seconds of evaluation and saving, which are not training

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def add(self, state: State, reading: Reading) -> dict[str, Any]:
        """Begin the row of the phase that was just started; other columns may be added."""
        row: dict[str, Any] = {"step": state.steps, "phase": state.phase}
        self.unread.append((row, reading))
        state.seconds = self.seconds_before + self.elapsed
        return row

    def forget_after(self, phase: int) -> None:
        """Phases that have not happened, after all."""
        self.unread = [(row, reading) for row, reading in self.unread if row["phase"] <= phase]

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """What happens inside does not count as training."""
        began = time.perf_counter()
        yield
        self.stopped += time.perf_counter() - began

    def report(self, everything: bool = False) -> None:
        """Write the rows that are there by now, or all of them."""
        while len(self.unread) > (0 if everything else self.late):
            row, reading = self.unread.pop(0)
            row |= reading.row()
            speed = (row["step"] - self.steps_before) / (self.elapsed - self.stopped)
            row |= {"charts/SPS": speed}
            self._remember(row["step"], row["charts/episodes"], row.get("charts/episodic_return", 0.0))
            self._look_for_ends(row)
            self._look_for_masks()
            self.write(row)

    def _look_for_ends(self, row: dict[str, Any]) -> None:
        """Say it once if no episode has ended for long."""
        if self.endless is None:
            return
        if row["charts/episodes"]:
            self.endless = None
        elif row["step"] - self.steps_before >= STEPS_WITHOUT_END * self.num_envs:
            self.say(f"note: {self.endless}")
            self.endless = None

    def _look_for_masks(self) -> None:
        """Say it once if masks are among the answers to steps; those seen before the first step are in the plan."""
        if self.unmasked is not None and (where := mask_in_info(self.unmasked)):
            self.say(f"note: {mask_warning(self.unmasked, where)}")
            self.unmasked = None

    def write(self, row: dict[str, Any]) -> None:
        """To the metrics file and the callbacks."""
        row["time"] = self.seconds_before + self.elapsed
        if self.run is not None:
            self.run.log(row)
        self.callbacks.call("on_phase", row)

    def _remember(self, step: int, episodes: float, mean: float) -> None:
        self.recent.append((step, episodes, episodes * mean))
        while self.recent[0][0] < (1 - AT_THE_END) * step:
            self.recent.popleft()

    @property
    def last_return(self) -> float | None:
        """The mean return of episodes that ended in the last tenth of training; None where they were few."""
        episodes = sum(count for _, count, _ in self.recent)
        return sum(total for _, _, total in self.recent) / episodes if episodes >= ENOUGH else None
