"""Every runtime against plain autograd, torch's own Adam and the equations: gradients, steps, acting, values, advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from gradient_cases import CHOICE, LIFT, PARTS, SEVERAL, SHOWN, TORQUE, Own, a_batch, a_policy, own_loss
from torch import Tensor, nn

import tightrope as tr
from tightrope.engine import Optimizer, Runtime, draw_noise, moments
from tightrope.engine.optimize import EPS
from tightrope.functional import PPOLoss, VPGLoss, standardize
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Batch, Rollout, Spec, Trajectories

LIMIT = 0.5  # on the norm of the gradient
ON_GPU = pytest.mark.gpu


class Case(NamedTuple):
    loss: Any
    action: Spec = CHOICE
    network: Callable[[], nn.Module] | None = None
    kind: type[Batch] = Batch
    config: Mapping[str, Any] = MappingProxyType({})
    observation: Spec = SHOWN


GROUPS = dict(actor_obs=("speed",), critic_obs=("speed", "gear"), norm_obs=True)
CASES = {
    "ppo": Case(PPOLoss(0.2, 0.5, 0.01, False)),
    "ppo, entropy by schedule": Case(PPOLoss(torch.tensor(0.2), 0.5, torch.tensor(0.05), False)),
    "ppo, continuous, entropy by schedule": Case(PPOLoss(0.2, 0.5, torch.tensor(0.05), True), TORQUE),
    "ppo, continuous": Case(PPOLoss(0.2, 0.5, 0.01, True), TORQUE, config=dict(norm_obs=True)),
    "ppo, shared trunk": Case(PPOLoss(0.2, 0.5, 0.01, False), config=dict(share_trunk=True, activation="relu")),
    "ppo, several choices": Case(PPOLoss(0.2, 0.5, 0.01, False), SEVERAL),
    "ppo, hybrid": Case(PPOLoss(0.2, 0.5, 0.01, True), LIFT, config=dict(norm_obs=True)),
    "vpg, hybrid": Case(VPGLoss(True, 0.2, 0.5, 0.01), LIFT, kind=Trajectories),
    "ppo, own network": Case(PPOLoss(0.2, 0.5, 0.01, False), network=Own),
    "vpg, entropy by schedule": Case(VPGLoss(True, 0.2, 0.5, torch.tensor(0.05)), kind=Trajectories),
    "vpg": Case(VPGLoss(True, 0.2, 0.5, 0.01), kind=Trajectories),
    "own loss": Case(own_loss, TORQUE),
    "ppo, groups": Case(PPOLoss(0.2, 0.5, 0.01, True), TORQUE, config=GROUPS, observation=PARTS),
    "vpg, groups": Case(VPGLoss(True, 0.2, 0.5, 0.01), kind=Trajectories, config=GROUPS, observation=PARTS),
}
RUNTIMES: dict[str, Callable[[], Runtime]] = {
    "recorded": Runtime,
    "recorded, C": lambda: Runtime(compiles_recordings=True),
    "as on a device": lambda: Runtime(on_device=True),
    "compiled": lambda: Runtime("compile"),
    "cuda, eager": lambda: Runtime(device=torch.device("cuda")),
    "cuda, max": lambda: Runtime("max", device=torch.device("cuda")),
}
COMPILED = (
    "ppo, hybrid",
)  # cases that are compiled on the CPU, where each takes a while; the test of coefficients has others
MATRIX = [
    pytest.param(runtime, case, marks=[ON_GPU] if "cuda" in runtime else [])
    for runtime in RUNTIMES
    for case in CASES
    if runtime != "compiled" or case in COMPILED
]


def runtime_of(name: str, request: pytest.FixtureRequest) -> Runtime:
    if "C" in name:
        request.getfixturevalue("c_compiler")
    return RUNTIMES[name]()


def near(a: Tensor, b: Tensor, tolerance: float = 2e-5) -> bool:
    return bool((a - b).norm() <= tolerance * b.norm() + 1e-6)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it compiles
@pytest.mark.parametrize(("runtime_name", "case_name"), MATRIX)
def test_updates_are_those_of_autograd_and_adam(
    request: pytest.FixtureRequest, runtime_name: str, case_name: str
) -> None:
    runtime, case = runtime_of(runtime_name, request), CASES[case_name]
    network = None if case.network is None else case.network()
    policy = a_policy(case.action, case.observation, network, **case.config).to(runtime.device)
    plain, optimizer = deepcopy(policy), Optimizer(policy)
    adam = torch.optim.Adam(plain.parameters(), lr=1e-3, eps=EPS)
    optimizer.learning_rate.fill_(1e-3)
    for _ in range(3):
        batch = a_batch(plain, case.observation, 96, kind=case.kind)
        advantage = standardize(batch.advantage, *moments(batch.advantage))
        with runtime.arithmetic():
            batch.advantage = runtime.standardized(batch.advantage)
            assert near(batch.advantage, advantage)
            terms = runtime.backward(case.loss, policy, batch, optimizer)
            adam.zero_grad()
            total, expected = case.loss(plain, batch)
            total.backward()
            grads = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
            assert near(optimizer.grad, grads)
            assert near(torch.stack([*terms]), torch.stack([*expected]))
            norm = runtime.step(optimizer, LIMIT)
            assert near(norm, nn.utils.clip_grad_norm_(plain.parameters(), LIMIT))
            adam.step()
        for mine, theirs in zip(policy.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it compiles
@pytest.mark.parametrize(
    "runtime_name", [pytest.param(name, marks=[ON_GPU] if "cuda" in name else []) for name in RUNTIMES]
)
@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_coefficients_that_are_tensors_are_read_at_each_update(
    request: pytest.FixtureRequest, runtime_name: str, action: Spec
) -> None:
    runtime = runtime_of(runtime_name, request)
    policy = a_policy(action).to(runtime.device)
    plain, optimizer = deepcopy(policy), Optimizer(policy)
    clip, bonus = (torch.zeros((), device=runtime.device) for _ in range(2))
    loss, batch = PPOLoss(clip, 0.5, bonus, False), a_batch(plain, rows=96)
    for values in ((0.2, 0.5), (0.1, 0.0), (0.3, 2.0)):
        clip.fill_(values[0])
        bonus.fill_(values[1])
        with runtime.arithmetic():
            runtime.backward(loss, policy, batch, optimizer)
        plain.zero_grad()
        total, _ = PPOLoss(values[0], 0.5, values[1], False)(plain, batch)
        total.backward()
        assert near(optimizer.grad, torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None]))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    "runtime_name",
    [pytest.param(name, marks=[ON_GPU] if "cuda" in name else []) for name in RUNTIMES if name != "compiled"],
)
def test_rollouts_are_those_of_the_policy_as_written(
    request: pytest.FixtureRequest, runtime_name: str, share: bool
) -> None:
    runtime = runtime_of(runtime_name, request)
    env = tr.envs.Pendulum(6, str(runtime.device), max_episode_steps=5)
    torch.manual_seed(0)
    policy = actor_critic(env.observation, env.action, NetworkConfig(hidden_sizes=(16,), share_trunk=share))
    policy.to(env.device)
    Optimizer(policy)  # which lays out its parameters
    rollout, obs = Rollout.allocate(16, env), env.reset(seed=3)
    noise = draw_noise(env, policy.head.noise, 16, (1, 1), 0, 0)
    with runtime.arithmetic():
        last, taken = runtime.collect(env, policy, rollout, obs, noise)
        final_value = runtime.final_values(policy, rollout)
    assert taken == 16
    assert torch.isfinite(last).all()
    with torch.no_grad():
        distribution, value = policy(rollout.obs.flatten(0, 1))
        action = distribution.sample(noise.action.flatten(0, 1))
        log_prob = distribution.log_prob(rollout.action.flatten(0, 1))
        beyond = torch.where(rollout.truncated, policy.value(rollout.final_obs.flatten(0, 1)).view(16, 6), 0.0)
    assert rollout.truncated.any()
    for mine, expected in ((rollout.action, action), (rollout.log_prob, log_prob), (rollout.value, value)):
        torch.testing.assert_close(mine.flatten(0, 1), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(final_value, beyond, rtol=1e-4, atol=1e-5)
