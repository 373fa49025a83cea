"""Pendulum-v1: swing a pendulum up with too little torque, and hold it there."""

import math

import numpy as np
import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM, Canvas
from ...types import Box
from ..tensor import TensorEnv
from .physics import wrap_angle

GRAVITY, MASS, LENGTH, DT, TOP_SPEED, TOP_TORQUE = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0
RING = 0.45  # where the torque is drawn


class Pendulum(TensorEnv):
    """State: angle from upright (anticlockwise), speed. Observation: cos, sin, speed. Action: a torque."""

    observation = Box((3,))
    action = Box((1,), -TOP_TORQUE, TOP_TORQUE)
    noise_size = 2
    time_limit = 200
    pace = round(1 / DT)
    solved_at = -200.0

    def initial(self, noise: Tensor) -> Tensor:
        angle, speed = (2 * noise - 1).unbind(-1)
        return torch.stack([math.pi * angle, speed], -1)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-TOP_TORQUE, TOP_TORQUE)
        pull = 3 * GRAVITY / (2 * LENGTH) * angle.sin() + 3 / (MASS * LENGTH**2) * torque
        speed = (speed + pull * DT).clamp(-TOP_SPEED, TOP_SPEED)
        return torch.stack([angle + speed * DT, speed], -1)  # the new speed moves the angle

    def observe(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), speed], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        torque = action[:, 0].clamp(-TOP_TORQUE, TOP_TORQUE)
        return -(wrap_angle(angle).square() + 0.1 * speed.square() + 0.001 * torque.square())

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        torques = [0.0] * len(obs) if action is None else action[:, 0].tolist()
        return np.stack([self._frame(row, torque) for row, torque in zip(obs.tolist(), torques, strict=True)])

    @staticmethod
    def _frame(obs: list[float], torque: float) -> np.ndarray:
        cos, sin, _ = obs
        canvas = Canvas(128, 128, span=2.7, backdrop=circle)
        tip = (-LENGTH * sin, LENGTH * cos)
        canvas.line((0, 0), tip, WARM, 0.16)
        canvas.disc(tip, 0.13, WARM)
        canvas.disc((0, 0), 0.09, INK)
        sweep = max(-1.0, min(1.0, torque / TOP_TORQUE)) * 2.5
        if abs(sweep) > 0.05:
            canvas.arc((0, 0), RING, math.pi / 2, math.pi / 2 + sweep, ACCENT, 0.06)
            canvas.polygon(arrow_head(math.pi / 2 + sweep, math.copysign(1.0, sweep)), ACCENT)
        return canvas.frame


def circle(canvas: Canvas) -> None:
    """Where the tip goes, and the top it has to reach."""
    canvas.disc((0, 0), LENGTH + 0.03, MUTED)
    canvas.disc((0, 0), LENGTH, BACKGROUND)
    canvas.line((0, LENGTH - 0.1), (0, LENGTH + 0.13), MUTED, 0.05)


def arrow_head(angle: float, turn: float) -> list[tuple[float, float]]:
    """A triangle on the ring of the torque at that angle, pointing on around it."""
    corners = ((RING, 0.32), (RING - 0.12, -0.1), (RING + 0.12, -0.1))
    return [(r * math.cos(angle + turn * ahead), r * math.sin(angle + turn * ahead)) for r, ahead in corners]
