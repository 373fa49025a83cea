"""CartPole-v1 (Barto, Sutton and Anderson 1983) with the constants of Gymnasium, with other rewards, and without velocities."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM
from ...scene import Disc, Line, Rectangle, Scene, Shape
from ...types import Box, Discrete
from ..tensor import TensorEnv
from .pendulums import wrap_angle

TAU = 0.02
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
    action_names = ("left", "right")
    push: ClassVar[tuple[float, ...]] = (0.0, 0.4, 0.0, 0.0)
    view = 2 * TRACK + 0.8  # metres across the picture
    gravity, cart_mass, pole_mass, half_length, force = 9.8, 1.0, 0.1, 0.5, 10.0

    def initial(self, noise: Tensor) -> Tensor:
        return noise * 0.1 - 0.05

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        _, v, theta, omega = state.unbind(-1)
        mass, moment = self.cart_mass + self.pole_mass, self.pole_mass * self.half_length
        force = action * (2 * self.force) - self.force
        sin, cos = theta.sin(), theta.cos()
        push = (force + moment * omega.square() * sin) / mass
        swing = self.half_length * (4 / 3 - self.pole_mass / mass * cos.square())
        angular = (self.gravity * sin - cos * push) / swing
        linear = push - moment / mass * angular * cos
        return state + TAU * torch.stack([v, linear, omega, angular], -1)  # explicit Euler

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0])

    def terminated(self, state: Tensor) -> Tensor:
        return (state[:, 0].abs() > TRACK) | (state[:, 2].abs() > LEAN)

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        return self.picture(self.cart(obs[:, 0], obs[:, 2]))

    def picture(self, shapes: list[Shape]) -> Scene:
        return Scene(200, 100, span=self.view, center=(0.0, 0.3), shapes=[*self.track(), *shapes])

    def track(self) -> list[Shape]:
        """What the cart rolls on, and where it ends."""
        ends = [Line((end, -0.4), (end, -0.1), 0.05, color=MUTED) for end in (-TRACK, TRACK)]
        return [Line((-TRACK, -0.25), (TRACK, -0.25), 0.04, color=MUTED), *ends]

    def cart(self, x: Tensor, theta: Tensor) -> list[Shape]:
        wheels = [Disc((x + side, -0.12), 0.11, color=INK) for side in (-0.2, 0.2)]
        length = 2 * self.half_length
        pivot, tip = (x, 0.14), (x + length * theta.sin(), 0.14 + length * theta.cos())
        pole = [Line(pivot, tip, 0.14, color=WARM), Disc(tip, 0.07, color=WARM), Disc(pivot, 0.09, color=BACKGROUND)]
        return [*wheels, Rectangle((x, 0.07), 0.72, 0.26, color=INK), *pole]


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
    push = (0.0, 0.4, 0.0, 0.0, 0.0)
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

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        beat = Line((-self.sway, -0.65), (self.sway, -0.65), 0.04, color=MUTED)
        place = Disc((self.sway * obs[:, 4], -0.65), 0.13, color=ACCENT)
        return self.picture([beat, *self.cart(obs[:, 0], obs[:, 2]), place])


class CartPoleNoVelocity(CartPole):
    """CartPole that shows only the position of the cart and the angle of the pole."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2].clone()

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        return self.picture(self.cart(*obs.unbind(-1)))
