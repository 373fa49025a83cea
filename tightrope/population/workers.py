"""Take the turns of a population's agents: in this process, or in several forked ones that share the cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

from ..engine.threads import end_idle_threads
from ..processes import fork, kill
from ..training.signals import Interrupts
from .turns import Turn, TurnProgress, TurnResult, Turns

LOOK = 0.2  # seconds between looks at signals
ENDING = 60.0  # seconds that processes have to save their agents after a signal
Report = Callable[[TurnProgress], None]


def can_fork() -> bool:
    """Whether several processes can share the agents on this system."""
    return hasattr(os, "fork") and end_idle_threads()


@dataclass
class ForkedWorker:
    """A forked process, and the turn that it takes."""

    process: BaseProcess
    pipe: Connection
    turn: Turn | None = None


class AgentWorkers:
    """Take turns in `jobs` processes; in this one, if that is 1. Processes are forked when there is work for them."""

    def __init__(self, turns: Turns, jobs: int, interrupts: Interrupts) -> None:
        self.turns, self.interrupts = turns, interrupts
        self.jobs = jobs
        self.workers: list[ForkedWorker] = []
        self.stop: Event = multiprocessing.get_context("fork" if self.jobs > 1 else None).Event()
        self.asked = 0.0  # when the signal came

    @property
    def is_stopped(self) -> bool:
        return self.interrupts.received is not None

    def take(self, turns: Iterable[Turn], report: Report) -> Iterator[TurnResult]:
        """Yield the result of each turn as it ends. After a signal no turn begins, and those under way are saved."""
        waiting = deque(turns)
        if self.jobs == 1:
            while waiting and not self.is_stopped:
                yield self.turns.take(waiting.popleft(), report, lambda: self.is_stopped)
            return
        while waiting or any(worker.turn for worker in self.workers):
            if self.is_stopped:
                self.end_soon()
                waiting.clear()
            self.hand_out(waiting)
            busy = [worker for worker in self.workers if worker.turn]
            ready = wait([worker.pipe for worker in busy], LOOK)
            for worker in [worker for worker in busy if worker.pipe in ready]:
                answer = self.answer_of(worker)
                if isinstance(answer, TurnProgress):
                    report(answer)
                elif answer.stopped and not self.is_stopped and worker.turn is not None:
                    waiting.append(worker.turn)  # the signal was for this process alone
                    worker.turn = None
                else:
                    worker.turn = None
                    yield answer

    def hand_out(self, waiting: deque[Turn]) -> None:
        """Give turns to idle processes, and fork more while there is work for them."""
        self.workers = [worker for worker in self.workers if worker.turn or worker.process.is_alive()]
        while waiting:
            idle = next((worker for worker in self.workers if worker.turn is None), None)
            if idle is None and len(self.workers) < self.jobs:
                idle = self.forked()
            if idle is None:
                return
            try:
                idle.pipe.send(waiting[0])
            except OSError:  # it has just died
                self.workers.remove(idle)
            else:
                idle.turn = waiting.popleft()

    def forked(self) -> ForkedWorker:
        end_idle_threads()
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        others = [worker.pipe for worker in self.workers] + [ours]
        worker = ForkedWorker(fork(serve, self.turns, theirs, self.stop, others, daemon=False), ours)
        theirs.close()
        self.workers.append(worker)
        return worker

    def answer_of(self, worker: ForkedWorker) -> TurnProgress | TurnResult:
        assert worker.turn is not None
        try:
            answer: TurnProgress | TurnResult = worker.pipe.recv()
            return answer
        except (EOFError, OSError):
            if self.is_stopped:
                return TurnResult(worker.turn.number, 0, stopped=True)
            worker.process.join(LOOK)
            code = worker.process.exitcode or 0
            why = f"of {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
            return TurnResult(worker.turn.number, 0, failed=f"its process died {why}; its last checkpoint remains")

    def end_soon(self) -> None:
        """Let processes save their agents, and kill those that do not."""
        self.asked = self.asked or time.monotonic()
        self.stop.set()
        if time.monotonic() - self.asked > ENDING:
            kill([worker.process for worker in self.workers])

    def close(self) -> None:
        for worker in self.workers:
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in self.workers:
            worker.process.join(LOOK if worker.turn else 10 * LOOK)
        kill([worker.process for worker in self.workers])


def serve(turns: Turns, pipe: Connection, stop: Event, others: list[Connection]) -> None:
    """The work of a forked process: take turns until the pipe brings None."""
    for other in others:  # their other ends would not be seen to close
        other.close()
    with suppress(EOFError, OSError):
        while (turn := pipe.recv()) is not None:
            pipe.send(turns.take(turn, pipe.send, stop.is_set))
