"""The roll that is called when a run starts, and again whenever torchrun restarts it: who is there, in which attempt.

All attempts share one store, so each needs a part of its own, or it would find there the addresses of processes that are
gone. The launcher's count of restarts cannot name that part: a machine that restarts because another one has failed does
not count it. So the first rank numbers the attempt and tells the number to those that show that they are here now.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..errors import RankLost
from ..processes import PROC, alive

ARRIVAL = timedelta(minutes=2)  # of the last rank after the first one; torchrun starts them together
GLANCE = 0.02  # seconds between two looks for who has come
ENDED_EVERY, ENDED_LOOKS = 0.5, 4  # seconds between looks for who has ended, and how many must say the same


@dataclass(frozen=True)
class Member:
    """A rank as the others see it."""

    rank: int
    host: str
    pid: int
    machine: int  # as the launcher counts them: ranks of equal number see each other's processes
    restarts: int  # that its launcher knows of
    address: str  # on the way to the first rank's machine
    port: int  # where its vigil listens

    @property
    def name(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


@dataclass(frozen=True)
class Roll:
    """Everyone in this attempt, by rank."""

    attempt: int
    members: tuple[Member, ...]

    @property
    def restarts(self) -> int:
        """How often the run has started before; a store that is new, as its machine is, has not seen it all."""
        return max(self.attempt, *(member.restarts for member in self.members))


def this_process(rank: int, restarts: int, address: str, port: int) -> Member:
    machine = int(os.environ.get("GROUP_RANK", -1 - rank))  # without torchrun: nobody's neighbour
    return Member(rank, socket.gethostname(), os.getpid(), machine, restarts, address, port)


def call_roll(board: Store, me: Member, size: int, arrival: timedelta = ARRIVAL) -> Roll:
    """Wait for all ranks of this attempt."""
    try:
        attempt = board.add("attempts", 1) - 1 if me.rank == 0 else _asked_for(board, me.rank, arrival)
        here = PrefixStore(f"{attempt}/here", board)
        everyone = [str(rank) for rank in range(size)]
        here.set(str(me.rank), json.dumps(asdict(me)))
        if me.rank == 0:
            _welcome(board, attempt, here, everyone, arrival)
        _wait_for(here, everyone, arrival)
        return Roll(attempt, tuple(Member(**json.loads(here.get(rank))) for rank in everyone))
    except DistError as error:
        raise RankLost(f"rank {me.rank} has not met the others, who may have died: {error}") from error


def _asked_for(board: Store, rank: int, arrival: timedelta) -> int:
    """The attempt's number, as the first rank gives it to exactly this process."""
    myself = uuid.uuid4().hex
    board.set(f"hello/{rank}", myself)
    _wait_for(board, [f"welcome/{myself}"], arrival, ranks=[0])
    return int(board.get(f"welcome/{myself}"))


def _welcome(board: Store, attempt: int, here: Store, everyone: list[str], arrival: timedelta) -> None:
    """Answer whoever says hello until all are here. A hello may be an earlier attempt's: that answer finds nobody."""
    answered: set[bytes] = set()
    deadline, ended = time.monotonic() + arrival.total_seconds(), Ended()
    while missing := [rank for rank in everyone if not here.check([rank])]:
        ended.check(map(int, missing))
        if time.monotonic() > deadline:
            raise RankLost(f"rank {' and '.join(missing)} did not come within {arrival.seconds} s of the first")
        for rank in missing:
            if board.check([f"hello/{rank}"]) and (process := board.get(f"hello/{rank}")) not in answered:
                board.set(f"welcome/{process.decode()}", str(attempt))
                answered.add(process)
        time.sleep(GLANCE)


def _wait_for(store: Store, keys: list[str], arrival: timedelta, ranks: Sequence[int] | None = None) -> None:
    """Until all the keys are there, which some ranks set: the keys are their numbers, if nothing else is said."""
    ended, deadline = Ended(), time.monotonic() + arrival.total_seconds()
    while missing := [key for key in keys if not store.check([key])]:
        ended.check(map(int, missing) if ranks is None else ranks)
        if time.monotonic() > deadline:
            store.wait(keys, timedelta(milliseconds=1))  # raises in the store's words
        time.sleep(GLANCE)


class Ended:
    """Looks now and then whether ranks that others wait for have left, which needs their processes to be on this machine."""

    def __init__(self) -> None:
        self.due, self.looks = 0.0, Counter[int]()

    def check(self, awaited: Iterable[int]) -> None:
        """RankLost if one of these has ended."""
        if time.monotonic() < self.due:
            return
        self.due, before = time.monotonic() + ENDED_EVERY, self.looks
        self.looks = Counter({rank: before[rank] + 1 for rank in ended_ranks() & set(awaited)})
        gone = [rank for rank, looks in self.looks.items() if looks >= ENDED_LOOKS]
        if gone:
            raise RankLost(f"rank {' and '.join(map(str, gone))} has ended its program before it made an agent")


def ended_ranks() -> set[int]:
    """Ranks that torchrun has started on this machine and that have no process any more, as far as the system tells."""
    try:
        rank, first = int(os.environ["RANK"]), int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
        ours = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
    except (KeyError, ValueError):
        return set()
    pid = os.getpid()
    while _rank_of(parent := _parent(pid)) == rank:  # a script that torchrun has started, and that has started us
        pid = parent
    there = {_rank_of(child) for child in _children(parent)}
    return set(ours) - there if rank in there else set()  # or there is no telling


def _rank_of(pid: int) -> int | None:
    """That of a process that torchrun has started."""
    try:
        words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)
    except (OSError, ValueError):
        return None


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _children(pid: int) -> list[int]:
    try:
        lists = [(thread / "children").read_text() for thread in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return [int(word) for words in lists for word in words.split() if alive(int(word))]
