"""Output that cannot be written: it never ends training, and an exit code of 0 means that the command came to its end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

import tightrope as tr
from tightrope.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of streams that are lost
SMALL = "--num-envs 2 --num-steps 8 --num-minibatches 1 --total-timesteps 160 --eval-episodes 1 --video-every 0"
FULL = Path("/dev/full")


def full() -> TextIO:
    return FULL.open("w", buffering=1)


def unread() -> TextIO:
    """A pipe whose reader is gone."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w", buffering=1)


def closed() -> TextIO:
    stream = open(os.devnull, "w")  # noqa: SIM115
    stream.close()
    return stream


def of_few_letters() -> TextIO:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", line_buffering=True)


STREAMS: dict[str, Callable[[], TextIO | None]] = {
    "no reader": unread, "closed": closed, "none": lambda: None, "ascii": of_few_letters,
    **({"full disk": full} if FULL.exists() else {}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Streams that cannot be written complain once more as they go."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda _: None)
    streams = sys.stdout, sys.stderr
    yield
    sys.stdout, sys.stderr = streams


def exit_of(words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    return int(stop.value.code or 0)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("which", ["stdout", "stderr", "both"])
def test_training_comes_to_its_end_whatever_becomes_of_its_output(
    kind: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        if which in (name, "both"):
            monkeypatch.setattr(sys, name, STREAMS[kind]())
    Path("said_env.py").write_text(
        "import tightrope as tr\n\nclass Said(tr.envs.CartPole):\n    def step(self, action, *rest):\n"
        "        print('a word of its own: \\u2713 \\udcff', flush=True)\n        return super().step(action, *rest)\n"
    )
    assert exit_of(f"train said_env:Said {SMALL} --run-dir run") == 0
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 10


@pytest.mark.parametrize("kind", STREAMS)
def test_so_it_does_in_python(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=160, eval_every=16, eval_episodes=1)
    agent = tr.PPO("CartPole-v1", **settings, video_every=0)  # type: ignore[arg-type]
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, STREAMS[kind]())
    with monkeypatch.context() as broken:  # whose warning is printed, too
        broken.setattr("tightrope.training.run_directory.save_checkpoint", no_space)
        assert agent.train(until=32, run_dir="run").unsaved == "No space left on device"
    agent.learn()
    assert agent.steps == 160


def no_space(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_command_whose_output_is_its_result_fails_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", unread())
    assert exit_of("envs") == 141
    monkeypatch.setattr(sys, "stdout", open(os.devnull))  # which cannot be written  # noqa: SIM115
    assert exit_of("envs") == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("tightrope: the output cannot be written")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("leave", ["sys.exit()", "sys.exit(0)", "raise SystemExit", "raise BrokenPipeError"])
def test_an_environment_that_leaves_does_not_end_training_with_0(
    leave: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    module = f"leaving_{abs(hash(request.node.name))}"
    Path(f"{module}.py").write_text(
        "import sys, tightrope as tr\n\nclass Leaves(tr.envs.CartPole):\n    calls = 0\n"
        "    def step(self, action, *rest):\n        Leaves.calls += 1\n"
        f"        if Leaves.calls > 30:\n            {leave}\n        return super().step(action, *rest)\n"
    )
    if leave == "raise BrokenPipeError":
        with pytest.raises(BrokenPipeError):  # of its own, with a traceback
            main(f"train {module}:Leaves {SMALL} --quiet".split())
    else:
        assert exit_of(f"train {module}:Leaves {SMALL} --quiet") == 1
        assert "exit() was called" in capsys.readouterr().err


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_in_a_shell() -> None:
    """Python itself writes what is left as it ends, and would exit with 120."""
    train = f"{sys.executable} -m tightrope train CartPole-v1 {SMALL} --eval-every 16 --run-dir run"
    script = f"{train} 2>/dev/full | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 10


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["sweep CartPole-v1 --print-search", "sweep --help", "train -h", "resume --help"])
def test_text_that_a_training_command_was_called_for_is_its_result(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", full())
    assert exit_of(words) == 1


def test_ctrl_c_while_the_output_is_finished_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.cli.exit_code", lambda args: signal.raise_signal(signal.SIGINT))
    assert exit_of("envs") == 130
