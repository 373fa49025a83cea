"""What the tests of gradients beside this file share: policies, batches, a user's network and loss, and the comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tightrope.engine import Optimizer, Runtime
from tightrope.engine.optimize import autograd
from tightrope.models import ActorCritic, NetworkConfig, actor_critic
from tightrope.types import Batch, Box, Composite, Discrete, MultiDiscrete, Spec, Trajectories

CHOICE, TORQUE, SEVERAL, SHOWN = Discrete(4), Box((3,), -2.0, 2.0), MultiDiscrete((2, 3)), Box((2, 3))
LIFT = Composite((("kind", CHOICE), ("force", TORQUE), ("hook", SEVERAL)), conditions=(("force", "kind", (1, 2)),))
PARTS = Composite((("speed", Box((3,))), ("gear", Discrete(3))))
RUNTIME = Runtime()


class Own(nn.Module):
    """A user's network of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 8)])
        self.norm, self.scale = nn.LayerNorm(16), 1.0

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        x = torch.tanh(first(x.flatten(1)))
        return nn.functional.gelu(third(self.norm(x + second(x).relu()))) * self.scale


def a_policy(
    action: Spec, observation: Spec = SHOWN, network: nn.Module | None = None, critic: bool = True, **config: Any
) -> ActorCritic:
    torch.manual_seed(0)
    policy = actor_critic(observation, action, NetworkConfig(**{"hidden_sizes": (16, 8)} | config), critic, network)
    with torch.no_grad():
        for name, p in policy.named_parameters():  # away from zero biases and a flat head
            p.add_((0.01 if p.numel() > 10_000 or "log_std_layer" in name else 0.3) * torch.randn_like(p))
    if policy.normalizer is not None:
        policy.normalizer.merge(3 * torch.randn(100, *observation.shape) + 1)
    return policy


def some_obs(observation: Spec, rows: int) -> Tensor:
    if isinstance(observation, Box):
        scale = 255 * torch.rand(rows, *observation.shape) if observation.dtype == torch.uint8 else None
        return 2 * torch.randn(rows, *observation.shape) if scale is None else scale.to(torch.uint8)
    if isinstance(observation, Composite):
        return torch.cat([torch.randn(rows, 3), torch.randint(3, (rows, 1)).float()], 1)
    return torch.randint(5, (rows,))


def a_batch(policy: ActorCritic, observation: Spec = SHOWN, rows: int = 64, kind: type[Batch] = Batch) -> Any:
    """Ratios on both sides of the clip interval, advantages of both signs."""
    like = next(policy.parameters())
    obs = some_obs(observation, rows).to(like.device, like.dtype if observation is SHOWN else observation.dtype)
    numbers = torch.randn(4, rows).to(like.device)
    with torch.no_grad():
        distribution, value = policy(obs)
        action = distribution.sample(policy.head.noise((rows,), torch.Generator().manual_seed(3)).to(like.device))
        log_prob = distribution.log_prob(action) + 0.4 * numbers[0]
    columns = obs, action, log_prob, value + 0.4 * numbers[1], numbers[2], numbers[3]
    return kind(*columns, *([torch.rand(rows).to(like.device) < 0.8] if kind is Trajectories else []))


def held_to_autograd(
    loss: Any, policy: ActorCritic, batch: Any, optimizer: Optimizer, runtime: Runtime = RUNTIME
) -> None:
    """The gradient and the terms, to 1e-6 of their norms or what the last bit of an observation does to them."""
    nudged = replace(batch, obs=batch.obs * (1 + 1e-7) if batch.obs.is_floating_point() else batch.obs)
    autograd(loss, policy, nudged, optimizer)
    other = optimizer.grad.clone()
    expected_terms = torch.stack([*autograd(loss, policy, batch, optimizer)])
    expected = optimizer.grad.clone()
    optimizer.grad.fill_(torch.nan)  # every entry must be written
    terms = runtime.backward(loss, policy, batch, optimizer)
    assert type(terms) is type(loss(policy, batch)[1])
    assert not any(term.requires_grad for term in terms)
    tolerance = 1e-6
    assert (optimizer.grad - expected).norm() <= tolerance * expected.norm() + 5 * (other - expected).norm()
    assert (torch.stack([*terms]) - expected_terms).norm() <= tolerance * (expected_terms.norm() + 1)


class OwnTerms(NamedTuple):
    total: Tensor
    spread: Tensor


def own_loss(policy: ActorCritic, batch: Batch) -> tuple[Tensor, OwnTerms]:
    """A user's loss, of no class and with terms of its own."""
    distribution, value = policy(batch.obs)
    weight = torch.softmax(batch.advantage, 0)
    spread = torch.logsumexp(value, 0) - value.mean()
    total = (
        -(weight * distribution.log_prob(batch.action)).sum()
        + nn.functional.smooth_l1_loss(value, batch.target)
        + spread
    )
    return total, OwnTerms(total.detach(), spread.detach())
