"""The thread between training and a tracker: in order, never in the way, and not for ever. What clients draw at random is
nothing that an environment would have drawn."""

import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope import processes
from tightrope.logging.trackers import delivery
from tightrope.logging.trackers.delivery import CLIENTS, DeliveryThread, client_random


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a job waits for."""
    made = threading.Event()
    yield made
    made.set()


def held_by(gate: threading.Event) -> DeliveryThread:
    """With one job, which waits."""
    made = DeliveryThread("test")
    made.add(lambda: gate.wait(20) and None)
    return made


def test_everything_is_delivered_in_order() -> None:
    there: list[int] = []
    mine = DeliveryThread("test")
    for i in range(1000):
        mine.add(lambda i=i: there.append(i))
    mine.close()
    assert there == list(range(1000))
    assert not mine.thread.is_alive()


def test_handing_over_waits_for_nothing(gate: threading.Event) -> None:
    mine, began = held_by(gate), time.monotonic()
    for _ in range(100):
        mine.add(lambda: None)
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


@pytest.mark.parametrize("signalled", [False, True])
def test_nobody_waits_longer_than_their_patience_lasts(
    gate: threading.Event, signalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if signalled:
        monkeypatch.setattr(processes, "AFTER_STOP", 0.3)
        monkeypatch.setattr(processes.stop_request, "since", time.monotonic())
    else:
        monkeypatch.setattr(delivery, "DELIVERY_SECONDS", 0.3)
    mine, began = held_by(gate), time.monotonic()
    mine.add(lambda: None)
    with pytest.raises(TimeoutError, match=r"no answer for \d s, 2 of its messages are not delivered"):
        mine.close()
    assert time.monotonic() - began < 3


def test_as_long_as_things_are_delivered_the_end_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "DELIVERY_SECONDS", 1.0)
    there: list[int] = []
    mine = DeliveryThread("test")
    for _ in range(6):
        mine.add(lambda: time.sleep(0.3) or there.append(1))
    mine.close()
    assert len(there) == 6


def test_memory_is_bounded_and_what_is_left_out_is_said(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_WAITING", 5)
    there: list[int] = []
    mine = held_by(gate)
    while mine.jobs:  # until it is under way
        time.sleep(0.01)
    for i in range(9):
        mine.add(lambda i=i: there.append(i))
    gate.set()
    with pytest.raises(TimeoutError, match="4 messages were dropped"):
        mine.close()
    assert there == [0, 1, 2, 3, 4]


# random numbers -------------------------------------------------------------------------------------------------------

CODE = textwrap.dedent("""
    import random, sys
    from tightrope.logging.trackers.delivery import client_random
    import backoff.early
    client_random.install()
    import backoff.late, mine
    before = random.getstate()
    drawn = [backoff.early.draw() for _ in range(3)] + [backoff.late.draw() for _ in range(3)]
    assert all(0 <= x < 1 for group in drawn for x in group), drawn
    assert len(set(drawn)) == 6, drawn
    assert random.getstate() == before, "a client drew from the global generator"
    mine.draw()
    assert random.getstate() != before, "other modules do"
    print("apart")
""")
MODULE = """
import random
from random import choice, gauss, random as real
from random import Random, uniform

def draw():
    return random.random(), real(), uniform(0, 1), choice([0.1, 0.2]), random.randrange(5) / 5, random.getrandbits(9) / 512
"""


def test_clients_draw_from_a_generator_of_their_own_whenever_they_are_imported(tmp_path: Path) -> None:
    package = tmp_path / "backoff"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for file in (package / "early.py", package / "late.py", tmp_path / "mine.py"):
        file.write_text(MODULE)
    path = f"{tmp_path}:{Path(tr.__file__).parents[1]}"
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.stdout == "apart\n", done.stderr


def test_a_retry_of_urllib3_draws_nothing_from_the_global_generator() -> None:
    retry = pytest.importorskip("urllib3.util.retry")
    client_random.install()
    client_random.install()
    assert sys.meta_path.count(client_random) == 1
    failed: Any = retry.RequestHistory("GET", "/", None, 503, None)
    waiting = retry.Retry(backoff_factor=0, backoff_jitter=0.5, history=(failed, failed))
    before = random.getstate()
    assert 0 < waiting.get_backoff_time() < 0.5
    assert random.getstate() == before


def test_training_is_no_client() -> None:
    assert not CLIENTS & {"tightrope", "numpy", "torch", "gymnasium", "ale_py", "random", "__main__"}
