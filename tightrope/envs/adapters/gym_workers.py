"""Run Gymnasium environments in worker processes, with time limits for their replies."""

from __future__ import annotations

import contextlib
import os
import queue
import select
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
from gymnasium import logger
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from ...errors import EnvError, UsageError, plural, warn
from ...processes import LOOK, Parent, Wait, become_helper, kill, kill_at_exit, killed_after, standing_still
from .gym_single import SingleEnv

LIMIT = 600.0  # seconds for one reply: a step, a reset, or making the environment
NOTICE = 60.0  # seconds after which a warning names the environment
ERROR_SECONDS = 5.0  # for an exception that a worker has announced
CLOSE_SECONDS = 5.0
PIPE_ERRORS = (BrokenPipeError, ConnectionResetError, EOFError)  # of a worker that has died


class WorkerTimeout(Exception):
    """A worker has not replied within its time limit."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class FailedEnv(SingleEnv):
    """Replaces an environment that could not be made in a worker, and passes the reason to the main process."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def get_wrapper_attr(self, name: str) -> object:
        raise EnvError(self.reason)


class Workers(AsyncVectorEnv):
    """Gymnasium's AsyncVectorEnv with workers that ignore signals and end with this process."""

    action_conditions: object = None  # that its environments declare, see actions.py
    factory: Callable[[bool], SingleEnv] | None = None  # makes one in this process, called with whether it must draw

    def __init__(self, make: Callable[[], SingleEnv], count: int, name: str) -> None:
        self.name, self.processes = name, []
        parent = Parent.here()

        def in_worker() -> SingleEnv:
            if os.getpid() == parent.pid:  # Gymnasium makes one in this process, too
                return make()
            become_helper(parent)
            try:
                return make()
            except UsageError as error:
                return FailedEnv(str(error))

        # not same-step: there a worker may reset into the very array that it is about to send as the final observation
        try:
            with capture_errors():
                super().__init__([in_worker] * count, autoreset_mode=AutoresetMode.DISABLED)
        except BaseException as error:
            row, reason = failed_worker(self, error)
            kill_workers(self)
            if isinstance(error, EnvError):
                raise UsageError(str(error)) from None
            if isinstance(error, (WorkerTimeout, *PIPE_ERRORS)):
                which = "" if row is None else f" number {row}"
                raise EnvError(f"env {name!r}{which} cannot be made: {reason}") from None
            raise
        kill_at_exit(self.processes)

    def _check_spaces(self) -> None:
        add_worker_timeouts(self, self.name)
        self.get_attr("render_mode")  # waits until all are made
        super()._check_spaces()  # type: ignore[no-untyped-call]

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if terminate:  # they ignore the signal that Gymnasium would send
            kill(self.processes)
        super().close_extras(timeout, terminate)


class TimeoutQueue:
    """The queue of exceptions in workers, with a time limit: one that cannot be pickled never arrives."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get(self) -> object:
        return self.inner.get(timeout=ERROR_SECONDS)


def add_worker_timeouts(engine: Any, name: str) -> None:
    """Give an AsyncVectorEnv, ours or a user's, time limits for the replies of its workers."""
    if isinstance(engine.error_queue, TimeoutQueue):
        return
    poll = engine._poll_pipe_envs

    def poll_with_limit(timeout: float | None = None) -> bool:
        if timeout is not None:
            return bool(poll(timeout))
        wait_for_workers(engine, name)
        return True

    engine._poll_pipe_envs, engine.error_queue = poll_with_limit, TimeoutQueue(engine.error_queue)


@contextlib.contextmanager
def capture_errors() -> Iterator[list[str]]:
    """Collect the errors of workers that Gymnasium would print, which it formats with %."""
    messages: list[str] = []
    before, logger.error = logger.error, lambda text, *_: messages.append(text)
    try:
        yield messages
    finally:
        logger.error = before


def failed_worker(engine: Any, error: BaseException) -> tuple[int | None, Any]:
    """(the row of the worker that failed, if it is known; the reason: a text, or the error itself)"""
    if isinstance(error, WorkerTimeout):
        return error.row, str(error)
    if isinstance(error, PIPE_ERRORS):
        return next((i for i, process in enumerate(engine.processes) if has_died(process)), None), "its process died"
    if isinstance(error, queue.Empty):
        return None, "it raised an exception that cannot be pickled"
    pipes = getattr(engine, "parent_pipes", [])
    return next((i for i, pipe in enumerate(pipes) if pipe is None), None), error


def wait_for_workers(engine: AsyncVectorEnv, name: str) -> None:
    """Return once every worker has replied or died; WorkerTimeout for the first that is overdue."""
    wait, warned = Wait(), False
    for row, pipe in enumerate(engine.parent_pipes):
        if pipe is None or pipe.closed:
            continue
        while not has_reply(pipe):
            if wait.over(LIMIT):
                others = sum(not (pipe is None or pipe.closed or pipe.poll(0)) for pipe in engine.parent_pipes) - 1
                more = f", nor from {plural(others, 'other')}" if others else ""
                raise WorkerTimeout(row, f"no answer for {wait.seconds:.0f} s{more}{stopped_note(engine, row)}")
            if not warned and wait.seconds > NOTICE:
                warned = True
                warn(
                    f"env {name!r} number {row} has not answered for {NOTICE:.0f} s{stopped_note(engine, row)}; "
                    f"after {LIMIT:.0f} s it is given up"
                )


def has_reply(pipe: Connection) -> bool:
    """Whether there is something to read within LOOK seconds."""
    if not hasattr(select, "poll"):
        return pipe.poll(LOOK)
    poller = select.poll()  # a tenth of the cost of `pipe.poll`
    poller.register(pipe.fileno(), select.POLLIN)
    return bool(poller.poll(LOOK * 1000))


def stopped_note(engine: Any, row: int) -> str:
    """A note for messages about a worker that does not reply because its process is stopped."""
    return ", its process is stopped" if standing_still(engine.processes[row].pid) else ""


def has_died(process: BaseProcess) -> bool:
    process.join(timeout=LOOK)
    return process.exitcode not in (None, 0)


def kill_workers(engine: Any) -> None:
    """Kill the workers and mark the engine as closed: closing it would wait for replies."""
    kill(engine.processes)
    engine.closed = True


def close(engine: VectorEnv, name: str) -> None:
    """Close a vector environment; workers that take longer than CLOSE_SECONDS are killed, and a warning names them."""
    processes = list(getattr(engine.unwrapped, "processes", []))
    if not processes:
        engine.close()
        return
    with killed_after(CLOSE_SECONDS, processes) as late:
        try:
            engine.close()
        except PIPE_ERRORS:
            kill_workers(engine.unwrapped)
    if late:
        rows = ", ".join(map(str, late))
        warn(f"env {name!r} number {rows} did not close within {CLOSE_SECONDS:.0f} s and was killed")
