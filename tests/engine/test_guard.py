"""A loop of one's own stops where a phase did not stay finite, as `learn` does, and the state is that from before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from run_helpers import AGENTS, Spoiled, assert_same_state, state_after
from torch import Tensor

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.algorithms.ppo import PPOConfig, ppo, start
from tightrope.engine import unguarded
from tightrope.models import NetworkConfig, actor_critic

PHASES = 6
SETTINGS: dict[str, Any] = dict(num_steps=8, total_timesteps=32 * PHASES, seed=3)
OWN: dict[str, dict[str, Any]] = {"ppo": {"norm_reward": False}, "vpg": {"full_reset": False, "baseline": "critic"}}


def agent_of(algo: str, **changed: Any) -> tr.Agent:
    kind = type("Kind", (Spoiled,), changed)
    return AGENTS[algo](kind(4), **SETTINGS, **OWN[algo])


def phases_of(agent: tr.Agent) -> Any:
    return ALGORITHMS[agent.algo].loop(agent.state, agent.config.algorithm)


@pytest.mark.parametrize("algo", AGENTS)
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "env gave reward nan at env 3, step 3"),
        ({"value": float("inf")}, "env gave reward inf at env 3, step 3"),
        ({"what": "observation"}, "env gave observation nan at env 3, step 3 (entry 1)"),
        ({"value": 1e38}, "loss"),  # finite, but not its square
    ],
)
def test_the_first_bad_tensor_is_named_and_the_state_is_that_before(
    algo: str, changed: dict[str, Any], words: str
) -> None:
    agent, seen = agent_of(algo, **changed), [0]

    def loop() -> None:
        for _ in phases_of(agent):
            seen[0] += 1

    with pytest.raises(tr.NotFinite) as error:
        loop()
    assert str(error.value).startswith(f"phase 3 is not finite: {words}")
    assert "\n" not in str(error.value)
    assert seen[0] == agent.state.phase == 2, "the bad phase is not handed out"
    assert_same_state(agent, state_after(2, agent_of(algo, **changed)))


@pytest.mark.parametrize("bad", [1, 2, 5, PHASES])
def test_metrics_read_late_lead_back_to_the_right_phase(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, where the next phase has been run by the time that the bad one is known."""
    monkeypatch.setattr("tightrope.engine.guard.lateness", lambda env: 1)
    agent = agent_of("ppo", at=8 * (bad - 1) + 3)
    with pytest.raises(tr.NotFinite, match=f"phase {bad} is not finite: reward and"):
        list(phases_of(agent))
    assert_same_state(agent, state_after(bad - 1, agent_of("ppo", at=8 * (bad - 1) + 3)))


def test_a_loop_that_is_left_is_looked_at_once_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tightrope.engine.guard.lateness", lambda env: 1)
    agent = agent_of("ppo")
    for _ in phases_of(agent):
        if agent.state.phase == 3:  # which is bad, as nobody knows yet
            break
    assert "warning: phase 3 is not finite: reward" in capsys.readouterr().err
    assert agent.state.phase == 2
    assert torch.isfinite(agent.state.optimizer.flat).all()


def test_what_one_changes_between_phases_is_kept() -> None:
    agent = agent_of("ppo")

    def loop() -> None:
        for _ in phases_of(agent):
            agent.state.policy.head.log_std.data.fill_(-1.25)  # type: ignore[operator, union-attr]

    with pytest.raises(tr.NotFinite):
        loop()
    assert (agent.state.policy.head.log_std == -1.25).all()


def test_whatever_breaks_within_a_phase_leaves_the_state_from_before_it() -> None:
    class Breaks(tr.envs.Pendulum):
        pure, stepped = False, 0

        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            type(self).stepped += len(state) == 4
            if self.stepped == 20:
                raise KeyboardInterrupt
            return super().reward(state, action, next_state)

    agent = tr.PPO(Breaks(4), **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        list(phases_of(agent))
    assert agent.state.phase == 2
    assert_same_state(agent, state_after(2, tr.PPO(tr.envs.Pendulum(4), **SETTINGS)))


def test_without_an_agent_it_is_the_same() -> None:
    config = PPOConfig(num_envs=4, num_steps=8, total_timesteps=32 * PHASES)
    env = Spoiled(4)
    state = start(env, actor_critic(env.observation, env.action, NetworkConfig()), config, seed=1)
    with pytest.raises(
        tr.NotFinite, match=r"phase 3 is not finite: env gave reward nan at env 3, step 3; the state is"
    ):
        list(ppo(state, config))
    assert state.phase == 2


@pytest.mark.parametrize("algo", AGENTS)
@pytest.mark.parametrize("late", [0, 1])
def test_a_guard_changes_no_number(algo: str, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.engine.guard.lateness", lambda env: late)
    one, other = (agent_of(algo, at=10**6) for _ in range(2))
    for _ in unguarded(ALGORITHMS[algo].loop)(one.state, one.config.algorithm):
        pass
    assert len(list(phases_of(other))) == PHASES
    assert_same_state(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("accelerate", ["eager", "graph"])
def test_on_a_device_it_is_read_late_and_the_state_is_that_before(accelerate: str) -> None:
    agent = tr.PPO(Spoiled(4, "cuda"), **SETTINGS, accelerate=accelerate)
    with pytest.raises(tr.NotFinite, match="phase 3 is not finite: reward"):
        list(phases_of(agent))
    assert_same_state(agent, state_after(2, tr.PPO(Spoiled(4, "cuda"), **SETTINGS, accelerate=accelerate)))
