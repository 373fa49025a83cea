"""A rollout on the CPU, from its first step to its last without a tensor.

With few rows a step costs what its calls cost, and between a policy and an environment that both work on arrays, tensors are
only calls: to make them, to copy from one into another, to look at what they hold.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from .. import activity
from ..envs.answer import ArrayStepper
from ..types import Rollout
from .layers_cpu import Array
from .noise import Noise


class ArrayPlayer(Protocol):
    """A player that acts on arrays."""

    def choose(self, obs: Array, noise: Array) -> Array:
        """What the policy does for rows (N, F), sampled with that noise."""

    def to_env(self, action: Array) -> Array:
        """Actions as the environment wants them."""


def acts_on_arrays(player: object) -> bool:
    """Whether a player is an ArrayPlayer."""
    return hasattr(player, "choose") and hasattr(player, "to_env")


def array_stepper(env: Any) -> ArrayStepper | None:
    """How to step an environment over arrays, if it can be. Its class is asked: who wraps one means to be asked himself."""
    return env.in_arrays() if hasattr(type(env), "in_arrays") else None


def play(step: ArrayStepper, player: ArrayPlayer, rollout: Rollout, obs: Tensor, noise: Noise) -> Tensor:
    """Fill the rollout from `obs` on, but for what `judge` knows; returns the observation after the last step."""
    last = obs.clone()
    shown = [*rollout.obs.numpy(), last.numpy()]
    rows = [row.reshape(len(row), -1) for row in shown]
    action, reward = rollout.action.numpy(), rollout.reward.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    final_obs, real = rollout.final_obs.numpy(), rollout.real.numpy()
    shown[0][:] = last
    for t, (draw, reset) in enumerate(zip(noise.action.numpy(), noise.reset.numpy(), strict=True)):
        action[t] = chosen = player.choose(rows[t], draw)
        answer = step(player.to_env(chosen), reset)
        activity.mark()
        shown[t + 1][:] = final_obs[t] = answer.obs
        reward[t], terminated[t], truncated[t] = answer.reward, answer.terminated, answer.truncated
        if len(answer.rows):
            final_obs[t, answer.rows] = answer.final_obs
        if answer.real is not None:
            real[t] = answer.real
    return last
