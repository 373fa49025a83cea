"""Histograms of parameters and gradients, which change nothing and leave nothing behind."""

from typing import Any

import numpy as np
import pytest
import torch

import tightrope as tr
from tightrope.logging.trackers.tracker import HistogramSchedule, ParameterCopy

SMALL: dict[str, Any] = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), total_timesteps=3 * 32, device="cpu")


def test_every_parameter_is_counted_and_so_is_its_gradient() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL).learn(quiet=True)
    found = ParameterCopy(agent.state).values()
    grads = agent.state.optimizer.grads
    named = dict(agent.policy.named_parameters())
    assert set(found) == {f"{kind}/{name}" for kind in ("parameters", "gradients") for name in named}
    for name, p in named.items():
        for kind, tensor in (("parameters", p.detach()), ("gradients", grads[p])):
            assert np.array_equal(found[f"{kind}/{name}"], tensor.flatten().double().numpy())


def test_a_look_is_a_copy() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    look = ParameterCopy(agent.state)
    before = agent.state.optimizer.flat.clone()
    agent.learn(quiet=True)
    assert not torch.equal(before, agent.state.optimizer.flat)
    assert np.array_equal(look.numbers[0].numpy(), before.numpy())


def test_what_is_not_finite_is_not_counted() -> None:
    agent = tr.PPO("CartPole-v1", **SMALL)
    agent.state.optimizer.grad.fill_(1.0)[:2] = torch.tensor([torch.nan, torch.inf])
    first = next(name for name, found in ParameterCopy(agent.state).values().items() if name.startswith("gradients/"))
    found = ParameterCopy(agent.state).values()[first]
    assert len(found) == ParameterCopy(agent.state).layout[0][1] - 2
    assert (found == 1).all()


@pytest.mark.parametrize(("phases", "looks"), [(10, 1), (100, 10), (1000, 100), (5000, 100)])
def test_looks_are_neither_too_many_nor_too_close(phases: int, looks: int) -> None:
    watch = HistogramSchedule(0, phases * 64)
    due = [phase for phase in range(1, phases + 1) if watch.is_due(64 * phase, phase)]
    assert due[0] == 1
    assert abs(len(due) - looks) <= 1


def test_a_resumed_run_looks_after_its_first_phase() -> None:
    assert HistogramSchedule(6400, 12_800).is_due(6464, 101)


@pytest.mark.gpu
def test_on_a_device_too_without_waiting_for_it() -> None:
    agent = tr.PPO("CartPole-v1", **{**SMALL, "device": "cuda"}).learn(quiet=True)
    found = ParameterCopy(agent.state).values()
    for name, p in agent.policy.named_parameters():
        assert np.array_equal(found[f"parameters/{name}"], p.detach().flatten().double().cpu().numpy())
