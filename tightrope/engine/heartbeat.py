"""Watches the ranks of a run: one that dies, fails or hangs ends all others within seconds, with a line that names it.

Left alone, the others would wait: NCCL for as long as its timeout, Gloo where a link is cut. So a thread of every rank keeps
its connection to rank 0 (rank 0: to all others) and sends a report each second. The system closes the connections of a process
that dies; a connection that falls silent is cut, or its process is stopped. Rank 0 tells the others what it finds, also of a
rank that makes no progress while others wait for it. Each rank that learns of a loss exits; one per machine prints it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .. import activity
from ..errors import RankLost, printable
from ..processes import alive, standing_still
from .rendezvous import Rendezvous

REPORT_SECONDS = 1.0  # between two reports
SILENCE_SECONDS = 30.0  # without a report, after which a rank, its machine or the link to it counts as lost
GRACE_SECONDS = 3.0  # for the main thread to end by itself, if it can
ERROR_GRACE_SECONDS = 15.0  # the same after an error of a rank: others may have met it too, and be writing about it
LINGER_SECONDS = 0.5  # before a rank that has printed a loss exits: others of its machine see by it that they need not
RANK_TIMEOUT = 1800.0  # seconds without progress; Gloo's own limit for a message
ALL_WAIT_SECONDS = 3.0  # more, before all ranks count as waiting for each other: reports are not of one moment
POLL_SECONDS = 0.1  # between two looks whether the main thread wants the watch to end


class RankActivity(NamedTuple):
    """What a rank is doing."""

    doing: str
    waits: bool  # for other ranks
    idle: float  # seconds without progress


class Heartbeat:
    """Watches from `start` to `stop`. `verdict` is the line about what was lost, `advice` gives its end."""

    def __init__(self, rank: int, met: Rendezvous, period: float = REPORT_SECONDS, silence: float = SILENCE_SECONDS):
        self.me, self.members, self.connections = met.members[rank], met.members, met.connections
        self.period, self.silence, self.rank_timeout = period, silence, RANK_TIMEOUT
        self.verdict: str | None = None
        self.advice: Callable[[], str] = restart_notice
        self._reports: dict[int, RankActivity] = {}
        self._heard = dict.fromkeys(self.connections, time.monotonic())  # when each was heard last
        self._departed: set[int] = set()  # ranks that have ended in good order
        self._decided, self._printed = threading.Event(), threading.Lock()
        self._prints = self._resigned = False
        self._farewell: dict[str, object] | None = None
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._watch, name="tightrope heartbeat", daemon=True)

    # called by the main thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        for rank, connection in self.connections.items():
            self._selector.register(connection.socket, selectors.EVENT_READ, rank)
        self._thread.start()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def stop(self, **farewell: object) -> None:
        """Take leave of the other ranks, which then do not miss this one."""
        atexit.unregister(self._at_exit)
        if self._thread.is_alive() and not self._decided.is_set():
            self._farewell = farewell or {"bye": True}
            self._thread.join(2 * self.period)

    def fail(self, error: BaseException) -> None:
        """Have an error of this rank end the others too."""
        if not isinstance(error, RankLost) and self._farewell is None:
            self.stop(lost=self.me.rank, words=printable(f"has failed: {type(error).__name__}: {error}"), failed=True)

    def explain(self, error: BaseException) -> None:
        """RankLost if a collective failed for want of a rank that is gone."""
        if isinstance(error, RankLost):
            return
        if self._farewell is None and self._decided.wait(2 * self.period + GRACE_SECONDS):
            self._print()
            self._resigned = True
            raise RankLost(self.verdict, printed=True) from error
        if self._departed:
            names = " and ".join(self.members[rank].name for rank in sorted(self._departed))
            self.stop()
            raise RankLost(f"{names} has ended its program while others still train") from error

    def _at_exit(self) -> None:
        """The interpreter ends without a call of `stop`."""
        if self._resigned:
            time.sleep(LINGER_SECONDS * self._prints)
            exit_at_once()  # what else would end in order may wait for the rank that is gone
        error = getattr(sys, "last_value", None)
        self.stop() if error is None else self.fail(error)

    # done by the thread ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        stopwatch, due = activity.Stopwatch(), 0.0
        while self._farewell is None:
            began = time.monotonic()
            if began >= due:
                due = began + self.period
                report = self._reports[self.me.rank] = RankActivity(*activity.current.now, stopwatch.seconds())
                self._send(report=report)
                if self.me.rank == 0 and (stalled := find_stalled(self._reports, self.rank_timeout)) is not None:
                    self._lose(*stalled)
            for key, _ in self._selector.select(min(POLL_SECONDS, self.period)):
                self._receive(key.data)
            if time.monotonic() - began > 3 * self.period:  # this thread itself was held up, and heard nobody
                self._heard = dict.fromkeys(self._heard, time.monotonic())
            self._find_silent()
        self._take_leave(self._farewell)

    def _send(self, **message: object) -> None:
        for connection in self.connections.values():
            connection.send(**message)

    def _receive(self, rank: int) -> None:
        try:
            messages = self.connections[rank].receive()
        except (EOFError, OSError, ValueError) as end:
            self._drop(rank)
            cut = isinstance(end, OSError) and end.errno not in (errno.ECONNRESET, errno.EPIPE)
            return self._lose(rank, f"is out of reach ({end})" if cut else "has died")
        for message in messages:
            self._heard[rank] = time.monotonic()
            if "report" in message:
                doing, waits, idle = message["report"]
                self._reports[rank] = RankActivity(printable(doing), waits, idle)
            elif "lost" in message:
                self._lose(message["lost"], printable(message["words"]), message["failed"])
            elif "bye" in message:
                self._departed.add(rank)
                return self._drop(rank)
        return None

    def _drop(self, rank: int) -> None:
        sock = self.connections.pop(rank).socket
        self._selector.unregister(sock)
        sock.close()
        del self._heard[rank]
        self._reports.pop(rank, None)

    def _find_silent(self) -> None:
        for rank, heard in self._heard.items():
            member, quiet = self.members[rank], time.monotonic() - heard
            if quiet <= self.silence:
                continue
            runs = member.machine == self.me.machine and alive(member.pid) and not standing_still(member.pid)
            if not runs or quiet > self.rank_timeout:  # a long call can hold all threads of a process that runs
                doing = f", last when {self._reports[rank].doing}" if rank in self._reports else ""
                self._lose(rank, f"has not been heard for {quiet:.0f} s{doing}: it, its machine or the link is lost")

    def _lose(self, rank: int | None, words: str, failed: bool = False) -> None:
        """Tell the others, print it, and end this process, which nothing else may be able to do."""
        self._send(lost=rank, words=words, failed=failed)
        self.verdict = f"{'all ranks' if rank is None else self.members[rank].name} {words}"
        here = [m for m in self.members if m.machine == self.me.machine and (failed or m.rank != rank) and alive(m.pid)]
        self._prints = self.me.rank == min((m.rank for m in here), default=self.me.rank)
        self._decided.set()
        if not failed:
            self._print()
        time.sleep(ERROR_GRACE_SECONDS if failed else GRACE_SECONDS)
        self._print()
        exit_at_once()

    def _print(self) -> None:
        with contextlib.suppress(Exception):  # of a terminal that is gone: the process has to end all the same
            if self._printed.acquire(blocking=False) and self._prints:
                os.write(2, printable(f"tightrope: {self.verdict}: {self.advice()}").encode() + b"\n")

    def _take_leave(self, farewell: dict[str, object]) -> None:
        """Send a last message, and let it arrive: a socket that is closed with something unread would discard it."""
        self._send(**farewell)
        deadline = time.monotonic() + self.period
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
                connection.socket.settimeout(max(0.01, deadline - time.monotonic()))
                while connection.socket.recv(1 << 16):
                    pass
            connection.socket.close()

    def _forget(self) -> None:
        """In a child of this process, which must not hold the connections open."""
        atexit.unregister(self._at_exit)
        self._selector.close()
        for connection in self.connections.values():
            connection.socket.close()


def find_stalled(reports: Mapping[int, RankActivity], limit: float) -> tuple[int | None, str] | None:
    """(rank, words) of one that makes no progress while others wait for it; (None, words) if all wait for each other.

    A rank that makes progress, however slowly, is left alone; so is every rank as long as none waits.
    """
    if not any(report.waits and report.idle > limit for report in reports.values()):
        return None
    working = {rank: report for rank, report in reports.items() if not report.waits}
    for rank, (doing, _, idle) in working.items():
        if idle > limit:
            words = f"has made no progress for {idle:.0f} s while {doing}, and other ranks wait for it"
            return rank, f"{words} (rank_timeout {limit:g})"
    idle = min(report.idle for report in reports.values())
    if not working and idle > limit + ALL_WAIT_SECONDS:
        return None, f"wait for each other, for {idle:.0f} s, as when each runs other code"
    return None


def restart_notice() -> str:
    """What the launcher does when a rank is lost."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return "torchrun starts the run again" if done < most else "the run ends here"


def exit_at_once() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(1)
