"""Pendulum-v1: swing a pendulum up with too little torque, and hold it there."""

import math

import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM
from ...scene import Curve, Disc, Line, Polygon, Scene, Shape
from ...types import Box
from ..tensor import TensorEnv
from .physics import wrap_angle

LENGTH, DT, TOP_SPEED, TOP_TORQUE = 1.0, 0.05, 8.0, 2.0
RING, ARC = 0.45, 16  # where the torque is drawn, and points of its arc


class Pendulum(TensorEnv):
    """State: angle from upright (anticlockwise), speed. Observation: cos, sin, speed. Action: a torque."""

    observation = Box((3,))
    action = Box((1,), -TOP_TORQUE, TOP_TORQUE)
    noise_size = 2
    time_limit = 200
    pace = round(1 / DT)
    solved_at = -200.0
    push = (0.0, -1.5)
    gravity, mass, length = 10.0, 1.0, LENGTH

    def initial(self, noise: Tensor) -> Tensor:
        angle, speed = (2 * noise - 1).unbind(-1)
        return torch.stack([math.pi * angle, speed], -1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-TOP_TORQUE, TOP_TORQUE)
        pull = 3 * self.gravity / (2 * self.length) * angle.sin() + 3 / (self.mass * self.length**2) * torque
        speed = (speed + pull * DT).clamp(-TOP_SPEED, TOP_SPEED)
        return torch.stack([angle + speed * DT, speed], -1)  # the new speed moves the angle

    def observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), speed], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-TOP_TORQUE, TOP_TORQUE)
        return -(wrap_angle(angle).square() + 0.1 * speed.square() + 0.001 * torque.square())

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        tip = (-self.length * obs[:, 1], self.length * obs[:, 0])
        circle: list[Shape] = [  # where the tip goes, and the top it has to reach
            Disc((0.0, 0.0), LENGTH + 0.03, color=MUTED),
            Disc((0.0, 0.0), LENGTH, color=BACKGROUND),
            Line((0.0, LENGTH - 0.1), (0.0, LENGTH + 0.13), 0.05, color=MUTED),
        ]
        pole = [Line((0.0, 0.0), tip, 0.16, color=WARM), Disc(tip, 0.13, color=WARM), Disc((0.0, 0.0), 0.09, color=INK)]
        return Scene(128, 128, span=2.7, shapes=[*circle, *pole, *([] if action is None else arrow(action[:, 0]))])


def arrow(torque: Tensor) -> list[Shape]:
    """A torque as an arrow on a ring, from its top on."""
    sweep = (torque / TOP_TORQUE).clamp(-1.0, 1.0) * 2.5
    end, turn, shown = sweep + math.pi / 2, sweep.sign(), sweep.abs() > 0.05
    angles = [math.pi / 2 + k / (ARC - 1) * sweep for k in range(ARC)]
    ring = Curve([(RING * a.cos(), RING * a.sin()) for a in angles], 0.06, color=ACCENT, shown=shown)
    corners = ((RING, 0.32), (RING - 0.12, -0.1), (RING + 0.12, -0.1))  # distance from the middle, angle ahead
    head = [(r * (end + turn * ahead).cos(), r * (end + turn * ahead).sin()) for r, ahead in corners]
    return [ring, Polygon(head, color=ACCENT, shown=shown)]
