"""Pendulums: Pendulum-v1, Acrobot-v1 of two links, and CartDoublePendulum-v0 of two links on a cart."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...draw import ACCENT, BACKGROUND, INK, MUTED, WARM
from ...scene import Curve, Disc, Line, Polygon, Rectangle, Scene, Shape
from ...types import Box, Discrete
from ..tensor import TensorEnv

# of Pendulum
LENGTH, DT, TOP_SPEED, TOP_TORQUE = 1.0, 0.05, 8.0, 2.0
RING, ARC = 0.45, 16  # where the torque is drawn, and points of its arc
# of Acrobot, whose links both have length 1, mass 1, centre of mass 0.5 and moment of inertia 1
CENTER, INERTIA, ACROBOT_DT = 0.5, 1.0, 0.2
TOP_SPEEDS = (4 * math.pi, 9 * math.pi)
# of CartDoublePendulum
LINK, CART_DT, SUBSTEPS, RAIL, CLAMP = 0.6, 0.02, 2, 3.0, 20.0


class Pendulum(TensorEnv):
    """Swing a pendulum up with too little torque, and hold it there.

    State: angle from upright (anticlockwise), speed. Observation: cos, sin, speed. Action: a torque.
    """

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


class PendulumNoVelocity(Pendulum):
    """Pendulum that shows only its angle, as cosine and sine."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return super().observe(state)[:, :2].clone()


class Acrobot(TensorEnv):
    """Two links and a motor at the joint between them: swing the tip above the bar (Sutton 1996).

    State: both angles (the second relative to the first) and speeds. Observation: cosines, sines, speeds.
    The dynamics are those of Sutton and Barto's book, integrated by one Runge-Kutta step, as in Gymnasium.
    """

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
        theta1, theta2, speed1, speed2 = runge_kutta(lambda s: self.derivative(s, torque), state, ACROBOT_DT).unbind(-1)
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


class CartDoublePendulum(TensorEnv):
    """Swing two links that hang from a cart up, and hold them there.

    Point masses at the ends of massless links; angles are absolute, from upright, clockwise positive. The equations of motion
    are those of the Lagrangian. State: x, v, both angles, both speeds. Observation: x, v, cos and sin of both
    angles, both speeds.
    """

    observation = Box((8,))
    action = Box((1,), -1.0, 1.0)
    noise_size = 6
    time_limit = 500
    pace = round(1 / CART_DT)
    push = (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    cart_mass, bob_mass, length, gravity, force = 1.0, 0.5, LINK, 9.81, 18.0

    def initial(self, noise: Tensor) -> Tensor:
        start = 0.05 * (2 * noise - 1)
        start[:, 2:4] += math.pi  # hanging
        return start

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        force = self.force * action[:, 0].clamp(-1.0, 1.0)
        for _ in range(SUBSTEPS):
            state = runge_kutta(lambda s: self.derivative(s, force), state, CART_DT / SUBSTEPS)
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
        return Scene(240, 88, span=2 * (RAIL + 2 * LINK) + 0.7, shapes=shapes)

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


# numerics -----------------------------------------------------------------------------------------------------------


def runge_kutta(derivative: Callable[[Tensor], Tensor], state: Tensor, dt: float) -> Tensor:
    """One classical fourth-order step."""
    k1 = derivative(state)
    k2 = derivative(state + dt / 2 * k1)
    k3 = derivative(state + dt / 2 * k2)
    k4 = derivative(state + dt * k3)
    return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def solve_symmetric3(
    m: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], r: tuple[Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """x of M x = r for symmetric 3 x 3 matrices given as (m00, m01, m02, m11, m12, m22), by cofactors."""
    m00, m01, m02, m11, m12, m22 = m
    c00, c01, c02 = m11 * m22 - m12 * m12, m02 * m12 - m01 * m22, m01 * m12 - m02 * m11
    c11, c12, c22 = m00 * m22 - m02 * m02, m01 * m02 - m00 * m12, m00 * m11 - m01 * m01
    determinant = m00 * c00 + m01 * c01 + m02 * c02
    r0, r1, r2 = r
    rows = (c00 * r0 + c01 * r1 + c02 * r2, c01 * r0 + c11 * r1 + c12 * r2, c02 * r0 + c12 * r1 + c22 * r2)
    return [row / determinant for row in rows]
