"""CartPole-v1 (Barto, Sutton and Anderson 1983) with the constants of Gymnasium, and its reward-shaped relatives."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM, Canvas
from ...types import Box, Discrete
from ..tensor import TensorEnv
from .physics import wrap_angle

GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
TOTAL_MASS, POLE_MOMENT = CART_MASS + POLE_MASS, POLE_MASS * HALF_LENGTH
FORCE, TAU = 10.0, 0.02
TRACK, LEAN = 2.4, 12 * 2 * math.pi / 360


class CartPole(TensorEnv):
    """Keep the pole up by pushing the cart left (0) or right (1). State and observation: x, v, theta, omega."""

    observation = Box((4,))
    action = Discrete(2)
    noise_size = 4
    time_limit = 500
    solved_at: ClassVar[float | None] = 495.0
    solved_by_surviving = True
    pace = round(1 / TAU)
    view = 2 * TRACK + 0.8  # metres across the picture

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.1 - 0.05

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        _, v, theta, omega = state.unbind(-1)
        force = action * (2 * FORCE) - FORCE
        sin, cos = theta.sin(), theta.cos()
        push = (force + POLE_MOMENT * omega.square() * sin) / TOTAL_MASS
        angular = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS / TOTAL_MASS * cos.square()))
        linear = push - POLE_MOMENT / TOTAL_MASS * angular * cos
        return state + TAU * torch.stack([v, linear, omega, angular], -1)  # explicit Euler

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0])

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0].abs() > TRACK) | (state[:, 2].abs() > LEAN)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.stack([self.draw_cart(*row[:3:2]).frame for row in obs.tolist()])

    def draw_cart(self, x: float, theta: float) -> Canvas:
        theta = theta if math.isfinite(theta) else 0.0
        canvas = Canvas(160, 80, span=self.view, center=(0, 0.3), backdrop=track)
        for wheel in (x - 0.2, x + 0.2):
            canvas.disc((wheel, -0.13), 0.1, INK)
        canvas.box((x, 0.06), 0.72, 0.3, INK)
        pivot, length = (x, 0.14), 2 * HALF_LENGTH
        tip = (x + length * math.sin(theta), pivot[1] + length * math.cos(theta))
        canvas.line(pivot, tip, WARM, 0.14)
        canvas.disc(tip, 0.07, WARM)
        canvas.disc(pivot, 0.09, BACKGROUND)
        return canvas


def track(canvas: Canvas) -> None:
    """What the cart rolls on, and where it ends."""
    canvas.line((-TRACK, -0.25), (TRACK, -0.25), MUTED, 0.04)
    for end in (-TRACK, TRACK):
        canvas.line((end, -0.4), (end, -0.1), MUTED, 0.05)


class EasyCart(CartPole):
    """CartPole paid for being upright and central: a denser reward for the same task, judged by episode length."""

    solved_at = None

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - (next_state[:, 0].abs() / TRACK + next_state[:, 2].abs() / LEAN) / 2


class SpinCart(CartPole):
    """Whirl the pole as fast as it will go without leaving the middle of the track."""

    solved_at = None
    solved_by_surviving = False
    unit = "rad/s"
    top_speed = 15.0  # rad/s beyond which faster pays no more
    view = 2 * TRACK + 2.4  # room for a level pole at the end of the track

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        x, omega = next_state[:, 0], next_state[:, 3]
        return omega.abs().clamp(max=self.top_speed) / self.top_speed * (1 - x.abs() / TRACK).clamp(min=0.0).square()

    def measure(self, state: Tensor) -> Tensor:
        return state[:, 3].abs()

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0].abs() > TRACK

    def observe(self, state: Tensor) -> Tensor:
        x, v, theta, omega = state.unbind(-1)
        return torch.stack([x, v, wrap_angle(theta), omega], -1)


class DanceCart(CartPole):
    """Sway from side to side in time with a beat, the pole held up.

    The beat is a fifth number of the state, an angle that grows by 2 pi every `period` steps; the dancer is asked to be at
    `sway` sin(beat). The observation shows the beat as its sine and cosine. Swaying takes more leaning than balancing
    does, so the pole may lean further before the dance is over.
    """

    observation = Box((6,))
    noise_size = 5
    solved_at = None
    solved_by_surviving = False
    unit = "m off the beat"
    sway, period, lean = 0.8, 150, math.pi / 4  # metres, steps, radians

    def initial(self, noise: Tensor) -> Tensor:
        start = noise * 0.1 - 0.05
        start[:, 4] = 0.0
        return start

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        beat = state[:, 4:] + 2 * math.pi / self.period
        return torch.cat([super().advance(state[:, :4], action), beat], -1)

    def observe(self, state: Tensor) -> Tensor:
        beat = state[:, 4:]
        return torch.cat([state[:, :4], beat.sin(), beat.cos()], -1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (1 - self.measure(next_state) / self.sway).clamp(min=0.0)

    def measure(self, state: Tensor) -> Tensor:
        return (state[:, 0] - self.sway * state[:, 4].sin()).abs()

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0].abs() > TRACK) | (state[:, 2].abs() > self.lean)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        frames = []
        for x, _, theta, _, sin, _ in obs.tolist():
            canvas = self.draw_cart(x, theta)
            canvas.line((-self.sway, -0.65), (self.sway, -0.65), MUTED, 0.04)
            canvas.disc((self.sway * sin, -0.65), 0.13, ACCENT)
            frames.append(canvas.frame)
        return np.stack(frames)
