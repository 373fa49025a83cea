"""What `tightrope bench` measures adds up, and measuring leaves the code as it was."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tightrope.engine.rollout_policy import RecordedPolicy
from tightrope.envs import CartPole
from tightrope.tools.bench import Marks, measure

SMALL: dict[str, Any] = dict(num_envs=8, num_steps=8, num_minibatches=2, update_epochs=1, device="cpu")


@pytest.mark.parametrize(("algo", "settings"), [("ppo", SMALL), ("vpg", dict(num_envs=8, num_steps=16, device="cpu"))])
def test_a_phase_is_split_into_its_parts(algo: str, settings: dict[str, Any]) -> None:
    found = measure("CartPole-v1", algo, settings, seconds=0.1)
    assert set(found.split) == {"environment", "policy", "advantages", "learning", "rest"}
    assert sum(found.split.values()) == pytest.approx(1)
    assert min(found.split[part] for part in ("environment", "policy", "learning")) > 0.02
    assert found.steps_per_second > 100
    assert found.launches > 100
    assert found.syncs == found.graphs == 0


@pytest.mark.parametrize(
    ("owner", "method", "part"), [(CartPole, "step", "environment"), (RecordedPolicy, "choose", "policy")]
)
def test_what_is_slow_shows(owner: type[Any], method: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(owner, method)

    def slow(self: Any, *args: Any) -> Any:
        time.sleep(0.01)
        return original(self, *args)

    monkeypatch.setattr(owner, method, slow)
    found = measure("CartPole-v1", "ppo", SMALL, seconds=0.1)
    assert found.split[part] > 0.7
    assert found.phase > 0.08


def test_steps_are_those_that_were_taken() -> None:
    """Rollouts of VPG end early on the CPU."""
    found = measure("CartPole-v1", "vpg", dict(num_envs=8, num_steps=500, device="cpu"), seconds=0.2)
    assert found.steps_per_second < 0.7 * found.config.algorithm.batch_size / found.phase


def test_time_belongs_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr("tightrope.tools.bench.time.perf_counter", lambda: clock[0])
    marks = Marks(torch.device("cpu"), in_graphs=True)
    inner = marks.around("inner", lambda: wait(3))

    def work() -> None:
        wait(1)
        inner()
        wait(1)

    marks.around("outer", work)()
    assert marks.totals() == {"inner": 3, "outer": 2}


def test_the_command_prints_a_row_per_size_and_writes_a_trace(
    tightrope: Callable[..., Any], own_directory: Path
) -> None:
    flags = "--num-envs 4 8 --num-steps 8 --num-minibatches 2 --seconds 0.05 --device cpu --profile"
    done = tightrope("bench CartPole-v1", flags)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line.split()[:3] for line in lines if " x " in line and "ms" in line] == [["4", "x", "8"], ["8", "x", "8"]]
    trace = json.loads((own_directory / "trace-CartPole-v1-4-auto.json").read_text())
    assert any("aten::" in event.get("name", "") for event in trace["traceEvents"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "bench needs one env"),
        ("CartPole-v1 --seconds 0", "seconds 0 is invalid"),
        ("CartPole-v1 --accelerate fast", "accelerate 'fast' is not a choice"),
        ("CartPole-v1 --num-envs 0", "num_envs 0 is too small"),
        ("CartPole-v1 --lr 1", "learning_rate"),
        ("CartPole-v1 --total-timesteps 5", "total_timesteps has no effect"),
        ("nowhere:Nothing", "cannot be imported"),
        ("CartPole-v1 --accelerate graph --device cpu", "accelerate graph needs a CUDA device"),
    ],
)
def test_mistakes_are_one_line(words: str, said: str, tightrope: Callable[..., Any]) -> None:
    done = tightrope("bench", words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


@pytest.mark.gpu
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("mode", ["eager", "graph", "max"])
def test_on_a_gpu(mode: str) -> None:
    found = measure("CartPole-v1", "ppo", {**SMALL, "device": "cuda", "accelerate": mode}, seconds=0.1)
    assert sum(found.split.values()) == pytest.approx(1)
    assert found.graphs == (0 if mode == "eager" else 1)
    assert found.syncs == 0
    assert (found.launches < 40) == (mode != "eager")
