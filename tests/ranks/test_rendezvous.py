"""How ranks meet, over a real store and real connections, and which network they then use."""

import json
import os
import socket
import sys
import threading

import pytest
from torch.distributed import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from tightrope.engine import distributed, rendezvous
from tightrope.engine.rendezvous import SOCKET_NAMES, Rendezvous, interface_of, meet, open_listener, use_interface
from tightrope.errors import RankLost

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # connections, which live as long as their run


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def connected(server: TCPStore) -> PrefixStore:
    """A connection of one's own: calls of one store wait for each other."""
    return PrefixStore("run", TCPStore("127.0.0.1", server.port, is_master=False))


def meet_all(server: TCPStore, size: int) -> list[Rendezvous]:
    found: dict[int, Rendezvous] = {}

    def come(rank: int) -> None:
        found[rank] = meet(connected(server), rank, size, "127.0.0.1", 10)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in reversed(range(size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[rank] for rank in range(size)]


def test_every_rank_learns_who_is_there_and_can_talk_to_rank_0(server):
    found = meet_all(server, 3)
    assert {one.members for one in found} == {found[0].members}
    assert [member.rank for member in found[0].members] == [0, 1, 2]
    assert [one.attempt for one in found] == [0, 0, 0]
    found[2].connections[0].send(bye=True)
    assert found[0].connections[2].receive() == [{"bye": True}]


def test_attempts_are_numbered_whatever_the_launcher_counts(server):
    """A machine that restarts because another one failed has not counted a restart."""
    for attempt in range(2):
        assert [one.attempt for one in meet_all(server, 2)] == [attempt] * 2


@pytest.mark.parametrize("listens", [True, False])
def test_the_port_of_an_attempt_that_is_over_does_not_matter(server, listens):
    with socket.create_server(("127.0.0.1", 0)) as earlier:
        connected(server).set("rank0", json.dumps([earlier.getsockname()[1], "earlier"]))
        if not listens:
            earlier.close()
        assert [one.attempt for one in meet_all(server, 2)] == [0, 0]


def test_strangers_are_sent_away(server, monkeypatch):
    visitors = []

    def visited() -> socket.socket:
        listener = open_listener()
        for words in (b"GET / HTTP/1.1\r\n", b'{"rank": 1}\n', b"[]\n", b""):
            visitors.append(socket.create_connection(("127.0.0.1", listener.getsockname()[1])))
            visitors[-1].send(words)
        visitors[-1].close()
        return listener

    monkeypatch.setattr(rendezvous, "open_listener", visited)
    assert len(meet_all(server, 2)) == 2


def test_a_rank_that_does_not_come_is_named(server):
    with pytest.raises(RankLost, match="rank 1 did not connect within 0 s"):
        meet(connected(server), 0, 2, "127.0.0.1", 0.2)
    with pytest.raises(RankLost, match=r"rank 0 did not connect within 0 s \(last tried: port"):
        meet(connected(server), 1, 2, "127.0.0.1", 0.2)


def test_a_single_rank_under_torchrun_meets_nobody_and_knows_of_its_restarts(monkeypatch, server):
    variables = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port}
    for name, value in {**variables, "TORCHELASTIC_RESTART_COUNT": 2, "TORCHELASTIC_USE_AGENT_STORE": True}.items():
        monkeypatch.setenv(name, str(value))
    world = distributed.join()
    try:
        assert not world.is_distributed
        assert (world.size, world.restarts) == (1, 2)
        distributed.keep_for_restart("name", "words")
        assert distributed.kept_for_restart("name") == "words"
    finally:
        distributed.leave()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_an_interface_is_found_by_its_address_and_used_unless_the_user_has_named_one(monkeypatch):
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None  # of a range that nobody has
    for name in SOCKET_NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(SOCKET_NAMES[0], "mine")
    monkeypatch.setattr(rendezvous, "interface_of", lambda address: "eth7")
    use_interface("203.0.113.7")
    assert [os.environ[name] for name in SOCKET_NAMES] == ["mine", "eth7"]
