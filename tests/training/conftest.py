"""What tests of training share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """As in a terminal: a shell's background jobs are started with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
