"""Steps over arrays are steps over tensors, bit for bit; equations that would not be run on tensors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.envs import ENVS
from tightrope.envs.recorded_step import MAX_NUMPY_ROWS
from tightrope.errors import UsageError


def actions(env: Any, generator: torch.Generator) -> Tensor:
    if env.action.dtype == torch.int64:
        return torch.randint(env.action.n, (env.num_envs,), generator=generator)
    return 3 * torch.rand(env.num_envs, *env.action.shape, generator=generator) - 1.5


@pytest.mark.parametrize("env_id", sorted(ENVS))
def test_every_step_is_that_of_tensors_bit_for_bit(env_id: str) -> None:
    recorded, plain = ENVS[env_id](33, max_episode_steps=50), ENVS[env_id](33, max_episode_steps=50)
    plain._uses_arrays = False
    generator = torch.Generator().manual_seed(0)
    recorded.reset(seed=1)
    plain.reset(seed=1)
    for _ in range(200):
        action, noise = actions(recorded, generator), torch.rand(33, recorded.noise_size, generator=generator)
        for a, b in zip(recorded.step(action, noise)[:5], plain.step(action, noise)[:5], strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        for name, tensor in plain.state_dict().items():
            assert torch.equal(tensor, recorded.state_dict()[name]), name
    assert recorded._recorded_step is not None
    assert plain._recorded_step is None
    assert torch.equal(recorded.finished_episodes(), plain.finished_episodes())


def remembered(self: Any, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
    self.last = action
    return torch.ones_like(state[:, 0])


def written(self: Any, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
    """Writes into what it has made, and into what it was given."""
    paid = torch.ones_like(state[:, 0])
    paid += next_state[:, 1]
    paid[next_state[:, 0] > 0] = 0.5
    state[:, 0] = 3.0
    return paid + state[:, 0] * action


def several(self: Any, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
    """An operation with two results, and whole numbers."""
    most, which = next_state.max(-1)
    return torch.where(action == 1, most, 2 - which) * (action + 1)


REWARDS: dict[str, tuple[Any, bool]] = {  # by what they do, and whether they can be run on arrays
    "all views": (lambda self, s, a, n: n.narrow(1, 0, 1).squeeze(1), True),
    "a function that only torch has": (lambda self, s, a, n: torch.cumsum(n, 1)[:, 0], True),
    "a method that arrays have too": (lambda self, s, a, n: s.std(-1), True),  # where it means something else
    "writes": (written, True),
    "several results": (several, True),
    "masks times numbers": (lambda self, s, a, n: (n[:, 0] > 0) * 2.0, True),
    "remembers": (remembered, False),
    "looks at a number": (lambda self, s, a, n: n[:, 0] if n[0, 0] > 0 else -n[:, 0], False),
    "as many as there are": (lambda self, s, a, n: n[n > -100].view(n.shape)[:, 0], False),
    "gambles": (lambda self, s, a, n: n[:, 0] + 0 * torch.rand(len(s)), False),
}


@pytest.mark.parametrize("name", REWARDS)
def test_ones_own_equations_run_on_arrays_only_if_they_can(name: str) -> None:
    reward, is_recorded = REWARDS[name]
    kind = type("Own", (tr.envs.CartPole,), {"reward": reward})
    env, plain = kind(5, seed=2), kind(5, seed=2)
    plain._uses_arrays = False
    noise = torch.rand(5, 4)
    for t in range(40):
        action = torch.tensor([0, 1, 1, 0, t % 2])
        step, expected = env.step(action, noise), plain.step(action, noise)
        assert all(isinstance(x, Tensor) for x in step[:5])
        assert [x.dtype for x in step[:5]] == [x.dtype for x in expected[:5]]
        assert all(torch.equal(a, b) for a, b in zip(step[:5], expected[:5], strict=True))
    assert (env._recorded_step is not None) == env._uses_arrays == is_recorded


class Scaled(tr.envs.CartPole):
    """Reads what can be set from outside: on itself, in something it holds, and on its class."""

    scale, more = 1.0, 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held = {"scale": 1.0}
        self.offset = torch.zeros(())

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.full_like(state[:, 0], self.scale * self.held["scale"] * self.more) + self.offset


def test_what_equations_read_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    env, action = Scaled(3), torch.zeros(3, dtype=torch.int64)

    def paid() -> float:
        return float(env.step(action).reward[0])

    assert paid() == 1
    env.scale = 2.0
    assert paid() == 2
    env.offset.fill_(0.5)
    assert paid() == 2.5
    env.offset = torch.tensor(1.0)
    assert paid() == 3
    env.held["scale"] = 3.0
    env.reset()
    assert paid() == 7
    monkeypatch.setattr(Scaled, "more", 2.0)
    step = env.in_arrays()
    assert step is not None
    assert float(step(action.numpy(), np.zeros((3, 4), np.float32)).reward[0]) == 13
    assert env._recorded_step is not None


def test_who_has_a_step_of_his_own_is_not_passed_by() -> None:
    class Own(tr.envs.CartPole):
        def step(self, action: Tensor, noise: Tensor | None = None) -> Any:
            return super().step(action, noise)

    assert Own(2).in_arrays() is None
    env = tr.envs.CartPole(2)
    assert env.in_arrays() is not None
    env.step = Own(2).step  # type: ignore[method-assign]
    assert env.in_arrays() is None


def test_a_mistake_in_an_equation_is_the_users_to_see() -> None:
    class Wrong(tr.envs.CartPole):
        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            raise ZeroDivisionError("mine")

    with pytest.raises(
        UsageError, match=r"Wrong.reward raises ZeroDivisionError: mine \(.*test_recorded_step.py:\d+\)"
    ):
        Wrong(2).step(torch.zeros(2, dtype=torch.int64))


def test_many_rows_and_impure_equations_are_tensors() -> None:
    class Impure(tr.envs.CartPole):
        pure = False

    assert not tr.envs.CartPole(MAX_NUMPY_ROWS + 1)._uses_arrays
    assert not Impure(2)._uses_arrays
    assert tr.envs.CartPole(4).spawn(2, seed=0)._recorded_step is None


class Counted(tr.envs.CartPole):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = torch.zeros(())

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().reward(state, action, next_state)


def test_equations_that_change_something_run_once_a_step_on_tensors() -> None:
    env = Counted(4)
    for _ in range(3):
        env.step(torch.zeros(4, dtype=torch.int64), torch.rand(4, 4))
    assert env._recorded_step is None
    assert float(env.calls) == 3  # trying it out has left no trace


def test_a_state_put_in_from_outside_is_the_state() -> None:
    env = tr.envs.CartPole(2)
    action, noise = torch.zeros(2, dtype=torch.int64), torch.rand(2, 4)
    env.step(action, noise)
    env.state = torch.tensor([[2.39, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert env.step(action, noise).terminated.tolist() == [True, False]
    twin = copy.deepcopy(env)
    before = twin.state.clone()
    twin.step(action, noise)
    assert not torch.equal(twin.state, before)


class Clocked(tr.envs.CartPole):
    """Shows how long an episode has lasted."""

    observation = tr.types.Box((5,))

    def observe(self, state: Tensor) -> Tensor:
        return torch.cat([state, self.clock.unsqueeze(1).float()], 1)


def test_the_clock_that_an_equation_reads_is_that_of_the_step() -> None:
    class Impure(Clocked):
        pure = False

    for kind in (Clocked, Impure):
        env = kind(3, max_episode_steps=4)
        seen = [env.reset(seed=1)[:, 4].unique().tolist()]
        final = []
        for _ in range(6):
            step = env.step(torch.ones(3, dtype=torch.int64))
            seen.append(step.obs[:, 4].unique().tolist())
            final.append(step.final_obs[:, 4].unique().tolist())
        assert seen == [[0], [1], [2], [3], [0], [1], [2]]
        assert final == [[1], [2], [3], [4], [1], [2]]
