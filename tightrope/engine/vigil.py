"""A vigil over the ranks of a run: one that dies ends all the others within seconds, with a line that names it.

Left alone, the others would wait: NCCL for as long as its timeout, Gloo where the link is cut. So every rank keeps a thread
that holds a connection to each of its two neighbours in a ring. The system closes the connections of a process that dies, on
whatever machine, and the neighbours see that at once. A word each second tells a live connection from a cut one, or a
stopped process. Whoever learns of a loss passes it on around the ring, says so, and leaves.
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
from collections.abc import Callable

from .. import activity
from ..errors import RankLost, plain
from ..processes import alive, standing_still
from .network import Line, is_loopback
from .overdue import Overdue
from .roll import Member, Roll

BEAT = 1.0  # seconds between two words to a neighbour
SILENCE = 30.0  # seconds without a word after which a rank, its machine or the link to it counts as lost
GRACE = 3.0  # seconds for the main thread to end by itself, if it can
MERCY = 15.0  # the same where a rank has failed by an error: the others may have met it too, and be writing about it
WORD, WAITS, BYE, LOST, FAILED = "is ", "waits ", "bye", "lost ", "failed "


class Vigil:
    """Watches the neighbours of one rank, from `start` to `stop`. `verdict` are the words about what was lost."""

    def __init__(
        self, rank: int, roll: Roll, listener: socket.socket, first_host: str,
        beat: float = BEAT, silence: float = SILENCE, grace: float = GRACE,
    ) -> None:  # fmt: skip
        self.me, self.roll, self.first_host = roll.members[rank], roll, first_host
        self.beat, self.silence, self.grace = beat, silence, grace
        self.overdue = Overdue(rank, self.me.name, len(roll.members))
        self.verdict: str | None = None
        self.epilogue: Callable[[], str] = restart_notice
        self._after, self._before = (rank + 1) % len(roll.members), (rank - 1) % len(roll.members)
        self._listener = listener
        self._lines: list[Line] = []
        self._last_heard: dict[int, float] = {}
        self._doing: dict[int, str] = {}  # what the neighbours said last
        self._decided = threading.Event()
        self._resigned = False
        self._gone: set[int] = set()  # who has taken leave
        self._told_by: set[int] = set()  # who has passed on a verdict
        self._mute: int | None = None
        self._spoken = threading.Lock()
        self._last_word: str | None = None
        self._ears = selectors.DefaultSelector()
        self._bell, self._bell_rope = socket.socketpair()
        self._thread = threading.Thread(target=self._keep, name="tightrope vigil", daemon=True)

    # what the main thread calls --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._listener.setblocking(False)
        self._ears.register(self._listener, selectors.EVENT_READ, None)
        self._ears.register(self._bell, selectors.EVENT_READ, None)
        self._last_heard = dict.fromkeys((self._after, self._before), time.monotonic())
        after = self.roll.members[self._after]
        try:
            line = self._attend(socket.create_connection((self._host_of(after), after.port), self.silence), self._after)
        except OSError as error:
            raise RankLost(f"{self.me.name} does not reach {after.name}: {error}") from error
        line.say(self._greeting(self.me.rank))
        self._thread.start()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def stop(self, last_word: str = BYE) -> None:
        """Take leave of the neighbours, who then do not miss this rank."""
        atexit.unregister(self._at_exit)
        if self._thread.is_alive() and not self._decided.is_set():
            self._last_word = last_word
            self._bell_rope.send(b"!")
            self._thread.join(2 * self.beat)

    def explain(self, error: BaseException) -> None:
        """Raise RankLost if this error comes of a rank that is gone; otherwise have it end the other ranks too."""
        if isinstance(error, RankLost) or self._last_word is not None:
            return
        if _in_a_collective(error) and self._decided.wait(2 * self.beat + self.grace):
            self._speak()
            self._resigned = True
            raise RankLost(self.verdict, told=True) from error
        if _in_a_collective(error) and self._gone:
            names = " and ".join(self.roll.members[rank].name for rank in sorted(self._gone))
            self.stop()
            raise RankLost(f"{names} has ended its program while others still train") from error
        words = f"{self.me.name} has failed: {plain(f'{type(error).__name__}: {error}')}"
        self.stop(f"{FAILED}{self.me.rank} {words}")

    def _at_exit(self) -> None:
        """The interpreter ends, and nobody has called `stop`."""
        if self._resigned:
            self._leave_at_once()  # what else would end in order may wait for the rank that is gone
        with contextlib.suppress(RankLost):
            error = getattr(sys, "last_value", None)
            self.stop() if error is None else self.explain(error)

    # what the thread does --------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        due = looked = time.monotonic()
        while self._last_word is None:
            if time.monotonic() >= due:
                due = time.monotonic() + self.beat
                self._tell(f"{WORD}{activity.current.now[0]}")
                self._ask(self.overdue.question())
            for key, _ in self._ears.select(max(0.0, due - time.monotonic())):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._listen(key.data)
            if time.monotonic() - looked > 3 * self.beat:  # it was this thread that slept: nobody was given a hearing
                self._last_heard = dict.fromkeys(self._last_heard, time.monotonic())
            looked = time.monotonic()
            self._miss_the_silent(looked)
        self._take_leave(self._last_word)

    def _tell(self, word: str) -> None:
        for line in self._lines:
            line.say(word)

    def _ask(self, question: str | None) -> None:
        """The next rank; or this one is found to hold the others up."""
        if self.overdue.verdict is not None:
            self._lose(*self.overdue.verdict)
        for line in [line for line in self._lines if line.rank == self._after and question is not None][:1]:
            line.say(f"{WAITS}{question}")

    def _attend(self, connection: socket.socket, rank: int | None) -> Line:
        line = Line(connection, rank)
        self._lines.append(line)
        self._ears.register(connection, selectors.EVENT_READ, line)
        return line

    def _drop(self, line: Line) -> None:
        if line in self._lines:
            self._lines.remove(line)
            self._ears.unregister(line.connection)
            line.connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._attend(self._listener.accept()[0], None)

    def _listen(self, line: Line) -> None:
        try:
            words = line.heard()
        except BlockingIOError:
            return
        except (EOFError, OSError) as end:
            self._drop(line)
            if line.rank is not None:
                self._lose(line.rank, f"{self.roll.members[line.rank].name} {_how_it_ended(end)}")
            return
        for word in words:
            self._hear(line, word)

    def _hear(self, line: Line, word: str) -> None:
        if line.rank is None:
            if word != self._greeting(self._before):
                return self._drop(line)  # a stranger
            line.rank = self._before
        self._last_heard[line.rank] = time.monotonic()
        if word.startswith(WORD):
            self._doing[line.rank] = plain(word.removeprefix(WORD))
        elif word.startswith(WAITS):
            self._ask(self.overdue.answer(word.removeprefix(WAITS)))
        elif word == BYE:
            self._last_heard.pop(line.rank)
            self._gone.add(line.rank)
            self._drop(line)
        elif word.startswith((LOST, FAILED)):
            self._told_by.add(line.rank)
            kind = LOST if word.startswith(LOST) else FAILED
            rank, _, words = word.removeprefix(kind).partition(" ")
            self._lose(int(rank), plain(words), kind)
        return None

    def _miss_the_silent(self, now: float) -> None:
        for rank in list(self._last_heard):
            member, here = self.roll.members[rank], self.roll.members[rank].machine == self.me.machine
            if here and not alive(member.pid):  # a child that it leaves behind may hold its connection open
                self._hear_out(rank)
                if rank in self._last_heard:
                    self._lose(rank, f"{member.name} has died")
            quiet = now - self._last_heard.get(rank, now)
            busy = here and not standing_still(member.pid)  # a long call can hold all threads of a process
            if quiet > (max(self.silence, self.overdue.limit) if busy else self.silence):
                last = f", last when {self._doing[rank]}" if rank in self._doing else ""
                self._lose(
                    rank,
                    f"{member.name} has not been heard for {quiet:.0f} s{last}: it, its machine or the link is lost",
                )

    def _hear_out(self, rank: int) -> None:
        """It may have said goodbye just now."""
        for line in [line for line in self._lines if line.rank == rank]:
            self._listen(line)

    def _lose(self, rank: int, words: str, kind: str = LOST) -> None:
        """Pass it on, say it, and end this process, which nothing else may be able to do."""
        self._tell(f"{kind}{rank} {words}")
        self.verdict, self._mute = words, rank if kind == LOST else None
        self._decided.set()
        if kind == LOST:
            self._speak()
        time.sleep(self.grace if kind == LOST else MERCY)
        self._speak()
        self._leave_at_once()

    def _speak(self) -> None:
        """Once a machine: by its lowest rank that can."""
        if not self._spoken.acquire(blocking=False):
            return
        here = [m for m in self.roll.members if m.machine == self.me.machine and m.rank != self._mute]
        if self.me.rank == self._mute and any(alive(m.pid) for m in here):
            return
        if not any(alive(m.pid) or self._has_spoken(m.rank) for m in here if m.rank < self.me.rank):
            os.write(2, plain(f"tightrope: {self.verdict}: {self.epilogue()}").encode() + b"\n")

    def _has_spoken(self, rank: int) -> bool:
        """Whether a rank that is gone by now has left because of the same verdict, of which it then told its neighbours."""
        words: list[str] = []
        for line in [line for line in self._lines if line.rank == rank]:
            with contextlib.suppress(EOFError, OSError):
                words += line.heard()
        return rank in self._told_by or any(word.startswith((LOST, FAILED)) for word in words)

    def _leave_at_once(self) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(1)

    def _take_leave(self, word: str) -> None:
        """Say a last word to all, also to one just about to introduce itself, and let it arrive."""
        self._accept()
        self._tell(word)
        deadline = time.monotonic() + self.beat
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.connection.shutdown(socket.SHUT_WR)
                line.connection.settimeout(max(0.01, deadline - time.monotonic()))
                while line.connection.recv(65536):
                    pass
            line.connection.close()
        self._listener.close()

    def _forget(self) -> None:
        """In a child of this process, which must not hold open what the neighbours go by."""
        atexit.unregister(self._at_exit)
        self._ears.close()
        for connection in (self._listener, *(line.connection for line in self._lines)):
            connection.close()

    # names -----------------------------------------------------------------------------------------------------------

    def _greeting(self, rank: int) -> str:
        return f"tightrope {self.roll.attempt} {self.roll.members[0].pid} {rank}"

    def _host_of(self, member: Member) -> str:
        """Where to find it from here. The first rank's machine may know itself by its loopback alone."""
        return self.first_host if is_loopback(member.address) and member.machine != self.me.machine else member.address


def restart_notice() -> str:
    """As far as the launcher tells."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return "torchrun starts the run again" if done < most else "the run ends here"


def _how_it_ended(end: Exception) -> str:
    if isinstance(end, OSError) and end.errno not in (errno.ECONNRESET, errno.EPIPE):
        return f"is out of reach ({end.strerror})"
    return "has died"


def _in_a_collective(error: BaseException) -> bool:
    """Whether it was raised within torch.distributed, which is where a rank that is gone is noticed."""
    step = error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).startswith("torch.distributed"):
            return True
        step = step.tb_next
    return False
