"""A rollout on the CPU, from its first step to its last without a tensor.

With few rows a step costs what its calls cost, and between a policy and an environment that both work on arrays, tensors are
only calls: to make them, to copy from one into another, to look at what they hold.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from torch import Tensor

from ..envs.answer import Answer
from ..types import Rollout
from .layers_cpu import Array
from .noise import Noise


class ArrayEnv(Protocol):
    """An environment that can be stepped in arrays."""

    over_arrays: bool  # whether it can be now

    def answer(self, action: Array, noise: Array) -> Answer: ...  # until the next one


class ArrayPlayer(Protocol):
    """A player that acts on arrays."""

    over_arrays: bool

    def choose(self, obs: Array, noise: Array) -> Array: ...  # of rows (N, F)
    def to_env(self, action: Array) -> Array: ...  # as the environment wants it


def speaks_arrays(thing: Any) -> TypeGuard[Any]:
    """Whether an environment or a player works on arrays. Asked of its class, for who wraps one means to be asked himself."""
    return hasattr(type(thing), "over_arrays") and bool(thing.over_arrays)


def play(env: ArrayEnv, player: ArrayPlayer, rollout: Rollout, obs: Tensor, noise: Noise) -> Tensor:
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
        answer = env.answer(player.to_env(chosen), reset)
        shown[t + 1][:] = final_obs[t] = answer.obs
        reward[t], terminated[t], truncated[t] = answer.reward, answer.terminated, answer.truncated
        if len(answer.rows):
            final_obs[t, answer.rows] = answer.final_obs
        if answer.real is not None:
            real[t] = answer.real
    return last
