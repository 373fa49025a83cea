"""A state that was kept comes back bit for bit, and the run goes on from it as it went on the first time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from run_helpers import AGENTS, advance, assert_same_state
from torch import Tensor

import tightrope as tr
from tightrope.engine import Snapshot

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=32 * 20, seed=3, device="cpu")


def agent_of(algo: str, env: Any, **settings: Any) -> tr.Agent:
    given = {k: v for k, v in SMALL.items() if isinstance(env, str) or k not in ("num_envs", "device")}
    return AGENTS[algo](env, **given, **settings)


class Rebinding(tr.envs.CartPole):
    """Replaces its state in every step, and keeps a tensor of its own that it saves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wind = torch.zeros(self.num_envs)

    def step(self, action: Tensor, noise: Tensor | None = None) -> tr.types.Step:
        self.state, self.wind = self.state.clone(), self.wind + 1
        return super().step(action, noise)

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {"wind": self.wind.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self.wind = state["wind"].clone()


@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {}),
        ("ppo", "Pendulum-v1", {"norm_obs": True, "norm_reward": True, "anneal_clip": True}),
        ("ppo", "Rebinding", {}),
        ("vpg", "CartPole-v1", {"baseline": "critic"}),
        ("vpg", "CartPole-v1", {"baseline": "none", "full_reset": False}),
    ],
)
def test_what_was_kept_comes_back_and_leads_to_the_same(algo: str, env: str, settings: dict[str, Any]) -> None:
    agent = agent_of(algo, Rebinding(4) if env == "Rebinding" else env, **settings)
    snapshot = Snapshot(agent.state)
    assert snapshot.phase is None
    advance(agent, 2)
    agent.state.best_score = 7.5
    before = agent.state.state_dict()
    snapshot.take()
    assert snapshot.phase == 2
    advance(agent, 3)
    after = agent.state.state_dict()
    agent.state.best_score = 9.0
    assert not torch.equal(after["optimizer.first_moment"], before["optimizer.first_moment"])
    snapshot.restore()
    assert_same_state(before, agent, but=())
    assert (agent.state.phase, agent.state.best_score) == (2, 7.5)
    advance(agent, 3)
    assert_same_state(after, agent, but=())


def test_it_holds_all_that_is_saved() -> None:
    """With everything spoiled, what comes back is everything."""
    agent = agent_of("ppo", "Pendulum-v1", norm_obs=True, norm_reward=True)
    advance(agent, 1)
    before = agent.state.state_dict()
    snapshot = Snapshot(agent.state)
    snapshot.take()
    state = agent.state
    policy = (*state.policy.parameters(), *state.policy.buffers())
    for tensor in (*policy, state.obs, state.clip_coef, state.discounted_return):
        tensor.data.fill_(float("nan") if tensor.is_floating_point() else 77)
    for name in ("first_moment", "second_moment", "step_count", "learning_rate"):
        getattr(state.optimizer, name).fill_(float("nan"))
    for name in ("state", "clock", "_running_return", "_finished"):
        getattr(state.env, name).fill_(77)
    state.phase = state.steps = 77
    snapshot.restore()
    assert_same_state(before, agent, but=())
    assert state.clip_coef == pytest.approx(0.2)


def test_tensors_in_any_memory_come_back() -> None:
    agent = agent_of("ppo", "CartPole-v1")
    policy, order = agent.state.policy, torch.arange(6.0).view(2, 3)
    policy.register_buffer("across", order.clone().t())
    policy.register_buffer("repeated", torch.ones(1).expand(4))
    policy.register_buffer("narrow", torch.ones(2, dtype=torch.bfloat16))
    snapshot = Snapshot(agent.state)
    snapshot.take()
    policy.across.zero_()
    policy.narrow.zero_()
    snapshot.restore()
    assert torch.equal(policy.across, order.t())
    assert torch.equal(policy.narrow, torch.ones(2, dtype=torch.bfloat16))


def test_it_writes_in_place() -> None:
    agent = agent_of("ppo", "CartPole-v1")
    held = [agent.state.optimizer.flat, agent.state.obs, *agent.state.policy.parameters()]
    addresses = [tensor.data_ptr() for tensor in held]
    snapshot = Snapshot(agent.state)
    snapshot.take()
    advance(agent, 1)
    snapshot.restore()
    assert addresses == [t.data_ptr() for t in held]


@pytest.mark.gpu
def test_it_comes_back_on_a_device_under_graphs() -> None:
    agent = tr.PPO("CartPole-v1", **{**SMALL, "device": "cuda"})
    snapshot = Snapshot(agent.state)
    advance(agent, 3)
    before = agent.state.state_dict()
    snapshot.take()
    advance(agent, 2)
    after = agent.state.state_dict()
    snapshot.restore()
    assert_same_state(before, agent, but=())
    advance(agent, 2)
    assert agent.state.runtime.graphs
    assert_same_state(after, agent, but=())
