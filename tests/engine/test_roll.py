"""The roll call of an attempt, over a real store."""

import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from tightrope.engine.roll import Member, Roll, call_roll
from tightrope.errors import RankLost


def member(rank: int, pid: int = 0, restarts: int = 0) -> Member:
    return Member(rank, "host", pid, 0, restarts, "127.0.0.1", 1)


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def board(server: TCPStore) -> PrefixStore:
    """A connection of one's own: a store's calls wait for each other."""
    return PrefixStore("run", TCPStore("127.0.0.1", server.port, is_master=False))


def call(server: TCPStore, members: list[Member]) -> list[Roll]:
    rolls: dict[int, Roll] = {}

    def answer(one: Member) -> None:
        rolls[one.rank] = call_roll(board(server), one, len(members), timedelta(seconds=10))

    threads = [threading.Thread(target=answer, args=(one,)) for one in reversed(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [rolls[rank] for rank in range(len(members))]


def test_everyone_has_the_same_roll(server):
    members = [member(rank, pid=100 + rank) for rank in range(3)]
    assert call(server, members) == [Roll(0, tuple(members))] * 3


def test_attempts_are_numbered_alike_though_launchers_count_differently(server):
    """A machine that starts again because another one failed has not counted a restart."""
    call(server, [member(0), member(1)])
    again = [member(0, restarts=0), member(1, restarts=1)]
    assert call(server, again) == [Roll(1, tuple(again))] * 2


def test_who_died_after_hello_is_not_taken_for_who_comes_next(server):
    board(server).set("hello/1", "of a process that is gone")
    fresh = [member(0, pid=5), member(1, pid=6)]
    assert call(server, fresh) == [Roll(0, tuple(fresh))] * 2


def test_a_new_store_has_not_seen_all_restarts():
    assert Roll(0, (member(0, restarts=2), member(1))).restarts == 2


def test_whoever_does_not_come_is_named(server):
    with pytest.raises(RankLost, match="rank 1 did not come within 0 s"):
        call_roll(board(server), member(0), 2, timedelta(milliseconds=200))
    with pytest.raises(RankLost, match="rank 1 has not met the others"):
        call_roll(board(server), member(1), 2, timedelta(milliseconds=200))
