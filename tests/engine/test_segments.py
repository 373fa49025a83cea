"""Gradients over long sequences in segments of time: those of whole sequences, by one recording for all lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import Decaying, assert_same_state

import tightrope as tr
from tightrope.engine import Runtime, runtime
from tightrope.engine.optimize import Optimizer, autograd
from tightrope.engine.recorded import trial_parameters
from tightrope.engine.segments import LONG, STEPS, SegmentGradient, in_segments_faster, of_length
from tightrope.functional import PPOLoss, VPGLoss
from tightrope.models import NetworkConfig, actor_critic
from tightrope.sequences import Sequences, SequenceTrajectories, sequences_of_rows
from tightrope.types import Box, Discrete, columns_of

N, SIZE = 3, 5
LOSSES: dict[type[Sequences], Any] = {
    Sequences: PPOLoss(0.2, 0.5, 0.02, True), SequenceTrajectories: VPGLoss(True, 0.5, 0.7, 0.03)
}  # fmt: skip


def a_policy(memory: str, share: bool = True, layers: int = 1) -> Any:
    torch.manual_seed(0)
    config = NetworkConfig(
        hidden_sizes=(8,), memory=memory, memory_size=SIZE, memory_layers=layers, share_trunk=share, norm_obs=True
    )
    return actor_critic(Box((2,)), Discrete(3), config, memory=Decaying)


def a_batch(policy: Any, length: int, kind: type[Sequences]) -> Sequences:
    """Sequences with states, with starts of episodes in them and, as trajectories, with ends before the last step."""
    generator = torch.Generator().manual_seed(length)
    rows = torch.randn(N, length, 2 + 1 + policy.memory_rows.state_size, generator=generator)
    rows[..., 2] = torch.rand(N, length, generator=generator) < 0.05
    obs = sequences_of_rows(rows, policy.memory_rows.state_size)
    with torch.no_grad():
        distribution, value = policy(obs)
        action = torch.randint(3, (N * length,), generator=generator)
        numbers = torch.randn(4, N * length, generator=generator)
        log_prob = distribution.log_prob(action) + 0.4 * numbers[0]
    columns = [obs, action, log_prob, value + 0.4 * numbers[1], numbers[2], numbers[3]]
    if kind is Sequences:
        return Sequences(*columns)
    ends = torch.tensor([length, length // 2, 3])
    return SequenceTrajectories(*columns, (torch.arange(length) < ends[:, None]).flatten())


def plain(optimizer: Optimizer) -> Any:
    return lambda loss, policy, batch: autograd(loss, policy, batch, optimizer)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(
    ("memory", "share", "layers"), [("gru", False, 1), ("lstm", True, 2), ("mingru", False, 1), ("own:Own", True, 1)]
)
def test_the_gradient_is_that_of_whole_sequences(
    memory: str, share: bool, layers: int, kind: type[Sequences], compiled: bool
) -> None:
    policy = a_policy(memory, share, layers)
    optimizer, loss = Optimizer(policy), LOSSES[kind]
    gradient = plain(optimizer)
    like = of_length(STEPS, a_batch(policy, STEPS, kind), policy)
    with trial_parameters(policy):
        segments = SegmentGradient(gradient, loss, policy, like, optimizer.grad, compiled)
    assert segments.agrees
    for length in (STEPS, 3 * STEPS) if kind is Sequences else (3, STEPS, 2 * STEPS + 5):
        batch = a_batch(policy, length, kind)
        terms = gradient(loss, policy, batch)
        expected = optimizer.grad.clone()
        optimizer.grad.fill_(torch.nan)
        torch.testing.assert_close(tuple(segments(columns_of(batch))), tuple(terms), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(optimizer.grad, expected, rtol=1e-3, atol=1e-5)


def test_gradients_reach_back_over_segments() -> None:
    """The derivative by an early observation's trunk comes through all later segments: a truncated gradient would be 0."""
    policy = a_policy("gru")
    optimizer = Optimizer(policy)
    gradient, length = plain(optimizer), 3 * STEPS
    batch = a_batch(policy, length, SequenceTrajectories)
    last = torch.zeros(N, length, dtype=torch.bool)
    last[:, -1] = True
    own = batch.obs.clone()
    own[:, STEPS:, :3] = 0  # only the first segment shows anything
    batch = replace(batch, obs=own, alive=last.flatten())
    loss = VPGLoss(False, None, 0.0, 0.0)
    segments = SegmentGradient(gradient, loss, policy, of_length(STEPS, batch, policy), optimizer.grad)
    segments(columns_of(batch))
    weight = optimizer.grads[policy.actor.trunk[1].weight]
    found = weight.clone()
    assert found.abs().max() > 0
    gradient(loss, policy, batch)
    torch.testing.assert_close(found, weight, rtol=1e-3, atol=1e-8)


def test_one_recording_serves_rollouts_of_every_length(capsys: pytest.CaptureFixture[str]) -> None:
    policy, own = a_policy("gru"), Runtime()
    optimizer, loss = Optimizer(policy), LOSSES[SequenceTrajectories]
    for length in range(2, 40, 2):
        batch = a_batch(policy, length, SequenceTrajectories)
        own.backward(loss, policy, batch, optimizer)
        found = optimizer.grad.clone()
        plain(optimizer)(loss, policy, batch)
        torch.testing.assert_close(found, optimizer.grad, rtol=1e-3, atol=1e-5)
    assert [type(x) for x in own.recorded.kept.values()] == [SegmentGradient]
    assert capsys.readouterr().err == ""


def test_a_loss_that_is_no_mean_over_steps_learns_from_whole_sequences() -> None:
    def loss(policy: Any, batch: Any) -> Any:
        _, value = policy(batch.obs)
        total = (value * batch.alive).square().sum().sqrt()
        return total, (total.detach(),)

    policy, own = a_policy("gru"), Runtime()
    optimizer = Optimizer(policy)
    batch = a_batch(policy, 2 * STEPS, SequenceTrajectories)
    own.backward(loss, policy, batch, optimizer)
    found = optimizer.grad.clone()
    plain(optimizer)(loss, policy, batch)
    torch.testing.assert_close(found, optimizer.grad, rtol=1e-3, atol=1e-5)
    assert [x for (kind, *_), x in own.recorded.kept.items() if kind is SegmentGradient] == [None]


def test_whole_sequences_are_recorded_where_they_are_short_or_scanned() -> None:
    for memory, share, layers, length, wanted in [
        ("gru", True, 1, LONG, False), ("gru", True, 1, LONG + STEPS, True), ("gru", False, 1, LONG // 2 + STEPS, True),
        ("gru", True, 2, LONG // 2 + STEPS, True), ("gru", True, 1, LONG + STEPS + 1, False),
        ("mingru", True, 1, LONG + STEPS, False),
    ]:  # fmt: skip
        policy = a_policy(memory, share, layers)
        batch = of_length(length, a_batch(policy, 4, Sequences), policy)
        assert in_segments_faster(batch, policy, True) is wanted
        assert not in_segments_faster(batch, policy, False)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_of_vpg_learns_in_segments_and_goes_on_with_the_same_bits(
    compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_CALLS", 0 if compiled else 10**9)
    settings: dict[str, Any] = dict(
        memory="lstm", memory_size=8, hidden_sizes=(8,), num_envs=4, num_steps=40, seed=5, device="cpu", threads=1,
        eval_every=0, total_timesteps=1000, learning_rate=0.02,
    )  # fmt: skip
    whole = tr.VPG("CartPole-v1", **settings).learn(quiet=True)
    tr.VPG("CartPole-v1", **settings).learn(until=500, run_dir=tmp_path, quiet=True)
    resumed = tr.load(tmp_path).learn(quiet=True)
    assert any(isinstance(x, SegmentGradient) for x in resumed.state.runtime.recorded.kept.values())
    assert resumed.state.phase > 4
    assert_same_state(whole.state.state_dict(), resumed.state.state_dict())
