"""What every test starts from: shapes checked in `tightrope.functional`, one thread, repeatable examples."""

import signal
from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

jaxtyping.install_import_hook("tightrope.functional", "beartype.beartype")  # before anything imports it

settings.register_profile("tightrope", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("tightrope")
torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need a CUDA device are left out, and counted, where there is none."""
    if torch.cuda.is_available():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item not in set(needing)]


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Shapes are not checked in this test: for code that torch.compile must see whole."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """As in a terminal: a shell's background jobs are started with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def run(*words: object) -> tuple[int, str, str]:
        from tightrope.cli import main

        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return int(end.value.code or 0), *capsys.readouterr()

    return run
