"""Signals that ask training to stop, whoever sends them, and Ctrl-C held down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tightrope as tr
from tightrope import cli
from tightrope.training.signals import NOTICES, STOPS, Interrupted, Interrupts

SMALL = dict(
    num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=160, device="cpu", video_every=0, eval_episodes=0
)


class Signalled(tr.envs.CartPole):
    """Somebody sends a signal in its third phase."""

    number = 0
    steps = 0

    def step(self, *args):  # type: ignore[no-untyped-def]
        Signalled.steps += 1
        if Signalled.steps == 20:
            os.kill(os.getpid(), Signalled.number)
        return super().step(*args)


@pytest.mark.parametrize("number", [*STOPS, *NOTICES])
def test_a_signal_finishes_the_phase_and_saves(number: int, tmp_path: Path) -> None:
    Signalled.number, Signalled.steps = number, 0
    before = signal.getsignal(number)
    agent = tr.PPO(Signalled, **SMALL)  # type: ignore[arg-type]
    outcome = agent.train(run_dir=tmp_path / "run", quiet=True)
    assert (outcome.interrupted, outcome.unsaved) == (number, None)
    assert signal.getsignal(number) == before
    loaded = tr.load(tmp_path / "run", env=Signalled)
    assert 0 < loaded.steps == agent.steps < 160
    assert loaded.learn(quiet=True).steps == 160


def test_a_signal_that_somebody_else_uses_is_left_to_them() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGUSR1)
        assert (received, interrupts.received) == ([signal.SIGUSR1], None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_first_signal_is_a_request_and_the_second_one_counts() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert interrupts.received is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_whoever_waits_further_out_receives_the_signal_too() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as outer:
        with Interrupts() as inner, pytest.raises(Interrupted, match="SIGTERM"), inner.raised(), inner.deferred():
            signal.raise_signal(signal.SIGTERM)
        assert (inner.received, outer.received) == (signal.SIGTERM, signal.SIGTERM)
        with pytest.raises(Interrupted), outer.raised():
            pytest.fail("what comes later is not begun")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """As in a process of the command line's own, for the duration of a test."""
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    before = signal.signal(signal.SIGINT, cli.InterruptHandler())
    yield ends
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_raised_once(leaving: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for _ in range(5):
        signal.raise_signal(signal.SIGINT)
    assert leaving == []
    monkeypatch.setattr(cli, "EXIT_SECONDS", 0.0)
    signal.raise_signal(signal.SIGINT)
    assert leaving == [130]


def test_ctrl_c_waits_for_an_import(leaving: list[int]) -> None:
    done: list[str] = []

    def load() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            done.append("swallowed")
        done.append("loaded")

    with pytest.raises(KeyboardInterrupt):
        cli.call_with_sigint_deferred(load)
    assert done == ["loaded"]


def test_ctrl_c_held_down_ends_training_without_a_traceback(tmp_path: Path) -> None:
    words = ["train", "CartPole-v1", "--total-timesteps", "1000000000", "--run-dir", "run", "--video-every", "0"]
    command = [sys.executable, "-m", "tightrope", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.003)
        process.kill()
        said = process.communicate()[1]
    assert process.returncode in (130, -signal.SIGINT)  # Python itself, in its last moments, leaves it to the system
    assert "tightrope: interrupted" in said
    assert "Traceback" not in said
    assert "ignored" not in said


def test_a_long_phase_is_said_to_be_finished_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tightrope.training.signals.PATIENCE", 0.05)
    with Interrupts():
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert capsys.readouterr().err == ""  # it was over in no time
    with Interrupts(), Interrupts():
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
    assert capsys.readouterr().err.count("SIGTERM received: stopping after the current phase") == 1
