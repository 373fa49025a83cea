"""CartDoublePendulum-v0: swing two links hanging from a cart up, and hold them there.

Point masses at the ends of massless links; angles are absolute, from upright, clockwise positive. The equations of motion
are those of the Lagrangian, integrated by Runge-Kutta.
"""

import math

import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM
from ...scene import Disc, Line, Rectangle, Scene
from ...types import Box
from ..tensor import TensorEnv
from .physics import runge_kutta, solve_symmetric3

LENGTH = 0.6
DT, SUBSTEPS, RAIL, CLAMP = 0.02, 2, 3.0, 20.0


class CartDoublePendulum(TensorEnv):
    """State: x, v, both angles, both speeds. Observation: x, v, cos and sin of both angles, both speeds."""

    observation = Box((8,))
    action = Box((1,), -1.0, 1.0)
    noise_size = 6
    time_limit = 500
    pace = round(1 / DT)
    push = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    cart_mass, bob_mass, length, gravity, force = 1.0, 0.5, LENGTH, 9.81, 18.0

    def initial(self, noise: Tensor) -> Tensor:
        start = 0.05 * (2 * noise - 1)
        start[:, 2:4] += math.pi  # hanging
        return start

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        force = self.force * action[:, 0].clamp(-1.0, 1.0)
        for _ in range(SUBSTEPS):
            state = runge_kutta(lambda s: self.derivative(s, force), state, DT / SUBSTEPS)
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

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        x, _, cos_a, sin_a, cos_b, sin_b = obs[:, :6].unbind(-1)
        elbow = (x + self.length * sin_a, self.length * cos_a)
        tip = (elbow[0] + self.length * sin_b, elbow[1] + self.length * cos_b)
        ends = [Line((end, -0.15), (end, 0.15), 0.05, color=MUTED) for end in (-RAIL, RAIL)]
        rail = [Line((-RAIL, 0.0), (RAIL, 0.0), 0.05, color=MUTED), *ends]
        links = [Line((x, 0.0), elbow, 0.13, color=WARM), Line(elbow, tip, 0.13, color=ACCENT)]
        bobs = [Disc(bob, 0.12, color=INK) for bob in (elbow, tip)]
        shapes = [
            *rail,
            Rectangle((x, 0.0), 0.56, 0.28, color=INK),
            *links,
            Disc((x, 0.0), 0.07, color=BACKGROUND),
            *bobs,
        ]
        return Scene(240, 88, span=2 * (RAIL + 2 * LENGTH) + 0.7, shapes=shapes)

    def derivative(self, state: Tensor, force: Tensor) -> Tensor:
        _, v, a, b, da, db = state.unbind(-1)
        sin_a, cos_a, sin_b, cos_b = a.sin(), a.cos(), b.sin(), b.cos()
        sin_ab, cos_ab = (a - b).sin(), (a - b).cos()
        length, gravity = self.length, self.gravity
        both, upper, lower = 2 * self.bob_mass, 2 * self.bob_mass * length, self.bob_mass * length
        mass = (
            torch.full_like(a, self.cart_mass + both), upper * cos_a, lower * cos_b,
            torch.full_like(a, upper * length), lower * length * cos_ab, torch.full_like(a, lower * length),
        )  # fmt: skip
        forces = (
            force + upper * sin_a * da.square() + lower * sin_b * db.square(),
            upper * gravity * sin_a - lower * length * sin_ab * db.square(),
            lower * gravity * sin_b + lower * length * sin_ab * da.square(),
        )
        dv, dda, ddb = solve_symmetric3(mass, forces)
        return torch.stack([v, dv, da, db, dda, ddb], -1)
