"""The thread between training and a tracker: in order, never in the way, and not for ever."""

import threading
import time

import pytest

from tightrope import processes
from tightrope.logging.trackers import delivery
from tightrope.logging.trackers.delivery import DeliveryThread


def test_everything_is_delivered_in_order() -> None:
    there: list[int] = []
    mine = DeliveryThread("test")
    for i in range(1000):
        mine.add(lambda i=i: there.append(i))
    mine.close()
    assert there == list(range(1000))
    assert not mine.thread.is_alive()


def test_handing_over_waits_for_nothing() -> None:
    gate = threading.Event()
    mine = DeliveryThread("test")
    began = time.monotonic()
    for _ in range(100):
        mine.add(lambda: gate.wait(10) and None)
    assert time.monotonic() - began < 1
    gate.set()
    mine.close()


def test_the_first_failure_is_the_last_and_is_raised_once_known() -> None:
    there: list[int] = []
    mine = DeliveryThread("test")
    mine.add(lambda: 1 / 0)
    mine.thread.join(5)
    with pytest.raises(ZeroDivisionError):
        mine.add(lambda: there.append(1))
    with pytest.raises(ZeroDivisionError):
        mine.close()
    assert there == []


def test_a_failure_at_the_end_is_raised_at_the_end() -> None:
    mine = DeliveryThread("test")
    mine.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mine.close()


def test_nobody_waits_longer_than_their_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DELIVERY_SECONDS", 0.3)
    gate = threading.Event()
    mine = DeliveryThread("test")
    mine.add(lambda: gate.wait(20) and None)
    mine.add(lambda: None)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="2 of its messages are not delivered"):
        mine.close()
    assert time.monotonic() - began < 3
    gate.set()


def test_after_a_signal_patience_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "AFTER_STOP", 0.2)
    monkeypatch.setattr(processes.stop_request, "since", time.monotonic())
    gate = threading.Event()
    mine = DeliveryThread("test")
    mine.add(lambda: gate.wait(20) and None)
    with pytest.raises(TimeoutError, match=r"no answer for \d s, 1 of its messages"):
        mine.close()
    gate.set()


def test_as_long_as_things_are_delivered_the_end_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DELIVERY_SECONDS", 1.0)
    there: list[int] = []
    mine = DeliveryThread("test")

    def slow() -> None:
        time.sleep(0.3)
        there.append(1)

    for _ in range(6):
        mine.add(slow)
    mine.close()
    assert len(there) == 6


def test_memory_is_bounded_and_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_WAITING", 5)
    gate = threading.Event()
    there: list[int] = []
    mine = DeliveryThread("test")
    mine.add(lambda: gate.wait(20) and None)
    while mine.jobs:  # until it is under way
        time.sleep(0.01)
    for i in range(9):
        mine.add(lambda i=i: there.append(i))
    gate.set()
    with pytest.raises(TimeoutError, match="4 messages were dropped"):
        mine.close()
    assert there == [0, 1, 2, 3, 4]
