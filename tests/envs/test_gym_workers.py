"""Environments in processes that do not answer: which one it is, how long anybody waits, and that nobody is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv

import tightrope as tr
from tightrope import processes
from tightrope.envs.adapters import gym_workers
from tightrope.envs.adapters.gym import from_object
from tightrope.envs.registry import EnvOptions
from tightrope.errors import EnvError, UsageError
from tightrope.processes import alive, stop_request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, /proc")
ASYNC = EnvOptions(vectorization_mode="async")
SIGTERM = "import signal; print(signal.getsignal(signal.SIGTERM).name)"


class Unpicklable(Exception):
    def __init__(self) -> None:
        self.reason = lambda: None


class Plain(gymnasium.Env[Any, Any]):
    """What is asked of it, it does in a worker only."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.in_worker = multiprocessing.parent_process() is not None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}


class EndlessReset(Plain):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        time.sleep(3600 if self.in_worker else 0)
        return super().reset(**given)


class EndlessMaking(Plain):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(3600 if self.in_worker else 0)


class EndlessClosing(Plain):
    def close(self) -> None:
        time.sleep(3600 if self.in_worker else 0)


class NoLicence(Plain):
    def __init__(self) -> None:
        super().__init__()
        if self.in_worker:
            raise ValueError("no licence\nis left")


class Breaks(Plain):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise Unpicklable


class Words(Plain):
    observation_space = gymnasium.spaces.Text(3)


class Simulator(Plain):
    """Starts a program, and asks it whether it would end if it was asked to."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        heard = subprocess.run([sys.executable, "-S", "-c", SIGTERM], capture_output=True, text=True).stdout.strip()
        return np.zeros(1, np.float32), float(heard == "SIG_DFL"), False, False, {}


def workers() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    before = workers()
    yield
    assert not {pid for pid in workers() - before if alive(pid)}


FORMS: dict[str, Callable[[], Any]] = {
    "ours": lambda: from_object(Plain, 3, "cpu", ASYNC),
    "given": lambda: from_object(AsyncVectorEnv([Plain] * 3), 3),
    "wrapped": lambda: from_object(gymnasium.wrappers.vector.TransformReward(AsyncVectorEnv([Plain] * 3), abs), 3),
}


def stop_one(env: Any, row: int) -> None:
    os.kill(env.engine.unwrapped.processes[row].pid, signal.SIGSTOP)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("signalled", [False, True])
def test_a_worker_that_does_not_answer_is_given_up_by_name(
    form: str, signalled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = FORMS[form]()
    env.reset(seed=1)
    stop_one(env, 1)
    if signalled:
        monkeypatch.setattr(processes, "AFTER_STOP", 0.2)
        monkeypatch.setattr(stop_request, "since", time.monotonic())
    else:
        monkeypatch.setattr(gym_workers, "LIMIT", 0.2)
    with pytest.raises(EnvError, match=r"number 1 failed on action 1: no answer for \d s, its process is stopped$"):
        env.step(torch.tensor([0, 1, 0]))
    env.close()


def test_who_takes_long_is_named_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gym_workers, "NOTICE", 0.1)
    env = FORMS["ours"]()
    env.reset(seed=1)
    stop_one(env, 2)
    process = env.engine.processes[2]
    waker = multiprocessing.get_context("fork").Process(
        target=lambda: (time.sleep(1.5), os.kill(process.pid, signal.SIGCONT)), daemon=True
    )
    waker.start()
    env.step(torch.tensor([0, 1, 0]))
    waker.join()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "number 2 has not answered for 0 s, its process is stopped; after 600 s it is given up" in said[0]
    env.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_for_the_trainer(number: int) -> None:
    mine = signal.getsignal(number)
    env = FORMS["ours"]()
    env.reset(seed=1)
    for process in env.engine.processes:
        os.kill(process.pid, number)
    env.step(torch.tensor([0, 1, 0]))
    assert all(process.is_alive() for process in env.engine.processes)
    assert signal.getsignal(number) is mine, "the trainer itself must hear it"
    env.close()


def test_what_a_worker_starts_can_be_asked_to_end() -> None:
    env = from_object(Simulator, 1, "cpu", ASYNC)
    env.reset(seed=1)
    assert env.step(torch.tensor([0])).reward.item() == 1.0
    env.close()


def test_a_reset_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_workers, "LIMIT", 0.2)
    with pytest.raises(EnvError, match=r"number 0 cannot be made: no answer for \d s, nor from 1 other$"):
        from_object(EndlessReset, 2, "cpu", ASYNC).reset(seed=1)  # whose first reset looks for action masks


def test_making_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_workers, "LIMIT", 0.2)
    with pytest.raises(
        EnvError, match=r"EndlessMaking' number 0 cannot be made: no answer for \d s, nor from 1 other$"
    ):
        from_object(EndlessMaking, 2, "cpu", ASYNC)


def test_making_that_fails_in_a_worker_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"NoLicence' cannot be made: ValueError: no licence is left$"):
        from_object(NoLicence, 2, "cpu", ASYNC)
    assert capfd.readouterr().err == ""


def test_spaces_that_are_not_ours_leave_nobody() -> None:
    with pytest.raises(UsageError):
        from_object(Words, 2, "cpu", ASYNC)


@pytest.mark.parametrize("given", [False, True])
def test_an_exception_that_cannot_be_sent_is_not_waited_for(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_workers, "ERROR_SECONDS", 0.3)
    engine = AsyncVectorEnv([Breaks] * 2) if given else Breaks
    env = from_object(engine, 2, "cpu", EnvOptions() if given else ASYNC)
    again = from_object(engine, 2) if given else None  # the same one
    env.reset(seed=1)
    with pytest.raises(EnvError, match=r"failed on action \[0, 1\]: it raised an exception that cannot be pickled$"):
        env.step(torch.tensor([0, 1]))
    del again


@pytest.mark.parametrize("kind", ["stopped", "endless"])
def test_closing_does_not_wait_for_good(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gym_workers, "CLOSE_SECONDS", 0.3)
    env = from_object(EndlessClosing, 1, "cpu", ASYNC) if kind == "endless" else FORMS["ours"]()
    env.reset(seed=1)
    if kind == "stopped":
        stop_one(env, 0)
    env.close()
    assert "number 0 did not close within 0 s and was killed" in capsys.readouterr().err


class FailsOnceSignalled(Plain):
    """As an environment does whose own programs got the signal, too."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 20:
            os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionError("the simulator has gone")
        return super().step(action)


def test_an_environment_that_fails_after_a_signal_does_not_hide_it(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tr.PPO(FailsOnceSignalled, num_envs=1, num_steps=8, num_minibatches=1, hidden_sizes=(8,), device="cpu")
    with pytest.raises(SystemExit) as leaving:
        agent.learn(64, run_dir=tmp_path)
    assert leaving.value.code == 143
    assert tr.load(tmp_path, env=FailsOnceSignalled).steps == 16
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1
    assert "the last phase is lost, earlier phases are kept: env " in said[0]
    assert "ConnectionError: the simulator has gone" in said[0]
