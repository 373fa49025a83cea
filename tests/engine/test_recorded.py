"""What a loss and a policy give by recordings is what they give as they are written: over losses, heads, networks and types."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradient_cases import (
    CHOICE,
    PARTS,
    RUNTIME,
    SEVERAL,
    SHOWN,
    TORQUE,
    Own,
    a_batch,
    a_policy,
    held_to_autograd,
    own_loss,
    some_obs,
)  # fmt: skip
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms.ppo import ppo
from tightrope.engine import Optimizer, Runtime, gradients
from tightrope.engine.gradients import RecordedGradient
from tightrope.engine.optimize import autograd
from tightrope.engine.recorded import BLOCK, trial_parameters
from tightrope.engine.rollout_policy import RecordedPolicy, recorded_policy
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import ActorCritic, Categorical
from tightrope.types import Batch, Box, Discrete, Spec, Trajectories

both = pytest.mark.parametrize("runtime", [RUNTIME, Runtime(on_device=True)], ids=["recorded", "on a device"])


def recordings(optimizer: Optimizer) -> list[Any]:
    return [found for found in RUNTIME.recorded.kept.values() if found is not None]


LOSSES: dict[str, tuple[Any, type[Batch]]] = {
    "ppo": (PPOLoss(torch.tensor(0.2), 0.5, 0.01, False), Batch),
    "ppo clipped": (PPOLoss(0.1, 0.7, 0.0, True), Batch),
    "vpg": (VPGLoss(False, None, 0.5, 0.01), Trajectories),
    "vpg weighted": (VPGLoss(True, 0.2, 0.0, 0.0), Trajectories),
    "own": (own_loss, Batch),
}
HEADS: dict[str, tuple[Spec, dict[str, Any]]] = {
    "choice": (CHOICE, {}), "torque": (TORQUE, {}), "torque by state": (TORQUE, {"log_std": "state"}), "several": (SEVERAL, {}),
}  # fmt: skip
NETWORKS: dict[str, tuple[Spec, dict[str, Any]]] = {
    "tanh": (SHOWN, {}),
    "relu, shared": (SHOWN, {"activation": "relu", "share_trunk": True}),
    "normalised": (SHOWN, {"norm_obs": True}),
    "own": (SHOWN, {"network": Own}),
}
MORE: dict[str, tuple[Spec, Spec, dict[str, Any]]] = {
    "silu": (CHOICE, SHOWN, {"activation": "silu"}),
    "gelu": (CHOICE, SHOWN, {"activation": "gelu"}),
    "elu": (TORQUE, SHOWN, {"activation": "elu", "norm_obs": True}),
    "whole numbers": (CHOICE, Discrete(5), {}),
    "parts": (TORQUE, PARTS, {"norm_obs": True}),
    "pictures": (CHOICE, Box((1, 36, 36), 0, 255, torch.uint8), {}),
}


def squares(first: Iterable[str], second: Iterable[str], third: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every pair of the first two, with the third in turn."""
    return [(a, b, third[(i + j) % len(third)]) for i, a in enumerate(first) for j, b in enumerate(second)]


@pytest.mark.parametrize(("loss", "head", "network"), squares(LOSSES, HEADS, list(NETWORKS)))
def test_the_gradient_and_the_terms_are_those_of_autograd(loss: str, head: str, network: str) -> None:
    (function, kind), (action, options), (observation, config) = LOSSES[loss], HEADS[head], NETWORKS[network]
    config = {**config, **options}
    own = config.pop("network", None)
    policy = a_policy(action, observation, own and own(), **config)
    optimizer = Optimizer(policy)
    for rows in (64, 256):
        held_to_autograd(function, policy, a_batch(policy, observation, rows, kind), optimizer)
    assert len(recordings(optimizer)) == 2


@pytest.mark.parametrize("name", MORE)
@pytest.mark.parametrize("loss", ["ppo", "vpg"])
def test_so_are_those_of_other_networks_and_observations(name: str, loss: str) -> None:
    (action, observation, config), (function, kind) = MORE[name], LOSSES[loss]
    policy = a_policy(action, observation, **config)
    optimizer = Optimizer(policy)
    held_to_autograd(function, policy, a_batch(policy, observation, 64, kind), optimizer)
    assert bool(recordings(optimizer)) == (name != "pictures")  # calls are not what convolutions take their time for


@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_so_are_those_of_double_precision(action: Spec) -> None:
    policy = a_policy(action, network=Own()).double()
    optimizer = Optimizer(policy)
    held_to_autograd(LOSSES["ppo"][0], policy, a_batch(policy), optimizer)
    assert recordings(optimizer)


@pytest.mark.parametrize("action", [CHOICE, TORQUE])
def test_batches_of_any_size_one_after_the_other(action: Spec) -> None:
    policy = a_policy(action, hidden_sizes=(64, 64), norm_obs=True)
    optimizer = Optimizer(policy)
    for rows in (64, 1, 128, 192, 100, 3000, 64):
        held_to_autograd(LOSSES["ppo clipped"][0], policy, a_batch(policy, SHOWN, rows), optimizer)
    assert len(recordings(optimizer)) == 6


@pytest.mark.parametrize("loss", ["vpg", "vpg weighted"])
def test_trajectories_of_any_length_need_one_recording(loss: str) -> None:
    policy = a_policy(TORQUE, norm_obs=True)
    optimizer, batch = Optimizer(policy), a_batch(policy, SHOWN, 5 * BLOCK, Trajectories)
    for rows in (5 * BLOCK, 3 * BLOCK - 7, 2 * BLOCK, BLOCK + 1, 2 * BLOCK - 1):
        held_to_autograd(LOSSES[loss][0], policy, batch.take(slice(rows)), optimizer)
    for alive in (torch.ones(len(batch), dtype=torch.bool), torch.zeros(len(batch), dtype=torch.bool)):
        held_to_autograd(LOSSES[loss][0], policy, replace(batch, alive=alive), optimizer)
    assert len(recordings(optimizer)) == 1


@pytest.mark.parametrize(
    "network", [Own, lambda: Mixing()], ids=["a loss", "a network"]
)  # that looks at all rows together
def test_trajectories_are_not_cut_where_rows_depend_on_each_other(
    network: Callable[[], Own], capsys: pytest.CaptureFixture[str]
) -> None:
    policy = a_policy(CHOICE, network=network())
    optimizer, batch = Optimizer(policy), a_batch(policy, SHOWN, BLOCK + 100, Trajectories)
    held_to_autograd(own_loss if network is Own else LOSSES["vpg"][0], policy, batch, optimizer)
    assert [type(found) for found in recordings(optimizer)] == [RecordedGradient]
    assert capsys.readouterr().err == ""


@both
def test_what_it_returns_is_not_overwritten_by_the_next_call(runtime: Runtime) -> None:
    policy = a_policy(CHOICE)
    optimizer, loss = Optimizer(policy), LOSSES["ppo"][0]
    terms = runtime.backward(loss, policy, a_batch(policy), optimizer)
    kept = torch.stack([*terms])
    runtime.backward(loss, policy, a_batch(policy), optimizer)
    assert torch.equal(torch.stack([*terms]), kept)


CHANGES: dict[str, Callable[[ActorCritic, Optimizer], Any]] = {
    "parameters": lambda policy, optimizer: optimizer.flat.add_(0.1 * torch.randn_like(optimizer.flat)),
    "moments": lambda policy, optimizer: policy.normalizer.merge(torch.randn(300, 2, 3) - 2),  # type: ignore[union-attr]
    "loaded moments": lambda policy, optimizer: policy.normalizer.load_state_dict(  # type: ignore[union-attr]
        {**policy.normalizer.state_dict(), "variance": torch.rand(2, 3) + 0.1}  # type: ignore[union-attr]
    ),
    "an attribute": lambda policy, optimizer: setattr(policy.actor.network, "scale", 0.3),
    "other memory": lambda policy, optimizer: policy.value_head.weight.__setattr__("data", torch.ones(1, 8)),  # type: ignore[union-attr]
}  # fmt: skip


@pytest.mark.parametrize(("own", "name"), list(itertools.product([False, True], CHANGES)))
def test_it_follows_what_changes(own: bool, name: str) -> None:
    policy = a_policy(TORQUE, network=Own(), norm_obs=True)
    optimizer, batch = Optimizer(policy), a_batch(policy)
    first, second = (own_loss, own_loss) if own else (PPOLoss(0.2, 0.5, 0.01, False), PPOLoss(0.2, 0.5, 0.01, False))
    held_to_autograd(first, policy, batch, optimizer)
    before = optimizer.grad.clone()
    CHANGES[name](policy, optimizer)
    held_to_autograd(second, policy, batch, optimizer)
    assert not torch.allclose(optimizer.grad, before, rtol=1e-2)
    assert recordings(optimizer)


def test_a_number_that_a_loss_closes_over_may_change() -> None:
    policy = a_policy(CHOICE)
    optimizer, batch = Optimizer(policy), a_batch(policy)
    weight = 1.0

    def loss(policy: ActorCritic, batch: Batch) -> Any:
        total, terms = own_loss(policy, batch)
        return weight * total, terms

    held_to_autograd(loss, policy, batch, optimizer)
    before = optimizer.grad.clone()
    weight = 3.0
    held_to_autograd(loss, policy, batch, optimizer)
    assert (optimizer.grad - 3 * before).norm() <= 1e-5 * before.norm()


def looks(policy: ActorCritic, batch: Batch) -> Any:
    total, terms = own_loss(policy, batch)
    return (total if total.item() > 0 else 2 * total), terms


def looks_aside(policy: ActorCritic, batch: Batch) -> Any:
    total, terms = own_loss(policy, batch)
    return total * (2.0 + float(batch.advantage.numpy()[0])), terms


class Counting(Own):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Trained(Own):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.norm = layer  # type: ignore[assignment]


def test_a_loss_that_looks_at_numbers_runs_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    policy = a_policy(CHOICE)
    optimizer = Optimizer(policy)
    for rows in (64, 32):  # which is said once
        held_to_autograd(looks, policy, a_batch(policy, rows=rows), optimizer)
    refusal = "aten._local_scalar_dense.default looks at numbers: use torch.where instead of if"
    assert capsys.readouterr().err == f"recording: looks runs in plain PyTorch: {refusal}\n"
    held_to_autograd(looks_aside, policy, a_batch(policy), optimizer)
    assert not recordings(optimizer)
    assert capsys.readouterr().err == "recording: looks_aside runs in plain PyTorch: a replay gives other numbers\n"


def test_a_loss_of_too_many_shapes_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tightrope.recording.MAX_SHAPES", 1)
    policy = a_policy(CHOICE)
    for rows in (64, 32, 16):
        held_to_autograd(LOSSES["ppo"][0], policy, a_batch(policy, rows=rows), Optimizer(policy))
    assert capsys.readouterr().err == ""  # each optimizer has memory, and so recordings, of its own
    optimizer = Optimizer(policy)
    for rows in (64, 32, 16):
        held_to_autograd(LOSSES["ppo"][0], policy, a_batch(policy, rows=rows), optimizer)
    assert capsys.readouterr().err == "recording: PPOLoss runs in plain PyTorch: its batches have too many shapes\n"


@pytest.mark.parametrize(
    "network", [Counting, lambda: Trained(nn.BatchNorm1d(16)), lambda: Trained(nn.Dropout(0.5))], ids=["a", "b", "c"]
)
def test_a_network_that_changes_or_draws_runs_as_it_is_written_and_notices_nothing(network: Callable[[], Own]) -> None:
    policy = a_policy(CHOICE, network=network())
    optimizer, batch, loss = Optimizer(policy), a_batch(policy), LOSSES["ppo"][0]
    outcomes = []
    for compute in (lambda *given: RUNTIME.backward(*given), lambda *given: autograd(*given)):
        twin = copy.deepcopy(policy)
        optimizer = Optimizer(twin)
        torch.manual_seed(5)
        compute(loss, twin, batch, optimizer)
        outcomes.append(
            [optimizer.grad, torch.rand(3), *twin.buffers(), torch.tensor(getattr(twin.actor.network, "calls", 0))]
        )
        assert not recordings(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_a_trial_depends_on_nothing_that_training_changes() -> None:
    shown, found = torch.randn(5, *SHOWN.shape), []
    for trained in (False, True):
        policy = a_policy(TORQUE, norm_obs=True)
        assert policy.normalizer is not None
        if trained:
            policy.normalizer.merge(3 * torch.randn(50, *SHOWN.shape) + 1)
        before = {name: x.clone() for name, x in policy.state_dict().items()}
        with trial_parameters(policy) as changed, torch.no_grad():
            found.append(policy.value(shown))
        assert changed == []
        assert all(torch.equal(x, before[name]) for name, x in policy.state_dict().items())
    assert torch.equal(*found)


def test_hooks_are_called() -> None:
    policy, seen = a_policy(CHOICE), []
    optimizer, batch = Optimizer(policy), a_batch(policy)
    RUNTIME.backward(LOSSES["ppo"][0], policy, batch, optimizer)
    policy.actor.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(2):
        RUNTIME.backward(PPOLoss(0.2, 0.5, 0.01, False), policy, batch, optimizer)
    assert len(seen) == 2


OWN = {"clipped_surrogate": "surrogate", "value_loss": "critic_loss", "entropy_bonus": "bonus"}  # fields of PPOLoss


@pytest.mark.parametrize("broken", [*OWN, "approx_kl"])
@both
def test_an_equation_that_someone_changed_is_the_one_that_counts(
    broken: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who breaks a loss to see what happens must see it happen; a recording follows in the middle of a run too."""
    policy = a_policy(CHOICE)
    optimizer, batch = Optimizer(policy), a_batch(policy)
    if runtime.records:
        held_to_autograd(PPOLoss(0.2, 0.5, 0.3, False), policy, batch, optimizer)
    losses = sys.modules["tightrope.functional.losses"]
    original = getattr(losses, broken)
    own = {OWN[broken]: lambda *args: -original(*args)} if broken in OWN else {}
    if not own:
        monkeypatch.setattr(losses, broken, lambda *args: -original(*args))
    held_to_autograd(PPOLoss(0.2, 0.5, 0.3, False, **own), policy, batch, optimizer, runtime)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("algo", "on_device"), [(tr.PPO, False), (tr.PPO, True), (tr.VPG, False)])
def test_three_phases_agree_with_autograd(
    env: str, algo: Any, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> Tensor:
        agent = algo(env, **settings)
        before = agent.state.optimizer.flat.clone()
        agent.state.runtime = Runtime(on_device=on_device)
        assert not torch.equal(agent.learn(quiet=True).state.optimizer.flat, before)
        return agent.state.optimizer.flat

    settings = dict(num_envs=8, num_steps=16, total_timesteps=3 * 128, norm_obs=True, device="cpu", learning_rate=1e-3)
    ours = trained()
    monkeypatch.setattr(gradients.RecordedGradients, "find", lambda *_: None)
    torch.testing.assert_close(ours, trained(), rtol=1e-3, atol=1e-5)


# acting ----------------------------------------------------------------------------------------------------------------


def player_of(policy: ActorCritic, obs: Tensor, rollout_rows: int = 1000) -> RecordedPolicy | None:
    return recorded_policy(policy, obs, some_noise(policy, len(obs)), rollout_rows)


def some_noise(policy: ActorCritic, rows: int) -> Tensor:
    return policy.head.noise((rows,), torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("head", "network", "rows"), squares(HEADS, [*NETWORKS, *MORE], (1, 5, 300)))
@torch.no_grad()
def test_it_says_what_the_policy_says(head: str, network: str, rows: int) -> None:
    observation, config = NETWORKS[network] if network in NETWORKS else MORE[network][1:]
    action, options = HEADS[head]
    config = {**config, **options}
    own = config.pop("network", None)
    policy = a_policy(action, observation, own and own(), **config)
    obs, noise = some_obs(observation, rows), some_noise(policy, rows)
    player = player_of(policy, obs)
    if network == "pictures":
        assert player is None
        return
    assert player is not None
    distribution, value = policy(obs)
    sampled, _ = player.act(obs, noise)
    torch.testing.assert_close(sampled, distribution.sample(noise), rtol=1e-4, atol=1e-5)
    _, given = player.choose(obs.numpy(), noise.numpy())
    torch.testing.assert_close(torch.from_numpy(given.copy()), policy.head.to_env(sampled), rtol=1e-4, atol=1e-5)
    log_prob, worth = player.evaluate_actions(obs, sampled)
    torch.testing.assert_close(log_prob, distribution.log_prob(sampled), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(worth, value, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_rollout_is_evaluated_in_blocks() -> None:
    policy = a_policy(TORQUE)
    player = player_of(policy, torch.randn(4, 2, 3), 3 * BLOCK)
    assert player is not None
    for rows in (3, BLOCK, BLOCK + 1, 3 * BLOCK):
        obs, action = torch.randn(rows, 2, 3), torch.randn(rows, 3)
        log_prob, worth = player.evaluate_actions(obs, action)
        distribution, value = policy(obs)
        torch.testing.assert_close(log_prob, distribution.log_prob(action), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(worth, value, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_without_a_critic_everything_is_worth_nothing() -> None:
    policy = a_policy(CHOICE, critic=False)
    player = player_of(policy, torch.randn(4, 2, 3))
    assert player is not None
    assert player.evaluate_actions(torch.randn(4, 2, 3), torch.zeros(4, dtype=torch.int64))[1].tolist() == [0.0] * 4


class Mixing(Own):
    """What it says of a row depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


@pytest.mark.parametrize("network", [Mixing, Counting, lambda: Trained(nn.Dropout(0.5))], ids=["a", "b", "c"])
@torch.no_grad()
def test_a_policy_that_cannot_be_recorded_is_left_as_it_is(network: Callable[[], Own]) -> None:
    policy = a_policy(CHOICE, network=network())
    obs = torch.randn(4, 2, 3)
    calls, before = getattr(policy.actor.network, "calls", 0), torch.get_rng_state()
    assert player_of(policy, obs) is None
    assert getattr(policy.actor.network, "calls", 0) == calls
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("action", [CHOICE, SEVERAL])
@torch.no_grad()
def test_a_distribution_that_someone_changed_is_the_one_that_counts(
    action: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = a_policy(action)
    obs, noise = torch.randn(64, 2, 3), some_noise(policy, 64)
    assert player_of(policy, obs) is not None
    monkeypatch.setattr(Categorical, "sample", lambda self, noise: self.mode())
    player = player_of(policy, obs)
    assert player is not None
    assert torch.equal(player.act(obs, noise)[0], policy.distribution(obs).mode())


@pytest.mark.parametrize("name", ["parameters", "moments", "an attribute", "other memory"])
@torch.no_grad()
def test_a_policy_is_played_as_it_is_in_each_rollout(name: str) -> None:
    policy = a_policy(TORQUE, network=Own(), norm_obs=True)
    optimizer, obs, action = Optimizer(policy), torch.randn(64, 2, 3), torch.randn(64, 3)
    assert player_of(policy, obs) is not None
    CHANGES[name](policy, optimizer)
    player = player_of(policy, obs)
    assert player is not None
    torch.testing.assert_close(player.evaluate_actions(obs, action)[1], policy.value(obs), rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(policy)
    assert not twin.recordings


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("share", [False, True])
def test_two_phases_are_those_of_the_page_as_on_a_device(
    env: str, share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = dict(
        num_envs=6, num_steps=40, num_minibatches=4, total_timesteps=2 * 240, norm_obs=True, share_trunk=share,
        hidden_sizes=(16, 16), learning_rate=1e-3, device="cpu",
    )  # fmt: skip
    ours = tr.PPO(env, **settings).learn(quiet=True).state
    other = tr.PPO(env, **settings)
    other.state.runtime = Runtime(on_device=True)
    theirs = other.learn(quiet=True).state
    for name in ("obs", "action", "log_prob", "value", "reward", "terminated", "truncated", "final_obs"):
        mine, other = getattr(ours.rollout, name), getattr(theirs.rollout, name)
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(ours.optimizer.flat, theirs.optimizer.flat, rtol=1e-3, atol=1e-4)


def test_the_first_ratio_of_a_phase_is_one() -> None:
    agent = tr.PPO("Pendulum-v1", num_envs=8, num_steps=32, num_minibatches=1, update_epochs=1, norm_obs=True)
    for metrics in itertools.islice(ppo(agent.state, agent.config.algorithm), 3):
        assert abs(float(metrics.terms.approx_kl)) < 1e-9
        assert float(metrics.terms.clip_fraction) == 0
