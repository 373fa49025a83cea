"""Tiny environments that localise a bug: each of the five needs one thing more than the one before it.

1 loss and optimizer; 2 several observations; 3 time and discounting; 4 the policy update; 5 observations to actions.
TimeLimitProbe is for time limits, MaskProbe for action masks, PrivilegedProbe for a critic that sees more than the actor,
HybridProbe for actions of several parts. Recall and TMaze are for memory: they show a cue and ask for it later.
"""

import torch
from torch import Tensor

from ...draw import ACCENT, INK, MUTED, WARM
from ...scene import Disc, Line, Scene
from ...types import Box, Composite, Discrete, Spec
from ..tensor import TensorEnv


class ProbeEnv(TensorEnv):
    """One number to see, one step to live."""

    observation = Box((1,))
    action: Spec = Discrete(1)

    def initial(self, noise: Tensor) -> Tensor:
        return torch.zeros_like(noise)

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state

    def terminated(self, state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0], dtype=torch.bool)

    def scene(self, obs: Tensor, action: Tensor | None = None) -> Scene:
        line = Line((-1.2, 0.0), (1.2, 0.0), 0.04, color=INK)
        return Scene(64, 64, span=3.0, shapes=[line, Disc((obs[:, 0], 0.0), 0.25, color=ACCENT)])


class Probe1(ProbeEnv):
    """Observation 0, reward 1: the value must be 1."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return torch.ones_like(state[:, 0])


class Probe2(ProbeEnv):
    """Observation -1 or +1, reward equal to it: the value must be the observation."""

    def initial(self, noise: Tensor) -> Tensor:
        return (noise < 0.5).to(noise.dtype) * 2 - 1

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0].clone()


class Probe3(ProbeEnv):
    """Observation 0 then 1, reward 0 then 1: the values must be gamma and 1."""

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return state + 1

    def terminated(self, state: Tensor) -> Tensor:
        return state[:, 0] >= 2

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0].clone()


class Probe4(ProbeEnv):
    """Two actions, reward -1 or +1: the policy must take action 1, the value must be 1."""

    action = Discrete(2)
    solved_at = 1.0

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return action.to(state.dtype) * 2 - 1


class Probe5(ProbeEnv):
    """Observation 0 or 1, reward +1 for repeating it and -1 otherwise: the policy must follow the observation."""

    action = Discrete(2)
    solved_at = 1.0

    def initial(self, noise: Tensor) -> Tensor:
        return (noise < 0.5).to(noise.dtype)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return (action == state[:, 0]).to(state.dtype) * 2 - 1


class TimeLimitProbe(Probe3):
    """Observation 0 or 1. At 1 the reward is 1 and the task ends; at 0 a time limit ends the episode before the step to 1 is
    rewarded: the values must be gamma and 1."""

    time_limit = 1
    initial = Probe5.initial


class MaskProbe(Probe2):
    """Three actions, reward -1, 1 and 5; the last is forbidden, and at observation -1 the second too: the policy must take
    action 1 at observation 1 and action 0 at observation -1."""

    action = Discrete(3)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 2.0 * action - 1.0 + 2.0 * (action == 2)

    def action_mask(self, state: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(state), state, -torch.ones_like(state)], 1) > 0


class PrivilegedProbe(Probe2):
    """Observation -1 or +1, reward equal to it plus a bonus of -2 or +2 that only the critic sees: the value must be both."""

    noise_size = 2

    def observe(self, state: Tensor) -> Tensor:
        return state[:, :1]

    def privileged(self, state: Tensor) -> Tensor:
        return state[:, 1:]

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return state[:, 0] + 2 * state[:, 1]


class HybridProbe(ProbeEnv):
    """A choice and a number, reward 1 for the right choice, less the squared error of the number: the policy must take choice 1
    and the number 0.5 at observation 1, choice 0 and the number -0.5 at observation -1."""

    action = Composite((("choice", Discrete(2)), ("number", Box((1,)))))
    initial = Probe2.initial

    def reward(self, state: Tensor, action: dict[str, Tensor], next_state: Tensor) -> Tensor:
        right = (action["choice"] == (state[:, 0] > 0)).to(state.dtype)
        return right - (action["number"] - 0.5 * state).square().sum(1)


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
    initial = Recall10.initial  # sign, place

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
