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
from dataclasses import asdict, dataclass
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..errors import RankLost

ARRIVAL = timedelta(minutes=2)  # of the last rank after the first one; torchrun starts them together
GLANCE = 0.02  # seconds between two looks for who has come


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
        here.wait(everyone, arrival)
        return Roll(attempt, tuple(Member(**json.loads(here.get(rank))) for rank in everyone))
    except DistError as error:
        raise RankLost(f"rank {me.rank} has not met the others, who may have died: {error}") from error


def _asked_for(board: Store, rank: int, arrival: timedelta) -> int:
    """The attempt's number, as the first rank gives it to exactly this process."""
    myself = uuid.uuid4().hex
    board.set(f"hello/{rank}", myself)
    board.wait([f"welcome/{myself}"], arrival)
    return int(board.get(f"welcome/{myself}"))


def _welcome(board: Store, attempt: int, here: Store, everyone: list[str], arrival: timedelta) -> None:
    """Answer whoever says hello until all are here. A hello may be an earlier attempt's: that answer finds nobody."""
    answered: set[bytes] = set()
    deadline = time.monotonic() + arrival.total_seconds()
    while missing := [rank for rank in everyone if not here.check([rank])]:
        if time.monotonic() > deadline:
            raise RankLost(f"rank {' and '.join(missing)} did not come within {arrival.seconds} s of the first")
        for rank in missing:
            if board.check([f"hello/{rank}"]) and (process := board.get(f"hello/{rank}")) not in answered:
                board.set(f"welcome/{process.decode()}", str(attempt))
                answered.add(process)
        time.sleep(GLANCE)
