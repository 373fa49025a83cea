"""Ctrl-C, SIGTERM and SIGHUP: the first one asks training to finish its phase, a second one leaves at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..engine.ranks import launched

ECHO = 5.0  # seconds in which a signal may come again by way of the launcher
STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupts:
    """A context that turns signals into a request; `received` is the signal's number, or None."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.raising = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self.since = number, time.monotonic()
            if not launched():
                self._restore()
            if self.raising:
                raise KeyboardInterrupt
        elif time.monotonic() - self.since > ECHO:  # torchrun passes on what the terminal has sent to all of us
            self._restore()
            signal.raise_signal(number)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Inside, where nothing would be lost, the first signal does not ask but interrupts, whichever it is."""
        self.raising = True
        try:
            if self.received is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self.raising = False

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *_: object) -> None:
        self._restore()
