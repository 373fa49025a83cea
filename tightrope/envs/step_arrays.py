"""A step of environments as arrays: what engines on the host answer, and tensor environments that run on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..types import Step
from .options import Array

NOBODY = np.empty(0, np.int64)  # no rows


class Answer(NamedTuple):
    """What one batch of actions is answered by."""

    obs: Array  # (N, ...) rows as the spec has them, reset where an episode ended
    reward: Array  # (N,) what is learned from
    terminated: Array  # (N,) bool
    truncated: Array  # (N,) bool, nowhere where terminated
    rows: Array  # (K,) rows whose true successor is not `obs`
    final_obs: Array  # (K, ...) these successors
    real: Array | None = None  # (N,) bool, where some rows may not be real
    score: Array | None = None  # (N,) what is reported; the reward if not given
    over: Array | None = None  # (N,) bool, where a reported episode ends; where one ended if not given

    @property
    def arrays(self) -> list[Array]:
        """What every step has: obs, reward, terminated, truncated, and `real` if it has that."""
        reward = self.reward.astype(np.float32, copy=False)
        arrays = [self.obs, reward, self.terminated, self.truncated]
        return arrays if self.real is None else [*arrays, self.real]

    @property
    def step(self) -> Step:
        """The same as tensors of its own."""
        final_obs = self.obs.copy()
        final_obs[self.rows] = self.final_obs
        given = self.obs, self.reward, self.terminated, self.truncated, final_obs
        return Step(*(torch.from_numpy(x.copy()) for x in given))


# actions and the noise of resets to what came of them, which is overwritten by the next call
ArrayStepper = Callable[[Array, Array], Answer]


def as_answer(step: Step) -> Answer:
    """The other way round, of tensors on the host."""
    obs, reward, terminated, truncated, final_obs = (x.numpy() for x in step[:5])
    ended = np.flatnonzero(terminated | truncated)
    real = None if step.real is None else step.real.numpy()
    return Answer(obs, reward, terminated, truncated, ended, final_obs[ended], real)
