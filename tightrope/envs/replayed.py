"""An environment that says again what it said in a rollout, whatever is done to it: to run a phase once more where the engine
cannot be put back."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..types import Env, Rollout, Step


class Replayed:
    """The environments of one rollout. `last_obs` is what they showed after its last step."""

    capturable = False
    resumable = False
    drawable = False
    pace = 30
    groups = 0

    def __init__(self, env: Env, rollout: Rollout, last_obs: Tensor) -> None:
        self.num_envs, self.device, self.noise_size, self.skips = env.num_envs, env.device, env.noise_size, env.skips
        self.observation, self.action = env.observation, env.action
        self.rollout, self.last_obs = rollout, last_obs
        self.taken = 0  # steps

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        self.taken = 0
        return self.rollout.obs[0].to(self.device)

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        row = self.rollout.rows[self.taken]
        self.taken += 1
        obs = self.rollout.obs[self.taken] if self.taken < len(self.rollout.rows) else self.last_obs
        answer = (obs, row.reward, row.terminated, row.truncated, row.final_obs, row.real)
        return Step(*(x.to(self.device) for x in answer))

    def finished_episodes(self) -> Tensor:
        return torch.zeros(3, device=self.device)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        raise UsageError("a rollout that is replayed cannot be drawn: draw the environment itself")

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        raise UsageError("a rollout that is replayed is only itself: spawn the environment")

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to put back."""

    def close(self) -> None:
        """Nothing to release."""
