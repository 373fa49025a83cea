"""What trackers draw is nothing that an environment would have drawn."""

import random
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.logging.trackers.delivery import CLIENTS, client_random

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


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_a_retry_of_urllib3_draws_nothing_from_the_global_generator(jitter: float) -> None:
    retry = pytest.importorskip("urllib3.util.retry")
    client_random.install()
    client_random.install()
    assert sys.meta_path.count(client_random) == 1
    failed: Any = retry.RequestHistory("GET", "/", None, 503, None)
    waiting = retry.Retry(backoff_factor=0, backoff_jitter=jitter, history=(failed, failed))
    before = random.getstate()
    assert 0 < waiting.get_backoff_time() < jitter
    assert random.getstate() == before


def test_waiting_of_wandb_draws_nothing_from_the_global_generator() -> None:
    pytest.importorskip("wandb", reason="W&B is not installed")
    client_random.install()
    from wandb.sdk.lib import retry

    before = random.getstate()
    waiting = retry.ExponentialBackoff(timedelta(seconds=1), timedelta(seconds=100))
    waits = [waiting.next_sleep_or_reraise(OSError()) for _ in range(4)]
    assert waits == sorted(set(waits))  # each longer by chance
    assert random.getstate() == before


def test_training_is_no_client() -> None:
    assert not CLIENTS & {"tightrope", "numpy", "torch", "gymnasium", "ale_py", "random", "__main__"}
