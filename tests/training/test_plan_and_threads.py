"""The plan that is printed before training, and the number of threads it settles on."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import tightrope as tr
from tightrope.engine import choose_threads, threads
from tightrope.engine.threads import threads_for_acting
from tightrope.training.plan import TrainingPlan, plan

RULE = import_module("tightrope.engine.threads")  # which has a class of its name beside it


def plan_of(cls: type[tr.Agent], **settings: Any) -> TrainingPlan:
    agent = cls("CartPole-v1", device="cpu", **settings)
    return plan(agent.state, agent.config)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(RULE, "cpu_limit", lambda: None)


def test_the_numbers_of_a_ppo_plan() -> None:
    p = plan_of(
        tr.PPO, num_envs=6, num_steps=50, num_minibatches=3, update_epochs=5, total_timesteps=1000, hidden_sizes=(8, 4)
    )
    assert (p.phases, p.batch, p.minibatch, p.steps) == (3, 300, 100, 900)
    assert p.updates == 3 * 3 * 5
    trunk = (4 * 8 + 8) + (8 * 4 + 4)
    assert p.parameters == 2 * trunk + (4 * 2 + 2) + (4 + 1)
    assert (p.device, p.threads) == ("cpu", 1)


def test_the_numbers_of_a_vpg_plan() -> None:
    p = plan_of(
        tr.VPG, num_envs=6, num_steps=50, num_batches=3, rollout_uses=2, use_importance_weights=True,
        total_timesteps=1e4,
    )  # fmt: skip
    assert (p.phases, p.batch, p.minibatch, p.steps, p.updates) == (33, 300, 100, 9900, 33 * 6)
    assert p.parameters == (4 * 120 + 120) + (120 * 84 + 84) + (84 * 2 + 2)


@pytest.mark.parametrize(
    ("backend", "has_gpu", "said"), [("gymnasium", True, True), ("gymnasium", False, False), ("tensor", True, False)]
)
def test_the_plan_says_why_a_gpu_is_not_used(
    backend: str, has_gpu: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tr.PPO("Acrobot-v1", num_envs=4, device="cpu", backend=backend)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert ("faster than cuda" in plan(agent.state, agent.config).lines()[0]) == said


def test_a_plan_counts_from_where_the_run_stands() -> None:
    agent = tr.PPO("CartPole-v1", num_envs=4, num_steps=8, total_timesteps=320, device="cpu")
    agent.learn(96, quiet=True)
    p = plan(agent.state, agent.config.changed(total_timesteps=320))
    assert (p.phases, p.steps) == (7, 224)


def test_groups_are_said() -> None:
    agent = tr.PPO("Acrobot-v1", num_envs=4, device="cpu", backend="gymnasium")
    assert " by gymnasium (set" in plan(agent.state, agent.config).engine
    agent.state.env.groups = 2
    assert plan(agent.state, agent.config).engine == "4 of Acrobot-v1 by gymnasium in 2 groups (set by backend)"


def test_every_number_is_said() -> None:
    p = plan_of(tr.PPO, num_envs=64, num_steps=64, num_minibatches=4, update_epochs=4, total_timesteps=1e6)
    line, network, environments = p.lines()
    layers = "4 -> 32 tanh -> 32 tanh ->"
    assert network == f"network: actor {layers} 2 (1,282 parameters); critic {layers} 1 (1,249 parameters)"
    assert environments == "environments: 64 of CartPole-v1 by tensor (it runs on the device)"
    for part in (
        "244 phases", "4,096 steps", "999,424 steps", "3,904 updates", "1,024", f"{p.parameters:,}", "cpu", "1 thread",
    ):  # fmt: skip
        assert part in line
    assert "1 threads" not in line


@pytest.mark.parametrize(
    ("cls", "settings", "few"),
    [
        (tr.PPO, dict(num_envs=2048, num_steps=16, total_timesteps=1e5), True),  # three phases
        (tr.PPO, dict(num_envs=8, num_steps=128, total_timesteps=1e5), False),
        (tr.VPG, dict(num_envs=500, num_steps=100, total_timesteps=1e5), True),  # two updates
        (tr.VPG, dict(num_envs=32, num_steps=100, total_timesteps=1e5), False),
        (tr.PPO, dict(num_envs=4, num_steps=8, num_minibatches=1, update_epochs=1, total_timesteps=32 * 15), True),
    ],
)
def test_a_plan_of_too_few_updates_warns(cls: type[tr.Agent], settings: dict[str, Any], few: bool) -> None:
    if cls is tr.PPO:
        settings = {"num_minibatches": 4, "update_epochs": 4, **settings}
    p = plan_of(cls, **settings)
    assert (p.warning is not None) is few
    assert len(p.lines()) == 3 + few
    if p.warning is not None:
        assert p.lines()[3] == f"warning: {p.warning}"
        for part in (f"{p.updates} updates", "total_timesteps", f"num_envs {settings['num_envs']}", "raise"):
            assert part in p.warning


@pytest.mark.usefixtures("eight_cores")
def test_small_networks_get_one_thread_and_large_ones_every_core() -> None:
    assert choose_threads(nn.Linear(64, 64), 512) == 1
    assert choose_threads(nn.Linear(4096, 4096), 65_536) == 8
    assert choose_threads(nn.Conv2d(4, 32, 8), 256) == 8


@pytest.mark.usefixtures("eight_cores")
def test_runs_side_by_side_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Conv2d(4, 32, 8)
    assert [choose_threads(network, 256, jobs) for jobs in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    monkeypatch.setattr(RULE, "world", lambda: SimpleNamespace(local_size=2))
    assert [choose_threads(network, 256, jobs) for jobs in (1, 2, 3)] == [4, 2, 1]


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("limit", "count"), [(2.5, 2), (0.5, 1), (64.0, 8), (None, 8)])
def test_a_limit_on_the_time_of_cores_counts_as_fewer_cores(
    limit: float | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RULE, "cpu_limit", lambda: limit)
    assert choose_threads(nn.Conv2d(4, 32, 8), 256) == count


@pytest.mark.parametrize(
    ("before", "policy", "expected"),
    [("", None, "PASSIVE"), ("", "ACTIVE", "ACTIVE"), ("import sys; sys.modules['torch'] = sys; ", None, "None")],
)
def test_threads_that_wait_leave_their_core_to_others(before: str, policy: str | None, expected: str) -> None:
    """Two threads that spin are several times slower than one where other processes want the cores."""
    said = subprocess.run(
        [sys.executable, "-c", f"{before}import tightrope, os; print(os.environ.get('OMP_WAIT_POLICY'))"],
        env={"PYTHONPATH": str(Path(tr.__file__).parents[1]), "PATH": "", **({"OMP_WAIT_POLICY": policy} if policy else {})},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout.strip() == expected


@pytest.mark.parametrize(
    ("threads", "policy", "load", "warns"),
    [(2, "", 3.0, True), (2, "passive", 3.0, False), (1, "", 3.0, False), (2, "", 0.1, False)],
)
def test_spinning_threads_on_a_busy_machine_are_a_warning(
    threads: int, policy: str, load: float, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("tightrope.training.plan.cores", lambda: 2)
    p = plan_of(tr.PPO, threads=threads, num_envs=8, num_steps=128, total_timesteps=1e5)
    assert (p.warning is not None) is warns
    if p.warning is not None:
        assert all(part in p.warning for part in ("threads 2", "load 3.0", "OMP_WAIT_POLICY=PASSIVE"))


def test_one_thread_where_the_number_of_cores_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert choose_threads(nn.Linear(4096, 4096), 65_536) == 1


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize("env", list(tr.envs.ENVS))
def test_every_shipped_environment_runs_on_one_thread_at_ordinary_sizes(env: str) -> None:
    agent = tr.PPO(env, device="cpu", num_envs=64, num_steps=64, num_minibatches=4, total_timesteps=1e6)
    assert plan(agent.state, agent.config).threads == 1


@pytest.mark.usefixtures("eight_cores")
def test_the_setting_wins_over_the_rule() -> None:
    p = plan_of(tr.PPO, threads=3)
    assert p.threads == 3
    assert "3 threads" in p.lines()[0]


def test_threads_are_set_inside_and_restored_outside() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


class Looks(tr.envs.CartPole):
    """Notes how many threads torch may use while it is stepped."""

    seen: ClassVar[set[int]] = set()  # of all copies

    def advance(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        self.seen.add(torch.get_num_threads())
        return super().advance(state, action)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """On a machine where torch starts out with two threads. (Really using them would take seconds.)"""
    count = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: count[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: count.__setitem__(0, n))
    Looks.seen.clear()
    return Looks(num_envs=40)


@pytest.mark.parametrize("setting", [None, 3])
def test_training_uses_the_threads_of_the_plan_and_gives_them_back(looks: Looks, setting: int | None) -> None:
    agent = tr.PPO(looks, num_steps=8, total_timesteps=640, threads=setting)
    looks.seen.clear()
    agent.learn(quiet=True)
    assert looks.seen == {setting or 1}
    assert torch.get_num_threads() == 2


def test_evaluation_does_too(looks: Looks) -> None:
    agent = tr.PPO(looks, num_steps=8, total_timesteps=640)
    looks.seen.clear()
    agent.evaluate(3)
    assert looks.seen == {1}, "a thousand episodes take 25 times as long on two threads as on one"
    assert torch.get_num_threads() == 2


def test_a_few_rows_are_acted_for_in_one_thread() -> None:
    with threads(3):
        assert threads_for_acting(8) == 1
        assert threads_for_acting(1024) == 3


class Noisy(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.randn_like(x))


class Branching(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (None, None),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)), None),
        (Noisy, "draws random numbers"),
        (Branching, "looks at numbers"),
    ],
    ids=["built in", "own", "random", "host"],
)
def test_the_plan_says_in_one_line_what_is_not_recorded(network: Any, why: str | None) -> None:
    lines = [line for line in plan_of(tr.PPO, network=network).lines() if "in plain PyTorch" in line]
    assert len(lines) == (why is not None)
    assert why is None or why in lines[0]
