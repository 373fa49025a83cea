"""A step of environments as NumPy arrays: what engines on the host return, and tensor environments that run on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from ..types import Step

Array = np.ndarray[Any, Any]
MAX_SPACE_SIZE = 1 << 22  # numbers of one observation or action, in spaces that come from a file
NO_ROWS = np.empty(0, np.int64)


class StepArrays(NamedTuple):
    """What one step of N environments returns, as arrays."""

    obs: Array  # (N, ...) rows as the spec has them, reset where an episode ended
    reward: Array  # (N,) what is learned from
    terminated: Array  # (N,) bool
    truncated: Array  # (N,) bool, False where terminated
    rows: Array  # (K,) rows whose true successor is not `obs`
    final_obs: Array  # (K, ...) the successors of these rows
    real: Array | None = None  # (N,) bool, where some rows may not be real
    score: Array | None = None  # (N,) the reward to report; None: `reward`
    over: Array | None = None  # (N,) bool, where a reported episode ends; None: where terminated or truncated

    @property
    def arrays(self) -> list[Array]:
        """The arrays that every step has: obs, reward, terminated, truncated, and `real` if there is one."""
        reward = self.reward.astype(np.float32, copy=False)
        arrays = [self.obs, reward, self.terminated, self.truncated]
        return arrays if self.real is None else [*arrays, self.real]

    @property
    def step(self) -> Step:
        """A Step in memory of its own."""
        final_obs = self.obs.copy()
        final_obs[self.rows] = self.final_obs
        arrays = self.obs, self.reward, self.terminated, self.truncated, final_obs
        return Step(*(torch.from_numpy(x.copy()) for x in arrays))

    @classmethod
    def from_step(cls, step: Step) -> Self:
        """Views of a Step on the host."""
        obs, reward, terminated, truncated, final_obs = (x.numpy() for x in step[:5])
        ended = np.flatnonzero(terminated | truncated)
        real = None if step.real is None else step.real.numpy()
        return cls(obs, reward, terminated, truncated, ended, final_obs[ended], real)


# (actions, noise of resets) to the step, which the next call overwrites
ArrayStepper = Callable[[Array, Array], StepArrays]
