"""The base of every environment that lives on the device as tensors.

It owns what all environments share: the clock, same-step auto-reset with the true final observation, seeding, episode
statistics, state in place. An environment is then a handful of small pure methods over a state tensor of shape (N, S):

    initial(noise) -> state            uniform noise of shape (N, noise_size) to start states
    advance(state, action) -> state    the physics
    observe(state) -> obs
    reward(state, action, next_state) -> (N,)
    terminated(state) -> (N,) bool
    draw(obs, action) -> frames

Reward shaping overrides one of them. Nothing here reads a tensor on the host, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..types import Spec, Step
from .arrays import MOST_ROWS, ArrayStep, array_step


class TensorEnv:
    """N environments as rows of one state tensor."""

    observation: Spec
    action: Spec
    noise_size: int = 1
    time_limit: ClassVar[int | None] = None  # steps after which an episode is truncated
    solved_at: ClassVar[float | None] = None  # greedy return that counts as solved, where there is one
    pure: ClassVar[bool] = (
        True  # False where equations also keep or count something, and must run once a step, on tensors
    )
    solved_by_surviving: ClassVar[bool] = False  # True where not terminating is all there is to it
    pace: ClassVar[int] = 30  # steps that a video shows in a second, real time where there is such a thing
    backend: ClassVar[str] = "tensor"
    capturable = True
    resumable = True
    skips = False
    groups = 0

    def __init__(
        self,
        num_envs: int = 1,
        device: str | torch.device = "cpu",
        max_episode_steps: int | None = None,
        seed: int = 0,
    ) -> None:
        if max_episode_steps is not None and max_episode_steps < 1:
            raise UsageError(f"max_episode_steps {max_episode_steps} is not positive: give at least 1")
        self.device = torch.device(device)
        self.max_episode_steps = max_episode_steps if max_episode_steps is not None else self.time_limit
        self._allocate(num_envs, seed)

    def _allocate(self, num_envs: int, seed: int) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs {num_envs} is not positive: give at least 1")
        self.num_envs = num_envs
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.state = self.initial(self._noise())
        self.clock = torch.zeros(num_envs, dtype=torch.int32, device=self.device)
        self._running_return = torch.zeros(num_envs, device=self.device)
        self._finished = torch.zeros(3, num_envs, device=self.device)  # episodes, their returns, their lengths
        self._few = self.pure and self.device.type == "cpu" and num_envs <= MOST_ROWS
        self._array_step: ArrayStep | None = None

    def _noise(self) -> Tensor:
        return torch.rand(self.num_envs, self.noise_size, generator=self.generator, device=self.device)

    # what an environment defines -------------------------------------------------------------------------------------

    def initial(self, noise: Tensor) -> Tensor:
        raise NotImplementedError

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        raise NotImplementedError

    def observe(self, state: Tensor) -> Tensor:
        return state

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        raise NotImplementedError

    def terminated(self, state: Tensor) -> Tensor:
        return torch.zeros(state.shape[0], dtype=torch.bool, device=state.device)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        raise UsageError(f"{type(self).__name__} does not draw itself: give it a draw(obs, action) method")

    @property
    def drawable(self) -> bool:
        return type(self).draw is not TensorEnv.draw

    # what the base does ----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        """Start every environment anew, finished or not; running episodes are forgotten."""
        if seed is not None:
            self.generator.manual_seed(seed)
        state = self.initial(self._noise() if noise is None else noise)
        self.state.copy_(state)
        self.clock.zero_()
        self._running_return.zero_()
        return self.observe(state.clone())

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        """Advance every environment; where an episode ends, start the next one from `noise` in the same step."""
        noise = self._noise() if noise is None else noise
        if self._few and not torch.compiler.is_compiling():
            quick = self._on_arrays(action, noise)
            if quick is not None:
                return quick
        old_state = self.state.clone()  # so that nothing handed out can be an alias of the state kept
        next_state = self.advance(old_state, action)
        reward = self.reward(old_state, action, next_state)
        terminated = self.terminated(next_state)
        self.clock += 1
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
            done = terminated
        else:
            done = terminated | (self.clock >= self.max_episode_steps)
            truncated = done & ~terminated
        self._count(reward, done)
        fresh = self.initial(noise)
        state = torch.where(done.unsqueeze(-1), fresh, next_state)
        self.state.copy_(state)
        self.clock *= ~done
        return Step(self.observe(state), reward, terminated, truncated, self.observe(next_state))

    def _on_arrays(self, action: Tensor, noise: Tensor) -> Step | None:
        """The step over arrays, which is quicker where rows are few; None for an environment that has none."""
        if self._array_step is None:
            self._array_step = array_step(self, action, noise)
            self._few = self._array_step is not None
        if self._array_step is not None:
            try:
                return self._array_step(action, noise)
            except (
                Exception
            ):  # on a path not taken before; nothing has been changed, and a true mistake will show again
                self._few = False
        return None

    def _count(self, reward: Tensor, done: Tensor) -> None:
        self._running_return += reward
        self._finished[0] += done
        self._finished[1].addcmul_(self._running_return, done)
        self._finished[2].addcmul_(self.clock, done)
        self._running_return *= ~done

    def finished_episodes(self) -> Tensor:
        """(episodes, sum of returns, sum of lengths) since the last call, as one device tensor."""
        totals = self._finished.sum(1)
        self._finished.zero_()
        return totals

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        """Another environment of the same kind and settings, with state and random stream of its own."""
        twin = copy.copy(self)
        for name, value in vars(twin).items():
            if isinstance(value, Tensor):
                setattr(twin, name, value.clone())  # nothing of the twin's is this one's
        twin._allocate(num_envs, seed)
        return twin

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "state": self.state.clone(),
            "clock": self.clock.clone(),
            "running_return": self._running_return.clone(),
            "finished": self._finished.clone(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state["state"].shape != self.state.shape:
            raise RuntimeError(f"env state has shape {tuple(state['state'].shape)}, expected {tuple(self.state.shape)}")
        self.state.copy_(state["state"])
        self.clock.copy_(state["clock"])
        self._running_return.copy_(state["running_return"])
        self._finished.copy_(state["finished"])
        if state["generator"].numel() == self.generator.get_state().numel():  # not so between kinds of device
            self.generator.set_state(state["generator"].cpu())

    def close(self) -> None:
        """Nothing to release: the tensors go with the object."""
