"""Tasks that need memory: two of classic control without their velocities, and probes that show a cue and ask for it later."""

import numpy as np
import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM, Canvas
from ...types import Box, Discrete
from ..tensor import TensorEnv
from .cartpole import CartPole
from .pendulum import Pendulum


class CartPoleNoVelocity(CartPole):
    """CartPole that shows only the position of the cart and the angle of the pole."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2].clone()

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return np.stack([self.draw_cart(*row).frame for row in obs.tolist()])


class PendulumNoVelocity(Pendulum):
    """Pendulum that shows only its angle, as cosine and sine."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return super().observe(state)[:, :2].clone()

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        return super().draw(torch.cat([obs, torch.zeros_like(obs[:, :1])], 1), action)


class Recall10(TensorEnv):
    """The first observation shows a cue, -1 or 1; `delay` steps later a 1 in the second number asks for it. Taking action 1 for
    the cue 1 and action 0 for the cue -1 then pays 1, the other action -1. What is done before does not matter."""

    observation = Box((2,))
    action = Discrete(2)
    delay = 10
    solved_at = 1.0

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([(noise < 0.5).to(noise.dtype) * 2 - 1, torch.zeros_like(noise)], 1)  # cue, steps so far

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return torch.stack([state[:, 0], state[:, 1] + 1], 1)

    def observe(self, state: Tensor) -> Tensor:
        cue, steps = state.unbind(1)
        return torch.stack([cue * (steps == 0), (steps == self.delay).to(cue.dtype)], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        cue, steps = state.unbind(1)
        return (2 * action - 1) * cue * (steps == self.delay)

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 1] > self.delay

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        frames = []
        for cue, asks in obs.tolist():
            canvas = Canvas(64, 64, span=3.0)
            canvas.line((-1.2, 0), (1.2, 0), WARM if asks else MUTED, 0.08)
            canvas.disc((cue, 0), 0.25, ACCENT if cue else INK)
            frames.append(canvas.frame)
        return np.stack(frames)


class Recall50(Recall10):
    """Recall10 with 50 steps between the cue and the question."""

    delay = 50


class TMaze(TensorEnv):
    """A corridor with a junction at its end. A sign at the start, -1 or 1, says on which side the reward is.

    Actions: ahead, left, right. In the corridor only going ahead moves, and other actions cost 0.1. At the junction left and
    right end the episode, with 1 on the right side and -1 on the other; going ahead costs 0.1. Observation: the sign, seen only
    at the start, and 1 at the junction.
    """

    observation = Box((2,))
    action = Discrete(3)
    length = 8
    time_limit = 40
    solved_at = 1.0

    def initial(self, noise: Tensor) -> Tensor:
        return torch.cat([(noise < 0.5).to(noise.dtype) * 2 - 1, torch.zeros_like(noise)], 1)  # sign, place

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        sign, place = state.unbind(1)
        inside, turns = place < self.length, action > 0
        moved = torch.where(inside, place + (~turns).to(place.dtype), place + turns.to(place.dtype))
        return torch.stack([sign, moved], 1)

    def observe(self, state: Tensor) -> Tensor:
        sign, place = state.unbind(1)
        return torch.stack([sign * (place == 0), (place == self.length).to(sign.dtype)], 1)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        sign, place = state.unbind(1)
        inside, turns, side = place < self.length, action > 0, 2.0 * action - 3
        return torch.where(inside, -0.1 * turns, torch.where(turns, sign * side, -0.1))

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 1] > self.length

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        frames = []
        for sign, junction in obs.tolist():
            canvas = Canvas(64, 64, span=3.0)
            canvas.line((-1.2, 0), (1.0, 0), MUTED, 0.1)
            canvas.line((1.0, -1), (1.0, 1), MUTED, 0.1)
            canvas.disc((1.0 if junction else -1.0 if sign else 0.0, 0), 0.2, INK)
            if sign:
                canvas.disc((-1.0, 0.6 * sign), 0.2, ACCENT)
            frames.append(canvas.frame)
        return np.stack(frames)
