"""Steps over arrays are steps over tensors, bit for bit, and equations that would not be run on tensors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tightrope as tr
from tightrope.envs import ENVS
from tightrope.envs.arrays import MOST_ROWS, Rows


def actions(env: Any, generator: torch.Generator) -> Tensor:
    if env.action.dtype == torch.int64:
        return torch.randint(env.action.n, (env.num_envs,), generator=generator)
    return 3 * torch.rand(env.num_envs, *env.action.shape, generator=generator) - 1.5


@pytest.mark.parametrize("env_id", sorted(ENVS))
def test_every_step_is_that_of_tensors_bit_for_bit(env_id: str) -> None:
    quick, plain = ENVS[env_id](33, max_episode_steps=50), ENVS[env_id](33, max_episode_steps=50)
    plain._few = False
    generator = torch.Generator().manual_seed(0)
    quick.reset(seed=1)
    plain.reset(seed=1)
    for _ in range(200):
        action, noise = actions(quick, generator), torch.rand(33, quick.noise_size, generator=generator)
        for a, b in zip(quick.step(action, noise)[:5], plain.step(action, noise)[:5], strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        for name, tensor in plain.state_dict().items():
            assert torch.equal(tensor, quick.state_dict()[name]), name
    assert quick._array_step is not None
    assert plain._array_step is None
    assert torch.equal(quick.finished_episodes(), plain.finished_episodes())


def test_what_is_handed_out_is_nobody_elses() -> None:
    env = tr.envs.CartPole(4)
    action, noise = torch.zeros(4, dtype=torch.int64), torch.rand(4, 4)
    step = env.step(action, noise)
    kept = [x.clone() for x in step[:5]]
    state = env.state.clone()
    env.step(action, noise)
    for a, b in zip(step[:5], kept, strict=True):
        assert torch.equal(a, b)
        a.fill_(7)
    assert torch.isfinite(state).all()
    assert not (env.state == 7).any()


class Looped(tr.envs.CartPole):
    """Uses a method that only tensors have: it is that of the tensor that the array is."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state.narrow(1, 0, 1).squeeze(1)


class Sorted(tr.envs.CartPole):
    """Uses a function that only torch has: it is run on the tensor that the array is."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.cumsum(next_state, 1)[:, 0]


class Remembering(tr.envs.CartPole):
    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        self.last = action
        return super().reward(state, action, next_state)


class LateSurprise(tr.envs.CartPole):
    """Takes a path that arrays cannot take, once it has been told to."""

    told = False

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        if self.told and not isinstance(state, Tensor):
            raise TypeError
        return next_state[:, 0]


class Doubled(tr.envs.CartPole):
    """A mask times a number is a double for NumPy."""

    def observe(self, state: Tensor) -> Tensor:
        return torch.stack([(state[:, i] > 0) * 2.0 for i in range(4)], -1)


@pytest.mark.parametrize(
    ("kind", "quick"), [(Looped, True), (Sorted, True), (Remembering, False), (LateSurprise, True), (Doubled, True)]
)
def test_ones_own_equations_run_on_arrays_only_if_they_can(kind: type[tr.envs.CartPole], quick: bool) -> None:
    env, plain = kind(5, seed=2), kind(5, seed=2)
    plain._few = False
    action, noise = torch.ones(5, dtype=torch.int64), torch.rand(5, 4)
    for told in (False, False, True, True):
        env.told = plain.told = told  # type: ignore[attr-defined]
        step, expected = env.step(action, noise), plain.step(action, noise)
        assert all(isinstance(x, Tensor) for x in step[:5])
        assert [x.dtype for x in step[:5]] == [x.dtype for x in expected[:5]]
        assert all(torch.equal(a, b) for a, b in zip(step[:5], expected[:5], strict=True))
    assert (env._array_step is not None) == quick
    assert env._few == (quick and kind is not LateSurprise)


def test_a_mistake_in_an_equation_is_the_users_to_see() -> None:
    class Wrong(tr.envs.CartPole):
        def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        Wrong(2).step(torch.zeros(2, dtype=torch.int64))


def test_many_rows_and_impure_equations_are_tensors() -> None:
    class Impure(tr.envs.CartPole):
        pure = False

    assert not tr.envs.CartPole(MOST_ROWS + 1)._few
    assert not Impure(2)._few
    assert tr.envs.CartPole(4).spawn(2, seed=0)._array_step is None


def test_rows_are_tensors_to_torch() -> None:
    rows = np.ones((2, 3), np.float32).view(Rows)
    assert isinstance(torch.stack([rows, rows], -1), Rows)
    assert isinstance(torch.cumsum(rows, 1), Tensor)
    assert torch.equal(torch.ones(2, 3), torch.add(rows, 0))


class Spread(tr.envs.CartPole):
    """Arrays have a method of that name, which means something else; in the first states it does not show."""

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state.std(-1)


class InPlace(tr.envs.CartPole):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = torch.zeros(())

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().reward(state, action, next_state)


def test_methods_that_arrays_have_too_are_those_of_tensors() -> None:
    env, plain = Spread(4, seed=3), Spread(4, seed=3)
    plain._few = False
    action, noise = torch.zeros(4, dtype=torch.int64), torch.rand(4, 4)
    for _ in range(5):
        assert torch.equal(env.step(action, noise).reward, plain.step(action, noise).reward)
    rows = np.arange(6, dtype=np.float32).reshape(2, 3).view(Rows)
    tensor = torch.arange(6.0).reshape(2, 3)
    for of in (lambda x: x.std(-1), lambda x: x.sum(), lambda x: x.repeat(2, 1), lambda x: x % 4, lambda x: x**3):
        assert torch.equal(of(rows), of(tensor))


def test_equations_that_change_something_run_once_a_step_on_tensors() -> None:
    env = InPlace(4)
    for _ in range(3):
        env.step(torch.zeros(4, dtype=torch.int64), torch.rand(4, 4))
    assert env._array_step is None
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


def test_a_spawned_environment_shares_no_tensor() -> None:
    env = InPlace(3)
    twin = env.spawn(3, seed=1)
    twin.step(torch.zeros(3, dtype=torch.int64))
    assert float(env.calls) == 0
