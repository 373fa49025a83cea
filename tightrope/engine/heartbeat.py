"""The heartbeat between ranks: if one rank dies, fails or hangs, all others end within seconds, with a line that names it.

Without it the others would wait: NCCL until its timeout, Gloo forever if a link is cut. A thread of every rank therefore keeps
a connection to rank 0 (rank 0: to all others) and sends a report every second. The system closes the connections of a process
that dies; a silent connection means a cut link or a stopped process. Rank 0 tells the others about a lost rank, and about one
that makes no progress while others wait for it. Every rank that learns of a loss exits; one per machine prints it.
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
GRACE_SECONDS = 3.0  # for the main thread to end by itself
ERROR_GRACE_SECONDS = 15.0  # the same after an error, which other ranks may also have met and be reporting
LINGER_SECONDS = 0.5  # before a rank that has printed a loss exits, so that others on its machine do not print it too
RANK_TIMEOUT = 1800.0  # seconds without progress; Gloo's own limit for a message
ALL_WAIT_SECONDS = 3.0  # added to the timeout for a deadlock of all ranks, because reports are not simultaneous
POLL_SECONDS = 0.1  # between two checks whether the main thread has called `stop`


class RankActivity(NamedTuple):
    """The activity in a rank's report."""

    doing: str
    waits: bool  # for other ranks
    idle: float  # seconds without progress


class Heartbeat:
    """Watches the ranks from `start` to `stop`. `verdict` is the message about a lost rank; `advice` returns its end."""

    def __init__(
        self, rank: int, met: Rendezvous, period: float = REPORT_SECONDS, max_silence: float = SILENCE_SECONDS
    ):
        self.me, self.members, self.connections = met.members[rank], met.members, met.connections
        self.period, self.max_silence, self.rank_timeout = period, max_silence, RANK_TIMEOUT
        self.verdict: str | None = None
        self.advice: Callable[[], str] = restart_notice
        self._reports: dict[int, RankActivity] = {}
        self._heard = dict.fromkeys(self.connections, time.monotonic())  # time of each rank's last message
        self._departed: set[int] = set()  # ranks that have ended normally
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
        """Tell the other ranks that this one ends normally, and stop watching."""
        atexit.unregister(self._at_exit)
        if self._thread.is_alive() and not self._decided.is_set():
            self._farewell = farewell or {"bye": True}
            self._thread.join(2 * self.period)

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks about an error of this one, which ends them too."""
        if not isinstance(error, RankLost) and self._farewell is None:
            self.stop(lost=self.me.rank, words=printable(f"has failed: {type(error).__name__}: {error}"), failed=True)

    def explain(self, error: BaseException) -> None:
        """Raise RankLost if a collective failed because a rank is lost."""
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
        """Called when the interpreter ends without a call of `stop`."""
        if self._resigned:
            time.sleep(LINGER_SECONDS * self._prints)
            exit_at_once()  # other exit handlers may wait for the lost rank
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
            if time.monotonic() - began > 3 * self.period:  # this thread was blocked and received nothing
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
            if quiet <= self.max_silence:
                continue
            runs = member.machine == self.me.machine and alive(member.pid) and not standing_still(member.pid)
            if not runs or quiet > self.rank_timeout:  # a long call can block all threads of a healthy process
                doing = f", last when {self._reports[rank].doing}" if rank in self._reports else ""
                self._lose(rank, f"has not been heard for {quiet:.0f} s{doing}: it, its machine or the link is lost")

    def _lose(self, rank: int | None, words: str, failed: bool = False) -> None:
        """Tell the other ranks about the loss, print it, and end this process, whose main thread may be blocked."""
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
        with contextlib.suppress(Exception):  # the terminal may be closed; the process must end anyway
            if self._printed.acquire(blocking=False) and self._prints:
                os.write(2, printable(f"tightrope: {self.verdict}: {self.advice()}").encode() + b"\n")

    def _take_leave(self, farewell: dict[str, object]) -> None:
        """Send a last message, and read until the other side closes: closing with unread data would discard the message."""
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
        """Close the connections in a forked child, which would otherwise keep them open."""
        atexit.unregister(self._at_exit)
        self._selector.close()
        for connection in self.connections.values():
            connection.socket.close()


def find_stalled(reports: Mapping[int, RankActivity], limit: float) -> tuple[int | None, str] | None:
    """Return (rank, words) for a rank that stalls while others wait for it, or (None, words) if all wait for each other.

    A rank that makes slow progress is not stalled, and no rank is as long as none waits.
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
    """Describe what the launcher does when a rank is lost."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return "torchrun starts the run again" if done < most else "the run ends here"


def exit_at_once() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(1)
