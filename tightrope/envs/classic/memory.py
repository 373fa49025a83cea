"""Tasks that need memory: two of classic control without their velocities, and probes that show a cue and ask for it later."""

import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM
from ...scene import Disc, Line, Scene
from ...types import Box, Discrete
from ..tensor import TensorEnv
from .cartpole import CartPole
from .pendulum import Pendulum


class CartPoleNoVelocity(CartPole):
    """CartPole that shows only the position of the cart and the angle of the pole."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2].clone()

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        return self.picture(self.cart(*obs.unbind(-1)))


class PendulumNoVelocity(Pendulum):
    """Pendulum that shows only its angle, as cosine and sine."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return super().observe(state)[:, :2].clone()


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

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        cue, asks = obs.unbind(-1)
        line = [
            Line((-1.2, 0.0), (1.2, 0.0), 0.08, color=MUTED),
            Line((-1.2, 0.0), (1.2, 0.0), 0.08, color=WARM, shown=asks != 0),
        ]
        discs = [Disc((cue, 0.0), 0.25, color=INK), Disc((cue, 0.0), 0.25, color=ACCENT, shown=cue != 0)]
        return Scene(64, 64, span=3.0, shapes=[*line, *discs])


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
    action_names = ("ahead", "left", "right")
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

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        sign, junction = obs.unbind(-1)
        here = torch.where(junction != 0, 1.0, -1.0 * (sign != 0))
        maze = [Line((-1.2, 0.0), (1.0, 0.0), 0.1, color=MUTED), Line((1.0, -1.0), (1.0, 1.0), 0.1, color=MUTED)]
        cue = Disc((-1.0, 0.6 * sign), 0.2, color=ACCENT, shown=sign != 0)
        return Scene(64, 64, span=3.0, shapes=[*maze, Disc((here, 0.0), 0.2, color=INK), cue])
