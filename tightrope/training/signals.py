"""Handle Ctrl-C, SIGTERM, SIGHUP and the warning signals of batch systems. The first signal ends training after the current
phase, or an evaluation at once; a second signal ends the process at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..engine.distributed import is_launched
from ..errors import warn
from ..processes import NOTICES, STOPS, stop_request

PATIENCE = 2.0  # seconds after a signal until a line explains what training is waiting for
ECHO = 5.0  # seconds within which a repeated signal is taken for the launcher's copy of the first


def stop_signals() -> list[int]:
    """The signals to handle: Ctrl-C, stop signals that are not ignored (as under nohup), and notices without a handler."""
    found = [number for number in STOPS if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN]
    for number in NOTICES:
        handler = signal.getsignal(number)
        if handler is signal.SIG_DFL or isinstance(getattr(handler, "__self__", None), Interrupts):
            found.append(number)
    return found


def notice(name: str) -> None:
    warn(f"{name} received: stopping after the current phase. A second signal stops at once and loses this phase")


class Interrupted(KeyboardInterrupt):
    """A signal interrupted work that can be abandoned, such as an evaluation."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number

    def as_exit(self) -> BaseException:
        """The exception that ends the process: KeyboardInterrupt for Ctrl-C, SystemExit with 128 + number for others."""
        return self if self.number == signal.SIGINT else SystemExit(128 + self.number)


class Interrupts:
    """A context in which signals set `received` (the signal's number, otherwise None) instead of ending the process. Nested
    contexts all receive a signal."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.raising = False
        self._before: dict[int, Any] = {}
        self._outermost = False
        self._notice: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            within = isinstance(getattr(signal.getsignal(signal.SIGINT), "__self__", None), Interrupts)
            self._outermost = not within and stop_request.since is None
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = number, time.monotonic()
            stop_request.since = stop_request.since or self.since
            outer = getattr(self._before.get(number), "__self__", None)
            if not is_launched():
                self._restore()
            if isinstance(outer, Interrupts):
                outer._receive(number, frame)
            if self.raising:
                raise Interrupted(number)
            if self._outermost:
                self._notice = threading.Timer(PATIENCE, notice, [signal.Signals(number).name])
                self._notice.daemon = True
                self._notice.start()
        elif time.monotonic() - self.since > ECHO:  # torchrun repeats a signal that the terminal sent to every rank
            self._restore()
            signal.raise_signal(number)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside, a signal raises Interrupted at once. For work that can be abandoned without loss."""
        before, self.raising = self.raising, True
        try:
            self.check()
            yield
        finally:
            self.raising = before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within `raised`, delay the exception to the end of this context. For work that must not break off in the middle."""
        before, self.raising = self.raising, False
        try:
            yield
        finally:
            self.raising = before
        if self.raising:
            self.check()

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *_: object) -> None:
        self._restore()
        if self._notice is not None:
            self._notice.cancel()
        if self._outermost:
            stop_request.since = None
