"""Pendulum-v1: swing a pendulum up with too little torque, and hold it there."""

import math

import numpy as np
import torch
from torch import Tensor

from ..draw import ACCENT, BACKGROUND, INK, MUTED, WARM, Canvas
from ..types import Box
from .physics import wrap_angle
from .tensor import TensorEnv

GRAVITY, MASS, LENGTH, DT, TOP_SPEED, TOP_TORQUE = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0


class Pendulum(TensorEnv):
    """State: angle from upright (anticlockwise), speed. Observation: cos, sin, speed. Action: a torque."""

    observation = Box((3,))
    action = Box((1,), -TOP_TORQUE, TOP_TORQUE)
    noise_size = 2
    time_limit = 200
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
        canvas = Canvas(128, 128, span=2.6)
        canvas.disc((0, 0), 1.02, MUTED)
        canvas.disc((0, 0), 1.0, BACKGROUND)
        tip = (-LENGTH * sin, LENGTH * cos)
        canvas.line((0, 0), tip, WARM, 0.14)
        canvas.disc(tip, 0.11, INK)
        canvas.disc((0, 0), 0.07, INK)
        if torque:
            sweep = max(-1.0, min(1.0, torque / TOP_TORQUE)) * 2.5
            canvas.arc((0, 0), 0.35, math.pi / 2, math.pi / 2 + sweep, ACCENT, 0.05)
        return canvas.frame
