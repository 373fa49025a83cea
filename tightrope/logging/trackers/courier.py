"""A thread that delivers what it is handed, in order, while training goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ...processes import LOOK, Wait

PAUSE = 0.5  # seconds between rounds: waking for every phase would cost training more than the deliveries do
MOST = 10_000  # jobs that wait; what comes then is left out
PATIENCE = 30.0  # seconds for one delivery, at the end

Job = Callable[[], None]


class Courier:
    """Nothing that a job does, or fails to do, holds up who hands it over: at the end alone someone waits, and not for long.

    The first job that fails is the last; the error is raised to whoever next hands something over.
    """

    def __init__(self, name: str) -> None:
        self.jobs: deque[Job] = deque()  # one thread adds, the other takes
        self.left_out = 0
        self.trouble: Exception | None = None
        self.delivered_at = time.monotonic()
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._work, name=f"tightrope-{name}", daemon=True)
        self.thread.start()

    def hand(self, job: Job) -> None:
        """To be done after everything handed over before."""
        if self.trouble is not None:
            raise self.trouble
        if len(self.jobs) >= MOST:
            self.left_out += 1
        else:
            self.jobs.append(job)

    def close(self) -> None:
        """Wait until all is done. TimeoutError if one job takes longer than anybody should wait."""
        self.delivered_at = time.monotonic()
        self.closing.set()
        wait = Wait()
        while self.thread.is_alive():
            if wait.over(PATIENCE, self.delivered_at):
                waiting = len(self.jobs) + 1
                self.jobs.clear()
                raise TimeoutError(f"no answer for {wait.seconds:.0f} s, {waiting} of its messages are not delivered")
            self.thread.join(min(PATIENCE, LOOK))
        if self.trouble is not None:
            raise self.trouble
        if self.left_out:
            raise TimeoutError(f"it did not keep up: {self.left_out:,} messages were left out")

    def _work(self) -> None:
        try:
            ending = False
            while not ending:
                ending = self.closing.wait(PAUSE)  # if so, everything has been handed over
                while self.jobs:
                    self.jobs.popleft()()
                    self.delivered_at = time.monotonic()
        except Exception as error:
            self.trouble = error
            self.jobs.clear()
