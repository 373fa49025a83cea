"""A network of a user's own: made or copied for each agent, never trained in place."""

from __future__ import annotations

import copy
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import refusal
from torch import Tensor, nn

import tightrope as tr
from tightrope.training.commands import command, resume_command, usual_settings

SMALL: dict[str, Any] = dict(num_envs=2, num_steps=8, num_minibatches=2, total_timesteps=64, device="cpu")


class Net(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs).tanh()


class Locked(Net):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def weights(agent: tr.Agent) -> Tensor:
    return agent.policy.actor.network.layer.weight.detach().clone()


def trained(network: Any, seed: int = 1) -> tr.Agent:
    return tr.PPO("CartPole-v1", **SMALL, network=network, seed=seed).learn(quiet=True)


def refused(network: Any) -> str:
    return refusal(tr.PPO, "CartPole-v1", **SMALL, network=network)


def test_training_leaves_the_users_instance_alone() -> None:
    net = Net().train()
    before = copy.deepcopy(net.state_dict())
    agent = trained(net)
    assert not torch.equal(weights(agent), before["layer.weight"]), "nothing was learned"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())


def test_two_agents_from_one_instance_are_independent() -> None:
    net = Net()
    first = trained(net)
    learned = weights(first)
    second = tr.PPO("CartPole-v1", **SMALL, network=net, seed=2)
    assert torch.equal(weights(second), net.layer.weight), "the second starts from what the first has learned"
    second.learn(quiet=True)
    assert torch.equal(weights(first), learned), "the second trains the first one's network"
    third = tr.PPO("CartPole-v1", **SMALL, network=first.policy.actor.network)
    assert torch.equal(weights(third), learned)
    third.learn(quiet=True)
    assert torch.equal(weights(first), learned), "the third does"


@pytest.mark.parametrize("kind", [Net, f"{__name__}:Net", lambda: Net(5), partial(Net, 7)])
def test_what_makes_a_network_makes_it_from_the_seed(kind: Any) -> None:
    def start(seed: int) -> Tensor:
        return weights(tr.PPO("CartPole-v1", **SMALL, network=kind, seed=seed))

    one = start(1)
    torch.randn(3)  # whatever else was drawn meanwhile
    assert torch.equal(one, start(1))
    assert not torch.equal(one, start(2))


def test_a_function_that_returns_the_same_network_each_time() -> None:
    net = Net()
    before = net.layer.weight.detach().clone()
    trained(lambda: net)
    assert torch.equal(net.layer.weight, before)


def test_parts_that_are_shared_within_a_network_stay_shared() -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.again = self.layer

    network = tr.PPO("CartPole-v1", **SMALL, network=Tied()).policy.actor.network
    assert network.again is network.layer


def test_what_is_no_network_is_one_line() -> None:
    for wrong in (3, [Net()], {"layers": 2}, lambda: 3):
        assert "is not an nn.Module" in refused(wrong)
    assert "lambda: Net(64)" in refused(lambda width: Net(width))
    assert "network Locked cannot be copied" in refused(Locked())
    assert "Give its class instead" in refused(Locked())
    trained(Locked)


def test_a_run_with_a_function_asks_for_it_when_loading(tmp_path: Any) -> None:
    tr.PPO("CartPole-v1", **SMALL, network=lambda: Net(5)).save(tmp_path / "run")
    with pytest.raises(tr.UsageError, match=r"tr.load\(path, network=...\)"):
        tr.load(tmp_path / "run")
    assert tr.load(tmp_path / "run", network=lambda: Net(5)).steps == 0


def make_net() -> Net:
    return Net()


@pytest.mark.parametrize(
    ("network", "named"),
    [(Net, True), (Net(), True), (make_net, False), (lambda: Net(), False), (partial(Net, 5), False)],
)
def test_a_command_that_is_suggested_is_one_that_works(network: Any, named: bool) -> None:
    config = tr.PPO("CartPole-v1", **SMALL, network=network).config
    resume, again = resume_command(Path("run"), config), command(config, usual_settings(config))
    if named:
        assert resume == f"tightrope resume run --network {__name__}:Net"
        assert f"--network {__name__}:Net" in again
    else:
        assert resume == 'tr.load("run", network=...).learn()'
        assert again.startswith("tr.PPO('CartPole-v1', ")
