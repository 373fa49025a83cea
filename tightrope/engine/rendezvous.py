"""The start of a run with several ranks: every rank connects to rank 0, which sends the list of all ranks.

This is repeated whenever torchrun restarts the run. All attempts share one store, and torchrun's restart count does not
identify them: a machine that restarts because another one failed does not count it. Therefore rank 0 numbers the attempts
itself, and opens a new port in each, whose number it writes to the store. The connections stay open for the heartbeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from ..errors import RankLost
from ..processes import PROC

ARRIVAL_SECONDS = 120.0  # limit for all ranks to connect
EXIT_CHECK_AFTER = 4.0  # seconds, after which every rank's process has started
POLL_SECONDS = 0.1
SOCKET_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass(frozen=True)
class Member:
    """Address of a rank: its host and process."""

    rank: int
    host: str
    pid: int
    machine: int  # the launcher's number: ranks on one machine can inspect each other's processes

    @property
    def name(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class Connection:
    """A connection to another rank, with one line of JSON per message. `address` is the local address."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(1.0)
        self.socket, self.address = sock, str(sock.getsockname()[0]).removeprefix("::ffff:")
        self._rest = b""

    def send(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # `receive` detects a closed connection
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Return the complete messages that have arrived. Raises EOFError if the connection is closed."""
        try:
            content = self.socket.recv(1 << 16)
        except TimeoutError:
            return []
        if not content:
            raise EOFError
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Rendezvous:
    """The ranks of one attempt, and this rank's connections: rank 0 is connected to all, the others to rank 0."""

    attempt: int
    members: tuple[Member, ...]
    connections: dict[int, Connection]
    address: str | None = None  # of this machine for other machines; None for the loopback


def meet(store: Store, rank: int, size: int, host: str, seconds: float = ARRIVAL_SECONDS) -> Rendezvous:
    """Connect all ranks of this attempt. `host` is rank 0's machine."""
    machine = int(os.environ.get("GROUP_RANK", -1 - rank))  # without torchrun, count each rank as its own machine
    me = Member(rank, socket.gethostname(), os.getpid(), machine)
    try:
        met = receive_all(store, me, size, seconds) if rank == 0 else reach_rank0(store, me, host, seconds)
    except DistError as error:
        raise RankLost(f"rank {rank} has not met the others, who may have died: {error}") from error
    if met.address is not None and len({member.machine for member in met.members}) > 1:
        use_interface(met.address)
    return met


def receive_all(store: Store, me: Member, size: int, seconds: float) -> Rendezvous:
    """Accept the connections of all other ranks. Called on rank 0."""
    attempt, token, began = store.add("attempts", 1) - 1, uuid.uuid4().hex, time.monotonic()
    found: dict[int, tuple[Member, Connection]] = {}
    with open_listener() as listener, selectors.DefaultSelector() as selector:
        store.set("rank0", json.dumps([listener.getsockname()[1], token]))
        selector.register(listener, selectors.EVENT_READ)
        while missing := set(range(1, size)) - set(found):
            for key, _ in selector.select(POLL_SECONDS):
                if key.data is None:
                    connection = Connection(listener.accept()[0])
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                    continue
                try:
                    for message in key.data.receive():
                        if message.pop("token", None) != token:
                            raise ValueError("not from a rank")
                        found[message["rank"]] = Member(**message), key.data
                except Exception:  # not from a rank, or from one that died and may be replaced
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
                    found = {rank: one for rank, one in found.items() if one[1] is not key.data}
            check_still_coming(missing, began, seconds)
    members = (me, *(found[rank][0] for rank in range(1, size)))
    connections = {rank: connection for rank, (_, connection) in found.items()}
    address = next((one.address for one in connections.values() if not is_loopback(one.address)), None)
    for connection in connections.values():
        connection.send(attempt=attempt, address=address, members=[asdict(member) for member in members])
    return Rendezvous(attempt, members, connections, address)


def reach_rank0(store: Store, me: Member, host: str, seconds: float) -> Rendezvous:
    """Connect to rank 0. Called on every other rank."""
    began, connection, tried, port = time.monotonic(), None, b"", None
    while True:
        place = store.get("rank0") if store.check(["rank0"]) else b""
        if place != tried:  # may still be the port of an earlier attempt
            port, token = json.loads(place)
            with contextlib.suppress(OSError):
                connection = Connection(socket.create_connection((host, port), 5.0))
                connection.send(token=token, **asdict(me))
                tried = place
        try:
            answers = [] if connection is None else connection.receive()
        except (EOFError, OSError, ValueError):
            connection, answers = None, []
        if connection is not None and answers:
            members = tuple(Member(**member) for member in answers[0]["members"])
            address = answers[0]["address"] if is_loopback(connection.address) else connection.address
            return Rendezvous(answers[0]["attempt"], members, {0: connection}, address)
        check_still_coming({0}, began, seconds, f" (last tried: port {port} of {host})")
        time.sleep(POLL_SECONDS)


def check_still_coming(missing: set[int], began: float, seconds: float, note: str = "") -> None:
    """Raise RankLost if a missing rank has exited or is late."""
    waited = time.monotonic() - began
    if waited > EXIT_CHECK_AFTER and (exited := exited_ranks() & missing):
        raise RankLost(f"rank {min(exited)} has ended its program before it made an agent")
    if waited > seconds:
        raise RankLost(f"rank {' and '.join(map(str, sorted(missing)))} did not connect within {seconds:.0f} s{note}")


def exited_ranks() -> set[int]:
    """Return the ranks of this machine whose processes have exited, if /proc is available."""
    try:
        rank, local_rank, local_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        job = f"TORCHELASTIC_RUN_ID={os.environ['TORCHELASTIC_RUN_ID']}".encode()
    except (KeyError, ValueError):
        return set()
    running = set()
    for path in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            words = path.read_bytes().split(b"\0")
            running |= {int(word[5:]) for word in words if word.startswith(b"RANK=") and job in words}
    first = rank - local_rank
    return set(range(first, first + local_size)) - running if rank in running else set()


def open_listener() -> socket.socket:
    """Open a socket on a free port, for both IPv4 and IPv6 if possible."""
    dual = socket.has_dualstack_ipv6()
    return socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def use_interface(address: str) -> None:
    """Make Gloo and NCCL use the network interface with this address, unless the user has set one. By default they use the one
    that the host name resolves to, which is often the loopback."""
    name = interface_of(address)
    if name is not None:
        for variable in SOCKET_NAMES:
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """Return the name of the interface with this IPv4 address, such as eth0, or None if unknown."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None
