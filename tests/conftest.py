"""What every test starts from: shapes checked in `tightrope.functional`, one thread, no C compiler, no videos, repeatable
examples, no signal ignored, temporary files in memory."""

import functools
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from hypothesis import settings

jaxtyping.install_import_hook("tightrope.functional", "beartype.beartype")  # before anything imports it

from tightrope.logging import Callback  # noqa: E402
from tightrope.recording import why_not_compiled  # noqa: E402
from tightrope.training.films import video_callback  # noqa: E402

settings.register_profile("tightrope", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("tightrope")
torch.set_num_threads(1)
os.environ["TIGHTROPE_COMPILER"] = "off"  # recordings are NumPy calls, but where a test asks for the compiler
# JAX compiles for longer than tests run what it compiles
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
MEMORY = Path("/dev/shm")  # of a disk, tests would wait: they write, sync and remove many thousand files
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    is_large = shutil.disk_usage(MEMORY).free > 8e9
    if is_large and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # compiled recordings are files too
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job, and SIGHUP under nohup
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need a CUDA device are left out, and counted, where there is none."""
    if torch.cuda.is_available():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    config.hook.pytest_deselected(items=needing)
    items[:] = [item for item in items if item not in set(needing)]


def pytest_collection_finish() -> None:
    """Tests and modules live until the end: no garbage collection looks through these millions of objects again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_videos() -> Iterator[None]:
    """Runs have the videos that a test asks for by `video_every` and no others, which take longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        asked = lambda *given: Callback() if given[3] is None else video_callback(*given)  # noqa: E731
        patch.setattr("tightrope.training.trainer.video_callback", asked)
        yield


@pytest.fixture
def usual_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this test have videos as they do elsewhere."""
    monkeypatch.setattr("tightrope.training.trainer.video_callback", video_callback)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Shapes are not checked in this test: for code that torch.compile must see whole."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of compiled C code that the tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def c_compiler(compiler_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings may be compiled in this test, which is left out on a machine without a C compiler."""
    monkeypatch.delenv("TIGHTROPE_COMPILER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiler_cache))
    if why := why_not_compiled():
        pytest.skip(why)


@pytest.fixture(scope="session")
def onnxruntime() -> Iterator[Any]:
    """The package, for tests that export. torch then reads its table of ONNX operators for the first export only."""
    found = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield found


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command in this process, given word by word."""

    def run(*words: object) -> Done:
        from tightrope.cli import main

        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        return Done(int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def tightrope(run_command: Callable[..., Done]) -> Callable[..., Done]:
    """Runs a command line, given in one or several pieces."""
    return lambda *pieces: run_command(*(word for piece in pieces for word in piece.split()))


@pytest.fixture
def own_ids() -> Iterator[None]:
    """Ids of Gymnasium that the test registers are forgotten after it, and those of other tests are kept."""
    import gymnasium

    before = dict(gymnasium.registry)
    yield
    added = {name: spec for name, spec in gymnasium.registry.items() if name not in before}
    for name, spec in added.items():
        if not str(spec.entry_point).startswith("ale_py"):  # which registers its games once, when it is imported
            del gymnasium.registry[name]
    gymnasium.registry.update(before)


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
