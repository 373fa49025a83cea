"""CartDoublePendulum-v0: swing two links hanging from a cart up, and hold them there.

Point masses at the ends of massless links; angles are absolute, from upright, clockwise positive. The equations of motion
are those of the Lagrangian, integrated by Runge-Kutta.
"""

import math

import numpy as np
import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM, Canvas
from ...types import Box
from ..tensor import TensorEnv
from .physics import runge_kutta, solve_symmetric3

CART, BOB, LENGTH, GRAVITY = 1.0, 0.5, 0.6, 9.81
FORCE, DT, SUBSTEPS, RAIL, CLAMP = 18.0, 0.02, 2, 3.0, 20.0


class CartDoublePendulum(TensorEnv):
    """State: x, v, both angles, both speeds. Observation: x, v, cos and sin of both angles, both speeds."""

    observation = Box((8,))
    action = Box((1,), -1.0, 1.0)
    noise_size = 6
    time_limit = 500
    pace = round(1 / DT)

    def initial(self, noise: Tensor) -> Tensor:
        start = 0.05 * (2 * noise - 1)
        start[:, 2:4] += math.pi  # hanging
        return start

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        force = FORCE * action[:, 0].clamp(-1.0, 1.0)
        for _ in range(SUBSTEPS):
            state = runge_kutta(lambda s: _derivative(s, force), state, DT / SUBSTEPS)
        return state

    def observe(self, state: Tensor) -> Tensor:
        x, v, a, b, da, db = state.unbind(-1)
        return torch.stack([x, v, a.cos(), a.sin(), b.cos(), b.sin(), da, db], -1).clamp(-CLAMP, CLAMP)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        x, _, a, b, da, db = next_state.unbind(-1)
        upright = (2 + a.cos() + b.cos()) / 4
        tip = (a.cos() + b.cos()) / 2
        effort = 0.001 * action[:, 0].clamp(-1.0, 1.0).square() + 0.002 * (da.square() + db.square())
        fell = 10.0 * self.terminated(next_state)
        return upright + 0.5 * tip.clamp(min=0.0) + 0.1 * (1 - (x / RAIL).square()) - effort - fell

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0].abs() > RAIL

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.stack([self._frame(*row[:6]) for row in obs.tolist()])

    @staticmethod
    def _frame(x: float, _: float, cos_a: float, sin_a: float, cos_b: float, sin_b: float) -> np.ndarray:
        canvas = Canvas(240, 88, span=2 * (RAIL + 2 * LENGTH) + 0.7, backdrop=rail)
        canvas.box((x, 0), 0.56, 0.28, INK)
        elbow = (x + LENGTH * sin_a, LENGTH * cos_a)
        tip = (elbow[0] + LENGTH * sin_b, elbow[1] + LENGTH * cos_b)
        canvas.line((x, 0), elbow, WARM, 0.13)
        canvas.line(elbow, tip, ACCENT, 0.13)
        canvas.disc((x, 0), 0.07, BACKGROUND)
        for bob in (elbow, tip):
            canvas.disc(bob, 0.12, INK)
        return canvas.frame


def rail(canvas: Canvas) -> None:
    """What the cart glides on, and where it ends."""
    canvas.line((-RAIL, 0), (RAIL, 0), MUTED, 0.05)
    for end in (-RAIL, RAIL):
        canvas.line((end, -0.15), (end, 0.15), MUTED, 0.05)


def _derivative(state: Tensor, force: Tensor) -> Tensor:
    _, v, a, b, da, db = state.unbind(-1)
    sin_a, cos_a, sin_b, cos_b = a.sin(), a.cos(), b.sin(), b.cos()
    sin_ab, cos_ab = (a - b).sin(), (a - b).cos()
    both, upper, lower = 2 * BOB, 2 * BOB * LENGTH, BOB * LENGTH
    mass = (
        torch.full_like(a, CART + both), upper * cos_a, lower * cos_b,
        torch.full_like(a, upper * LENGTH), lower * LENGTH * cos_ab, torch.full_like(a, lower * LENGTH),
    )  # fmt: skip
    forces = (
        force + upper * sin_a * da.square() + lower * sin_b * db.square(),
        upper * GRAVITY * sin_a - lower * LENGTH * sin_ab * db.square(),
        lower * GRAVITY * sin_b + lower * LENGTH * sin_ab * da.square(),
    )
    dv, dda, ddb = solve_symmetric3(mass, forces)
    return torch.stack([v, dv, da, db, dda, ddb], -1)
