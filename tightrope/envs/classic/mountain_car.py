"""MountainCar-v0 (Moore 1990): a car too weak for the hill must first roll back. And a shaped variant to learn it from."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM
from ...scene import Disc, Line, Polygon, Scene, Shape
from ...types import Box, Discrete
from ..tensor import TensorEnv

TOP_SPEED = 0.07
LEFT, RIGHT, GOAL = -1.2, 0.6, 0.5
HILL = 60  # points of the hill, as drawn


class MountainCar(TensorEnv):
    """State and observation: position, velocity. Actions: push left, coast, push right."""

    observation = Box((2,))
    action = Discrete(3)
    noise_size = 1
    time_limit = 200
    solved_at: ClassVar[float | None] = -110.0
    action_names, push = ("left", "none", "right"), (0.0, 0.015)
    force, gravity = 0.001, 0.0025

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([noise * 0.2 - 0.6, torch.zeros_like(noise)], -1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        x, v = state.unbind(-1)
        v = (v + (action - 1).to(state.dtype) * self.force - self.gravity * (3 * x).cos()).clamp(-TOP_SPEED, TOP_SPEED)
        x = (x + v).clamp(LEFT, RIGHT)
        v = torch.where(x <= LEFT, v.clamp(min=0.0), v)  # an inelastic wall
        return torch.stack([x, v], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -torch.ones_like(state[:, 0])

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= GOAL) & (state[:, 1] >= 0)

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        x = obs[:, 0]
        height, angle = (
            0.45 * (3 * x).sin(),
            (1.35 * (3 * x).cos()).atan(),
        )  # the car stands on the hill along its normal
        sin, cos = angle.sin(), angle.cos()

        def at(forward: float, up: float) -> tuple[Tensor, Tensor]:
            return x + forward * cos - up * sin, height + forward * sin + up * cos

        body = [at(-0.11, 0.04), at(-0.11, 0.1), at(0.11, 0.1), at(0.11, 0.04)]
        cabin = [at(-0.06, 0.1), at(-0.04, 0.15), at(0.04, 0.15), at(0.07, 0.1)]
        wheels = [Disc(at(wheel, 0.035), 0.035, color=INK) for wheel in (-0.065, 0.065)]
        car = [Polygon(body, color=ACCENT), Polygon(cabin, color=ACCENT), *wheels]
        return Scene(160, 112, RIGHT - LEFT + 0.2, [*valley(), *car], center=((LEFT + RIGHT) / 2, 0.05))


def valley() -> list[Shape]:
    """The hill, and the flag on it."""
    xs = [LEFT - 0.2 + k / (HILL - 1) * (RIGHT - LEFT + 0.4) for k in range(HILL)]
    hill = [(x, 0.45 * math.sin(3 * x)) for x in xs]
    foot = 0.45 * math.sin(3 * GOAL)
    top = foot + 0.24
    flag = [(GOAL, top), (GOAL - 0.13, top - 0.055), (GOAL, top - 0.11)]
    ground = Polygon([*hill, (RIGHT + 0.2, -2.0), (LEFT - 0.2, -2.0)], color=MUTED)
    return [ground, Line((GOAL, foot), (GOAL, top), 0.02, color=INK), Polygon(flag, color=WARM)]


class MountainCarShaped(MountainCar):
    """MountainCar plus gamma Phi(s') - Phi(s), with the energy v^2/2 + (gravity/3) sin 3x as the potential Phi.

    A potential leaves the best policy what it was (Ng et al. 1999); the energy itself as a reward would pay for never
    finishing. The potential of a terminal state is 0 by definition. A learner sets `gamma` to its own discount.
    """

    gamma, scale = 0.99, 4000.0
    solved_at = None

    def potential(self, state: Tensor) -> Tensor:
        x, v = state.unbind(-1)
        energy = v.square() / 2 + self.gravity / 3 * (3 * x).sin()
        lowest = -self.gravity / 3
        return self.scale * (energy - lowest) * ~self.terminated(state)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        plain = super().reward(state, action, next_state)
        return plain + self.gamma * self.potential(next_state) - self.potential(state)
