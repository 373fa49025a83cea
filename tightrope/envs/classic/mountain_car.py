"""MountainCar-v0 (Moore 1990): a car too weak for the hill must first roll back. And a shaped variant to learn it from."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM, Canvas
from ...types import Box, Discrete
from ..tensor import TensorEnv

FORCE, GRAVITY, TOP_SPEED = 0.001, 0.0025, 0.07
LEFT, RIGHT, GOAL = -1.2, 0.6, 0.5


class MountainCar(TensorEnv):
    """State and observation: position, velocity. Actions: push left, coast, push right."""

    observation = Box((2,))
    action = Discrete(3)
    noise_size = 1
    time_limit = 200
    solved_at: ClassVar[float | None] = -110.0

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([noise * 0.2 - 0.6, torch.zeros_like(noise)], -1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        x, v = state.unbind(-1)
        v = (v + (action - 1).to(state.dtype) * FORCE - GRAVITY * (3 * x).cos()).clamp(-TOP_SPEED, TOP_SPEED)
        x = (x + v).clamp(LEFT, RIGHT)
        v = torch.where(x <= LEFT, v.clamp(min=0.0), v)  # an inelastic wall
        return torch.stack([x, v], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return -torch.ones_like(state[:, 0])

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0] >= GOAL) & (state[:, 1] >= 0)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.stack([self._frame(x) for x, _ in obs.tolist()])

    @staticmethod
    def _frame(x: float) -> np.ndarray:
        x = x if math.isfinite(x) else LEFT
        canvas = Canvas(160, 112, span=RIGHT - LEFT + 0.2, center=((LEFT + RIGHT) / 2, 0.05), backdrop=valley)
        angle = math.atan(1.35 * math.cos(3 * x))  # the car stands on the hill along its normal

        def at(forward: float, up: float) -> tuple[float, float]:
            cos, sin = math.cos(angle), math.sin(angle)
            return x + forward * cos - up * sin, _height(x) + forward * sin + up * cos

        canvas.polygon([at(-0.11, 0.04), at(-0.11, 0.1), at(0.11, 0.1), at(0.11, 0.04)], ACCENT)
        canvas.polygon([at(-0.06, 0.1), at(-0.04, 0.15), at(0.04, 0.15), at(0.07, 0.1)], ACCENT)
        for wheel in (-0.065, 0.065):
            canvas.disc(at(wheel, 0.035), 0.035, INK)
        return canvas.frame


def valley(canvas: Canvas) -> None:
    """The hill, and the flag on it."""
    hill = [(at, _height(at)) for at in np.linspace(LEFT - 0.2, RIGHT + 0.2, 60).tolist()]
    canvas.polygon([*hill, (RIGHT + 0.2, -2), (LEFT - 0.2, -2)], MUTED)
    top = _height(GOAL) + 0.24
    canvas.line((GOAL, _height(GOAL)), (GOAL, top), INK, 0.02)
    canvas.polygon([(GOAL, top), (GOAL - 0.13, top - 0.055), (GOAL, top - 0.11)], WARM)


def _height(x: float) -> float:
    """Of the hill, as drawn."""
    return 0.45 * math.sin(3 * x)


class MountainCarShaped(MountainCar):
    """MountainCar plus gamma Phi(s') - Phi(s), with the energy v^2/2 + (gravity/3) sin 3x as the potential Phi.

    A potential leaves the best policy what it was (Ng et al. 1999); the energy itself as a reward would pay for never
    finishing. The potential of a terminal state is 0 by definition. A learner sets `gamma` to its own discount.
    """

    gamma, scale = 0.99, 4000.0
    solved_at = None

    def potential(self, state: Tensor) -> Tensor:
        x, v = state.unbind(-1)
        energy = v.square() / 2 + GRAVITY / 3 * (3 * x).sin()
        lowest = -GRAVITY / 3
        return self.scale * (energy - lowest) * ~self.terminated(state)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        plain = super().reward(state, action, next_state)
        return plain + self.gamma * self.potential(next_state) - self.potential(state)
