"""Acrobot-v1 (Sutton 1996): two links, a motor at the joint between them; swing the tip above the bar.

The dynamics are those of Sutton and Barto's book, integrated by one fourth-order Runge-Kutta step, as in Gymnasium.
"""

import math

import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM
from ...scene import Disc, Line, Scene
from ...types import Box, Discrete
from ..tensor import TensorEnv
from .physics import runge_kutta, wrap_angle

# Both links: length 1, mass 1, centre of mass 0.5, moment of inertia 1.
CENTER, INERTIA, DT = 0.5, 1.0, 0.2
TOP_SPEEDS = (4 * math.pi, 9 * math.pi)


class Acrobot(TensorEnv):
    """State: both angles (the second relative to the first) and speeds. Observation: cosines, sines, speeds."""

    observation = Box((6,))
    action = Discrete(3)
    noise_size = 4
    time_limit = 500
    pace = 15  # three times as fast as it would be: its steps are long
    solved_at = -90.0
    action_names, push = ("left", "none", "right"), (0.0, 0.0, 1.0, 0.0)
    gravity = 9.8

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.2 - 0.1

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        torque = (action - 1).to(state.dtype)
        theta1, theta2, speed1, speed2 = runge_kutta(lambda s: self.derivative(s, torque), state, DT).unbind(-1)
        speed1 = speed1.clamp(-TOP_SPEEDS[0], TOP_SPEEDS[0])
        speed2 = speed2.clamp(-TOP_SPEEDS[1], TOP_SPEEDS[1])
        return torch.stack([wrap_angle(theta1), wrap_angle(theta2), speed1, speed2], -1)

    def observe(self, state: Tensor) -> Tensor:
        theta1, theta2, speed1, speed2 = state.unbind(-1)
        return torch.stack([theta1.cos(), theta1.sin(), theta2.cos(), theta2.sin(), speed1, speed2], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return self.terminated(next_state).to(state.dtype) - 1

    def terminated(self, state: Tensor) -> Tensor:
        theta1, theta2 = state[:, 0], state[:, 1]
        return -theta1.cos() - (theta1 + theta2).cos() > 1

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        cos1, sin1, cos2, sin2 = obs[:, :4].unbind(-1)
        elbow = (sin1, -cos1)
        tip = (elbow[0] + sin1 * cos2 + cos1 * sin2, elbow[1] - (cos1 * cos2 - sin1 * sin2))
        bar = Line((-2.1, 1.0), (2.1, 1.0), 0.06, color=MUTED)  # what the tip has to be swung above
        upper, lower = Line((0.0, 0.0), elbow, 0.18, color=WARM), Line(elbow, tip, 0.18, color=ACCENT)
        joints = [Disc(joint, 0.13, color=INK) for joint in ((0.0, 0.0), elbow)]
        return Scene(128, 128, span=4.6, shapes=[bar, upper, lower, Disc(tip, 0.09, color=ACCENT), *joints])

    def derivative(self, state: Tensor, torque: Tensor) -> Tensor:
        theta1, theta2, speed1, speed2 = state.unbind(-1)
        sin2, cos2 = theta2.sin(), theta2.cos()
        d1 = CENTER**2 + (1 + CENTER**2 + 2 * CENTER * cos2) + 2 * INERTIA
        d2 = CENTER**2 + CENTER * cos2 + INERTIA
        phi2 = CENTER * self.gravity * (theta1 + theta2).sin()
        phi1 = -CENTER * speed2 * (speed2 + 2 * speed1) * sin2 + (CENTER + 1) * self.gravity * theta1.sin() + phi2
        acceleration2 = (torque + d2 / d1 * phi1 - CENTER * speed1.square() * sin2 - phi2) / (
            CENTER**2 + INERTIA - d2.square() / d1
        )
        acceleration1 = -(d2 * acceleration2 + phi1) / d1
        return torch.stack([speed1, speed2, acceleration1, acceleration2], -1)
