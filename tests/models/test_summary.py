"""The line that describes a network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightrope as tr
from tightrope.models.summary import network_summary
from tightrope.types import Box


class Frames(tr.envs.CartPole):
    observation = Box((4, 84, 84), dtype=torch.uint8)

    def observe(self, state: Tensor) -> Tensor:
        return torch.zeros(len(state), 4, 84, 84, dtype=torch.uint8)


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.ReLU())


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (lambda: tr.VPG("CartPole-v1"), "actor 4 -> 120 relu -> 84 relu -> 2 (10,934 parameters), no critic"),
        (
            lambda: tr.PPO("CartPole-v1", share_trunk=True, hidden_sizes=(8,)),
            "shared 4 -> 8 tanh (40 parameters); actor 8 -> 2 (18 parameters); value 8 -> 1 (9 parameters)",
        ),
        (
            lambda: tr.PPO(Frames(2), num_envs=2, num_steps=8, num_minibatches=1),
            "shared 4 channels -> 32 of 8x8 by 4 relu -> 64 of 4x4 by 2 relu -> 64 of 3x3 by 1 relu -> 512 relu "
            "(1,684,128 parameters); actor 512 -> 2 (1,026 parameters); value 512 -> 1 (513 parameters)",
        ),
        (
            lambda: tr.PPO("CartPole-v1", network=Net()),
            "shared Net (40 parameters); actor 8 -> 2 (18 parameters); value 8 -> 1 (9 parameters)",
        ),
        (
            lambda: tr.PPO("CartPole-v1", memory="gru", memory_size=16, hidden_sizes=(8,), share_trunk=True),
            "shared 4 -> 8 tanh -> GRU 16 (1,288 parameters); actor 16 -> 2 (34 parameters); value 16 -> 1 (17 parameters)",
        ),
    ],
)
def test_a_network_in_one_line(agent: Any, said: str) -> None:
    policy = agent().policy
    assert network_summary(policy) == said
    counted = sum(int(part.split("(")[1].split()[0].replace(",", "")) for part in said.split("parameters")[:-1])
    assert counted == sum(p.numel() for p in policy.parameters())
