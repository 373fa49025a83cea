"""Gymnasium environments in processes of their own, and how long we wait for such processes, whoever started them."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from gymnasium import logger
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from ...errors import EnvError, UsageError, plural, warn
from ...processes import LOOK, Parent, Wait, become_helper, kill, kill_at_exit, killed_after, standing_still

LIMIT = 600.0  # seconds for one answer: a step, a reset, or making the environment
NOTICE = 60.0  # seconds after which a line says who is waited for
ERROR = 5.0  # seconds for an exception that a worker has told of
CLOSING = 5.0  # seconds for closing in order
LOST = (BrokenPipeError, ConnectionResetError, EOFError)  # how we hear that a worker has died


class NoAnswer(Exception):
    """A worker has not answered in its time."""

    def __init__(self, row: int, words: str) -> None:
        super().__init__(words)
        self.row = row


class Unmade(gymnasium.Env[Any, Any]):
    """Stands in a worker for an environment that could not be made, so that the reason reaches whoever asks."""

    observation_space = action_space = gymnasium.spaces.Discrete(1)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def get_wrapper_attr(self, name: str) -> Any:
        raise EnvError(self.reason)


class Workers(AsyncVectorEnv):
    """Gymnasium's, with workers that obey this process alone and end with it."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], count: int, name: str) -> None:
        self.make, self.name, self.processes = make, name, []
        parent = Parent.here()

        def in_worker() -> gymnasium.Env[Any, Any]:
            if os.getpid() == parent.pid:  # Gymnasium makes one here, too
                return make()
            become_helper(parent)
            try:
                return make()
            except UsageError as error:
                return Unmade(str(error))

        # not same-step: there a worker may reset into the very array that it is about to send as the final observation
        try:
            with errors_kept():
                super().__init__([in_worker] * count, autoreset_mode=AutoresetMode.DISABLED)
        except BaseException as error:
            row = first_lost(self) if isinstance(error, LOST) else getattr(error, "row", None)
            abandon(self)
            if isinstance(error, EnvError):
                raise UsageError(str(error)) from None
            if isinstance(error, (NoAnswer, *LOST)):
                which = "" if row is None else f" number {row}"
                why = str(error) if isinstance(error, NoAnswer) else "its process died"
                raise EnvError(f"env {name!r}{which} cannot be made: {why}") from None
            raise
        kill_at_exit(self.processes)

    def _check_spaces(self) -> None:
        self.error_queue = PatientQueue(self.error_queue)  # type: ignore[assignment]
        self.get_attr("render_mode")  # which all answer once they are made
        super()._check_spaces()  # type: ignore[no-untyped-call]

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super()._poll_pipe_envs(timeout)
        await_answers(self, self.name)
        return True

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if terminate:  # they ignore the signal that Gymnasium would send
            kill(self.processes)
        super().close_extras(timeout, terminate)


class PatientQueue:
    """Where workers put their exceptions. One that could not be pickled never comes."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def get(self) -> Any:
        return self.inner.get(timeout=ERROR)


def limit_waiting(engine: Any, name: str) -> None:
    """Have an AsyncVectorEnv that somebody else made wait for its workers as ours do."""
    if isinstance(engine.error_queue, PatientQueue):  # it does already
        return
    poll = engine._poll_pipe_envs

    def answered(timeout: float | None = None) -> bool:
        if timeout is not None:
            return bool(poll(timeout))
        await_answers(engine, name)
        return True

    engine._poll_pipe_envs, engine.error_queue = answered, PatientQueue(engine.error_queue)


@contextlib.contextmanager
def errors_kept() -> Iterator[list[str]]:
    """What Gymnasium would print of errors in workers, which it formats with %, goes to a list instead."""
    said: list[str] = []
    before, logger.error = logger.error, lambda text, *_: said.append(text)
    try:
        yield said
    finally:
        logger.error = before


def first_lost(engine: Any) -> int | None:
    """The number of a worker that has died."""
    return next((i for i, process in enumerate(engine.processes) if died(process)), None)


def await_answers(engine: Any, name: str) -> None:
    """Return once every worker has answered, or died; NoAnswer for the first that is overdue."""
    wait, said = Wait(), False
    for row, pipe in enumerate(engine.parent_pipes):
        if pipe is None or pipe.closed:
            continue
        while not readable(pipe):
            if wait.over(LIMIT):
                others = sum(not (pipe is None or pipe.closed or pipe.poll(0)) for pipe in engine.parent_pipes) - 1
                more = f", nor from {plural(others, 'other')}" if others else ""
                raise NoAnswer(row, f"no answer for {wait.seconds:.0f} s{more}{stopped(engine, row)}")
            if not said and wait.seconds > NOTICE:
                said = True
                warn(
                    f"env {name!r} number {row} has not answered for {NOTICE:.0f} s{stopped(engine, row)}; "
                    f"after {LIMIT:.0f} s it is given up"
                )


if hasattr(select, "poll"):

    def readable(pipe: Any) -> bool:
        """Whether there is something to read within LOOK seconds; a tenth of the cost of `pipe.poll`."""
        poller = select.poll()
        poller.register(pipe.fileno(), select.POLLIN)
        return bool(poller.poll(LOOK * 1000))

else:

    def readable(pipe: Any) -> bool:
        """Whether there is something to read within LOOK seconds."""
        return bool(pipe.poll(LOOK))


def stopped(engine: Any, row: int) -> str:
    """What is to be said of a worker that does not answer because something has stopped it."""
    return ", its process is stopped" if standing_still(engine.processes[row].pid) else ""


def died(process: Any) -> bool:
    process.join(timeout=LOOK)
    return process.exitcode not in (None, 0)


def abandon(engine: Any) -> None:
    """End the workers at once. Nothing is left to close then, and closing would wait for answers."""
    kill(engine.processes)
    engine.closed = True


def close(engine: Any, name: str) -> None:
    """Close a vector environment of any kind; workers that do not do so in time are killed, and named."""
    processes = list(getattr(engine.unwrapped, "processes", []))
    if not processes:
        engine.close()
        return
    with killed_after(CLOSING, processes) as late:
        try:
            engine.close()
        except LOST:
            abandon(engine.unwrapped)
    if late:
        rows = ", ".join(map(str, late))
        warn(f"env {name!r} number {rows} did not close within {CLOSING:.0f} s and was killed")
