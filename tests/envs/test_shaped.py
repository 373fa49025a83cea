"""Reward shaping: the physics of the parent, a reward of one's own."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from tightrope.draw import BACKGROUND
from tightrope.envs import CartPole, DanceCart, EasyCart, MountainCar, MountainCarShaped, SpinCart

TRACK, LEAN = 2.4, 0.2095
ANYWHERE = torch.Generator().manual_seed(0)


def carts(count: int = 64, width: int = 4) -> Tensor:
    scale = torch.tensor([2.4, 3.0, 3.0, 8.0, 20.0])[:width]
    return (2 * torch.rand(count, width, generator=ANYWHERE) - 1) * scale


def cars(count: int = 64) -> Tensor:
    return torch.rand(count, 2, generator=ANYWHERE) * torch.tensor([1.8, 0.14]) - torch.tensor([1.2, 0.07])


def at(*state: float) -> Tensor:
    return torch.tensor([state])


def paid(env: CartPole, *next_state: float) -> float:
    """The reward of arriving in a state; where it came from and how must not matter."""
    return env.reward(carts(1, len(next_state)), torch.tensor([0]), at(*next_state)).item()


# physics -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shaped", [EasyCart, SpinCart, DanceCart])
def test_a_cart_moves_like_cartpole(shaped: type[CartPole]) -> None:
    env, action = shaped(), torch.randint(2, (64,), generator=ANYWHERE)
    state = carts(width=env.state.shape[1])
    assert torch.equal(env.advance(state, action)[:, :4], CartPole().advance(state[:, :4], action))
    assert (env.time_limit, env.action) == (CartPole.time_limit, CartPole.action)
    noise = torch.rand(64, env.noise_size, generator=ANYWHERE)
    assert torch.equal(env.initial(noise)[:, :4], CartPole().initial(noise[:, :4]))


def test_the_shaped_mountain_car_is_the_same_car() -> None:
    state, action, noise = cars(), torch.randint(3, (64,), generator=ANYWHERE), torch.rand(64, 1, generator=ANYWHERE)
    shaped, plain = MountainCarShaped(), MountainCar()
    assert torch.equal(shaped.advance(state, action), plain.advance(state, action))
    assert torch.equal(shaped.terminated(state), plain.terminated(state))
    assert torch.equal(shaped.initial(noise), plain.initial(noise))
    assert torch.equal(shaped.observe(state), plain.observe(state))
    assert shaped.time_limit == plain.time_limit


# EasyCart ------------------------------------------------------------------------------------------------------------


def test_easy_cart_pays_for_upright_and_central() -> None:
    env = EasyCart()
    assert paid(env, 0, 5, 0, 5) == 1
    assert paid(env, TRACK, 0, 0, 0) == pytest.approx(0.5)
    assert paid(env, -TRACK, 0, 0, 0) == pytest.approx(0.5)
    assert paid(env, 0, 0, LEAN, 0) == pytest.approx(0.5, abs=1e-3)
    assert paid(env, 1.2, 0, -LEAN / 2, 0) == pytest.approx(0.5, abs=1e-3)


# SpinCart ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("omega", [3.0, -9.0, 40.0])
@pytest.mark.parametrize("side", [1, -1])
def test_spin_cart_pays_less_and_less_away_from_the_centre(omega: float, side: int) -> None:
    rewards = [paid(SpinCart(), side * x, 0, 1, omega) for x in torch.linspace(0, 2.5, 11).tolist()]
    assert all(near > far for near, far in pairwise(rewards))
    assert rewards[0] > 0
    assert rewards[-1] <= 0


def test_spin_cart_pays_for_speed_either_way_round() -> None:
    rewards = [paid(SpinCart(), 0.5, 0, 1, omega) for omega in (0.0, 1.0, 4.0, 8.0, 14.0)]
    assert all(slow < fast for slow, fast in pairwise(rewards))
    assert rewards[0] == 0
    assert paid(SpinCart(), 0.5, 0, 1, -8) == paid(SpinCart(), 0.5, 0, 1, 8)
    assert paid(SpinCart(), 0, 0, 1, 15) == paid(SpinCart(), 0, 0, 1, 99) == 1


def test_spin_cart_shows_the_wrapped_angle() -> None:
    for theta, shown in ((81.0, 81.0 - 26 * math.pi), (3.0, 3.0), (-4.0, 2 * math.pi - 4)):
        obs = SpinCart().observe(at(0.1, 0.2, theta, 0.4))
        torch.testing.assert_close(obs, at(0.1, 0.2, shown, 0.4), rtol=0, atol=1e-5)


def test_spin_cart_ends_off_the_track_only() -> None:
    env = SpinCart()
    ended = env.terminated(torch.cat([at(0, 0, theta, 0) for theta in (0.3, 1.6, 3.1, 80.0)]))
    assert not ended.any()
    assert env.terminated(at(2.41, 0, 0, 0)).item()
    assert env.terminated(at(-2.41, 0, 0, 0)).item()


@pytest.mark.parametrize("x", [-TRACK, 0.0, TRACK])
@pytest.mark.parametrize("angle", [0.0, math.pi / 2, math.pi, -math.pi / 2])
def test_spin_cart_is_drawn_whole(x: float, angle: float) -> None:
    frame = SpinCart().draw(at(x, 0, angle, 0))[0]
    edge = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
    assert (edge == BACKGROUND).all()


# DanceCart -----------------------------------------------------------------------------------------------------------


def test_dance_cart_pays_for_being_on_the_beat() -> None:
    env = DanceCart()
    for beat in (0.0, 1.0, math.pi / 2, 4.0):
        place = env.sway * math.sin(beat)
        assert paid(env, place, 0, 0, 0, beat) == pytest.approx(1)
        assert paid(env, place + env.sway / 4, 0, 0, 0, beat) == pytest.approx(0.75, abs=1e-6)
        assert paid(env, place - env.sway / 4, 0, 0, 0, beat) == pytest.approx(0.75, abs=1e-6)
        assert paid(env, place + 2 * env.sway, 0, 0, 0, beat) == 0


def test_dance_cart_cannot_be_danced_by_standing_still() -> None:
    beat = torch.arange(DanceCart.period) * 2 * math.pi / DanceCart.period
    standing = torch.stack([torch.zeros_like(beat)] * 4 + [beat], -1)
    dancing = standing.clone()
    dancing[:, 0] = DanceCart.sway * beat.sin()
    env, action = DanceCart(), torch.zeros(len(beat), dtype=torch.int64)
    assert env.reward(standing, action, standing).mean() < 0.5
    assert env.reward(dancing, action, dancing).mean() > 0.99


def test_dance_cart_keeps_time() -> None:
    env = DanceCart(num_envs=3)
    obs = env.reset(seed=0)
    assert (obs[:, 4:] == torch.tensor([0.0, 1.0])).all()
    env.state[:, 0] = -1
    for t in range(1, env.period + 1):
        env.state[:, 1:4] = 0
        beat = 2 * math.pi * t / env.period
        torch.testing.assert_close(
            env.step(torch.zeros(3, dtype=torch.int64)).obs[:, 4:],
            torch.tensor([[math.sin(beat), math.cos(beat)]]).expand(3, 2),
            rtol=0,
            atol=1e-4,
        )
    assert env.clock.tolist() == [env.period] * 3


def test_dance_cart_ends_when_the_pole_falls_or_the_track_does() -> None:
    env = DanceCart()
    assert not env.terminated(at(2.39, 9, 0.99 * env.lean, 9, 20)).item()
    for x, theta in ((2.41, 0), (-2.41, 0), (0, 1.01 * env.lean), (0, -1.01 * env.lean)):
        assert env.terminated(at(x, 0, theta, 0, 0)).item()
    assert env.lean < math.pi / 2


# potential-based shaping ---------------------------------------------------------------------------------------------


def shaping(env: MountainCarShaped, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
    """F = what the shaped reward adds to the plain one."""
    return env.reward(state, action, next_state) - MountainCar().reward(state, action, next_state)


@pytest.mark.parametrize("skilled", [True, False])
def test_shaping_telescopes(skilled: bool) -> None:
    env = MountainCarShaped()
    start = state = torch.tensor([[-0.5, 0.0]], dtype=torch.float64)
    total, t = 0.0, 0
    while t < 200 and not env.terminated(state).item():
        action = 2 * (state[:, 1] >= 0).long() if skilled else torch.randint(3, (1,), generator=ANYWHERE)
        next_state = env.advance(state, action)
        total += env.gamma**t * shaping(env, state, action, next_state).item()
        state, t = next_state, t + 1
    assert env.terminated(state).item() == skilled
    expected = env.gamma**t * env.potential(state) - env.potential(start)
    assert total == pytest.approx(expected.item(), abs=1e-9)
    assert env.potential(start).item() != 0


def test_terminal_potential_is_zero() -> None:
    env = MountainCarShaped()
    assert env.potential(at(0.55, 0.03)).item() == 0
    assert env.potential(at(0.45, 0.03)).item() > 0


def test_potential_is_the_energy() -> None:
    """v^2 / 2 + gravity / 3 sin 3x, up to a factor and a constant."""
    env, state = MountainCarShaped(), cars(200).double()
    state = state[~env.terminated(state)]
    x, v = state.unbind(-1)
    energy = v.square() / 2 + 0.0025 / 3 * (3 * x).sin()
    offset = env.potential(state) / env.scale - energy
    torch.testing.assert_close(offset, torch.full_like(offset, 0.0025 / 3), rtol=0, atol=1e-9)


# a variant of one's own ----------------------------------------------------------------------------------------------
