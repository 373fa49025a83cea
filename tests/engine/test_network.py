"""Finding the way to other machines."""

import os
import socket
import sys

import pytest

from tightrope.engine.network import SOCKET_NAMES, address_toward, interface_of, is_loopback, open_ear, speak_toward


def test_this_machine_is_reached_over_the_loopback():
    assert is_loopback(address_toward("127.0.0.1", 80))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_an_interface_is_found_by_its_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") is None  # of a range that nobody has


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_interface_is_named_unless_the_user_has_named_one(monkeypatch):
    for name in SOCKET_NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv(SOCKET_NAMES[0], "mine")
    speak_toward("127.0.0.1", 80)
    assert [os.environ[name] for name in SOCKET_NAMES] == ["mine", "lo"]


def test_an_ear_hears():
    with open_ear() as ear, socket.create_connection(("127.0.0.1", ear.getsockname()[1])) as mouth:
        mouth.send(b"hello")
        heard, _ = ear.accept()
        with heard:
            assert heard.recv(5) == b"hello"
