"""Which way leads from this machine to the others, and lines of text over it. Libraries that guess the way by the host's name
often end at the loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys

SOCKET_NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LONGEST = 1 << 16  # bytes of a line
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def open_ear(address: str = "") -> socket.socket:
    """A socket that listens on a free port: of one address, or of all, the old and the new kind where there are both."""
    if address:
        return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def address_toward(host: str, port: int) -> str:
    """This machine's own address on the way to another one. Nothing is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address, as in eth0; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    for _, name in socket.if_nameindex():
        if address in (_ipv4_of(name), *_ipv6_of(name)):
            return name
    return None


def _ipv4_of(interface: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None


def _ipv6_of(interface: str) -> list[str]:
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:
        rows = [line.split() for line in table]
        return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(r[0])) for r in rows if r[-1] == interface]
    return []


def speak_toward(host: str, port: int) -> None:
    """Have Gloo and NCCL use the interface that leads to another machine, unless the user has named one."""
    name = interface_of(address_toward(host, port))
    if name is not None:
        for variable in SOCKET_NAMES:
            os.environ.setdefault(variable, name)


class Line:
    """A connection to a neighbour, over which lines of text travel. `rank` is None until the other side has said who it is."""

    def __init__(self, connection: socket.socket, rank: int | None = None) -> None:
        connection.setblocking(False)
        self.connection, self.rank = connection, rank
        self._rest = b""

    def say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # whether the other side is gone shows when we listen
            self.connection.send(word.encode() + b"\n")

    def heard(self) -> list[str]:
        """What has come in whole. Raises EOFError at the end."""
        content = self.connection.recv(65536)
        if not content:
            raise EOFError
        *words, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > LONGEST:
            raise EOFError  # nobody who belongs here
        return [word.decode(errors="replace") for word in words]
