"""The numerics that environments share, and the double pendulum on a cart against an independent derivation."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from tightrope.draw import BACKGROUND
from tightrope.envs import CartDoublePendulum
from tightrope.envs.classic.pendulums import runge_kutta, solve_symmetric3, wrap_angle

CART, BOB, LENGTH, GRAVITY, FORCE, RAIL, DT = 1.0, 0.5, 0.6, 9.81, 18.0, 3.0, 0.02
ENV = CartDoublePendulum()


def states(count: int, seed: int = 0, speed: float = 2.0) -> Tensor:
    """x, v, both angles, both speeds, anywhere."""
    scale = torch.tensor([2.0, speed, math.pi, math.pi, speed, speed], dtype=torch.float64)
    return (2 * torch.rand(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1) * scale


def actions(count: int) -> Tensor:
    return 2 * torch.rand(count, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 1


def still(count: int) -> Tensor:
    return torch.zeros(count, 1, dtype=torch.float64)


def one(*state: float) -> Tensor:
    return torch.tensor([state], dtype=torch.float64)


# the double pendulum, from nothing but where its three bodies are: q = (x, a, b) -------------------------------------


def bodies(q: Tensor) -> Tensor:
    x, a, b = q
    elbow = torch.stack([x + LENGTH * a.sin(), LENGTH * a.cos()])
    tip = elbow + LENGTH * torch.stack([b.sin(), b.cos()])
    return torch.stack([torch.stack([x, torch.zeros_like(x)]), elbow, tip])


def masses(like: Tensor) -> Tensor:
    return torch.tensor([CART, BOB, BOB], dtype=like.dtype)


def kinetic(q: Tensor, dq: Tensor) -> Tensor:
    velocity = torch.einsum("bdq,q->bd", jacrev(bodies)(q), dq)
    return (masses(q) * velocity.square().sum(-1)).sum() / 2


def potential(q: Tensor) -> Tensor:
    return GRAVITY * (masses(q) * bodies(q)[:, 1]).sum()


def energy(state: Tensor) -> Tensor:
    x, v, a, b, da, db = state.unbind(-1)
    q, dq = torch.stack([x, a, b], -1), torch.stack([v, da, db], -1)
    return vmap(kinetic)(q, dq) + vmap(potential)(q)


def acceleration(q: Tensor, dq: Tensor, force: Tensor) -> Tensor:
    """Euler-Lagrange: d/dt dL/dq' - dL/dq = Q, solved for q''."""
    mass = jacrev(jacrev(kinetic, argnums=1), argnums=1)(q, dq)
    momentum_change = jacrev(jacrev(kinetic, argnums=1), argnums=0)(q, dq) @ dq
    pull = jacrev(kinetic, argnums=0)(q, dq) - jacrev(potential)(q)
    push = torch.stack([force, torch.zeros_like(force), torch.zeros_like(force)])
    return torch.linalg.solve(mass, push + pull - momentum_change)


def lagrangian_step(state: Tensor, force: Tensor) -> Tensor:
    def derivative(s: Tensor) -> Tensor:
        x, v, a, b, da, db = s.unbind(-1)
        ddx, dda, ddb = vmap(acceleration)(torch.stack([x, a, b], -1), torch.stack([v, da, db], -1), force).unbind(-1)
        return torch.stack([v, ddx, da, db, dda, ddb], -1)

    for _ in range(2):
        state = runge_kutta(derivative, state, DT / 2)
    return state


def test_equations_of_motion() -> None:
    state, action = states(64, speed=6.0), actions(64)
    torch.testing.assert_close(
        ENV.advance(state, action), lagrangian_step(state, FORCE * action[:, 0]), rtol=0, atol=1e-10
    )


def test_energy_is_conserved_without_force() -> None:
    state = states(32)
    start = energy(state)
    for _ in range(200):
        state = ENV.advance(state, still(32))
    scale = 2 * BOB * GRAVITY * LENGTH
    assert ((energy(state) - start).abs() / scale).max() < 1e-3
    assert (energy(state) - start).abs().max() > 0


def test_upright_and_hanging_are_equilibria() -> None:
    for angle in (0.0, math.pi):
        state = one(0.3, 0, angle, angle, 0, 0)
        torch.testing.assert_close(ENV.advance(state, still(1)), state, rtol=0, atol=1e-14)


def test_starts_hanging() -> None:
    start = CartDoublePendulum(num_envs=1000).state - torch.tensor([0, 0, math.pi, math.pi, 0, 0])
    assert start.abs().max() <= 0.05 + 1e-6
    assert (start.amax(0) > 0.048).all()
    assert (start.amin(0) < -0.048).all()
    assert start.mean(0).abs().max() < 0.005


@pytest.mark.parametrize("action", [1.0, -1.0, 0.5, 7.0, -7.0])
def test_force_is_18_newtons_at_most(action: float) -> None:
    """Gravity has no horizontal part: what the cart and the bobs gain in momentum is force times time."""
    state = states(16)

    def momentum(s: Tensor) -> Tensor:
        _, v, a, b, da, db = s.unbind(-1)
        return (CART + 2 * BOB) * v + 2 * BOB * LENGTH * a.cos() * da + BOB * LENGTH * b.cos() * db

    gained = momentum(ENV.advance(state, torch.full((16, 1), action, dtype=torch.float64))) - momentum(state)
    expected = FORCE * DT * max(-1.0, min(1.0, action))
    torch.testing.assert_close(gained, torch.full_like(gained, expected), rtol=0, atol=1e-6)


def test_observation() -> None:
    state = states(8)
    x, v, a, b, da, db = state.unbind(-1)
    expected = torch.stack([x, v, a.cos(), a.sin(), b.cos(), b.sin(), da, db], -1)
    torch.testing.assert_close(ENV.observe(state), expected)


def test_observation_is_clamped_to_20() -> None:
    obs = ENV.observe(one(-30, 25, 0, 0, 500, -500))
    assert obs.tolist() == [[-20, 20, 1, 0, 1, 0, 20, -20]]


def reward_at(*state: float, action: float = 0.0) -> float:
    elsewhere = states(1)
    return ENV.reward(elsewhere, torch.tensor([[action]], dtype=torch.float64), one(*state)).item()


def test_reward_term_by_term() -> None:
    up, down, level = 0.0, math.pi, math.pi / 2
    assert reward_at(0, 0, down, down, 0, 0) == pytest.approx(0.1)  # nothing but the centre
    assert reward_at(3, 0, down, down, 0, 0) == pytest.approx(0.0, abs=1e-12)  # at the very end of the rail
    assert reward_at(1.5, 0, down, down, 0, 0) == pytest.approx(0.075)
    assert reward_at(0, 0, up, up, 0, 0) == pytest.approx(1 + 0.5 + 0.1)
    assert reward_at(0, 0, up, down, 0, 0) == pytest.approx(0.5 + 0 + 0.1)
    assert reward_at(0, 0, up, level, 0, 0) == pytest.approx(0.75 + 0.25 + 0.1)
    assert reward_at(0, 0, down, level, 0, 0) == pytest.approx(0.25 + 0.1)  # a tip below the rail costs nothing
    assert reward_at(0, 0, up, up, 0, 0, action=1) == pytest.approx(1.6 - 0.001)
    assert reward_at(0, 0, up, up, 0, 0, action=-9) == pytest.approx(1.6 - 0.001)
    assert reward_at(0, 9, up, up, 0, 0) == pytest.approx(1.6)  # the cart's speed is free
    assert reward_at(0, 0, up, up, 2, 3) == pytest.approx(1.6 - 0.002 * 13)
    assert reward_at(3.3, 0, down, down, 0, 0) == pytest.approx(0.1 * (1 - 1.21) - 10)


def test_ends_off_the_rail_only() -> None:
    anywhere = states(64, speed=50.0)
    anywhere[:, 0] = torch.linspace(-3, 3, 64)
    assert not ENV.terminated(anywhere).any()
    assert ENV.terminated(one(3.01, 0, 0, 0, 0, 0)).item()
    assert ENV.terminated(one(-3.01, 0, 0, 0, 0, 0)).item()


@pytest.mark.parametrize("x", [-RAIL, 0.0, RAIL])
@pytest.mark.parametrize("angle", [0.0, math.pi / 2, math.pi, -math.pi / 2])
def test_drawn_whole_wherever_it_may_be(x: float, angle: float) -> None:
    frame = ENV.draw(ENV.observe(one(x, 0, angle, angle, 0, 0)))[0]
    edge = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
    assert (edge == BACKGROUND).all()


# numerics ------------------------------------------------------------------------------------------------------------


def test_runge_kutta_is_of_fourth_order() -> None:
    def error(steps: int) -> float:
        state = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        for _ in range(steps):
            state = runge_kutta(lambda s: torch.stack([s[:, 1], -s[:, 0]], -1), state, 2.0 / steps)
        return (state - one(math.cos(2), -math.sin(2))).norm().item()

    assert math.log2(error(20) / error(40)) == pytest.approx(4, abs=0.1)
    assert math.log2(error(40) / error(80)) == pytest.approx(4, abs=0.1)


def test_wrap_angle() -> None:
    angle = torch.linspace(-100, 100, 4001, dtype=torch.float64)
    wrapped = wrap_angle(angle)
    assert (wrapped >= -math.pi).all()
    assert (wrapped <= math.pi).all()
    turns = (angle - wrapped) / (2 * math.pi)
    torch.testing.assert_close(turns, turns.round(), rtol=0, atol=1e-12)
    inside = torch.tensor([-3.1, -1.0, 0.0, 2.0, 3.1], dtype=torch.float64)
    torch.testing.assert_close(wrap_angle(inside), inside)
    assert wrap_angle(torch.tensor(math.pi + 0.25)).item() == pytest.approx(-math.pi + 0.25, abs=1e-6)


def test_solve_symmetric3() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(50, 3, 3, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + 0.1 * torch.eye(3, dtype=torch.float64)
    right = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    upper = tuple(matrix[:, i, j] for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)))
    solution = torch.stack(solve_symmetric3(upper, tuple(right.unbind(-1))), -1)
    torch.testing.assert_close(solution, torch.linalg.solve(matrix, right), rtol=1e-8, atol=1e-8)
