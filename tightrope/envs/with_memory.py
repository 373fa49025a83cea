"""Environments for a policy with memory: observations carry the memory's state, and actions bring its next state."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from ..draw import draw_observations
from ..models.memory import MemoryRows
from ..types import Env, Spec, Step
from .recorded_step import RecordedStep, compiled_step, tried_step
from .step_arrays import NO_ROWS, Array, ArrayStepper, StepArrays
from .validate import TensorEnvLike


class StepWithMemory(RecordedStep):
    """The recorded step of a tensor environment over rows with the state of a memory."""

    def __init__(
        self, rows: MemoryRows, env: TensorEnvLike, action: Tensor, noise: Tensor, compiled: bool = False
    ) -> None:
        self.rows = rows
        super().__init__(env, action, noise, compiled)

    def advanced(self, state: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        given, memory = self.rows.split_action(action, self.env.action)
        following, reward, terminated, shown = super().advanced(state, given)
        return following, reward, terminated, self.rows.join(shown, torch.zeros_like(terminated), memory)

    def restarted(self, state: Tensor, done: Tensor, noise: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        given, memory = self.rows.split_action(action, self.env.action)
        kept, shown = super().restarted(state, done, noise, given)
        return kept, self.rows.join(shown, done, memory * (~done).unsqueeze(1))


class EnvWithMemory:
    """An Env whose observations are the rows of a policy with memory, see models/recurrent.py.

    An action is a row of numbers too: the action of the environment, then the memory's state for the next observation. Where an
    episode ends, the next observation has the state zero; the final observation has the state that followed the last step. The
    same holds after a step in which a simulator only reset a row.
    """

    def __init__(self, env: Env, rows: MemoryRows) -> None:
        self.env, self.rows = env, rows
        self.observation: Spec = rows.spec
        self.action: Spec = env.action
        self.num_envs, self.device = env.num_envs, env.device
        self.noise_size, self.groups = env.noise_size, env.groups
        self.capturable, self.resumable, self.skips = env.capturable, env.resumable, env.skips
        self._sent: list[Tensor] = [torch.empty(0)] * max(env.groups, 1)  # states of the groups that are stepping

    if not TYPE_CHECKING:  # what else an environment has, such as its time limit or the name of its engine

        def __getattr__(self, name: str) -> Any:
            if name == "env" or name[0] == "_":
                raise AttributeError(name)
            return getattr(self.env, name)

    @property
    def drawable(self) -> bool:
        return self.env.drawable

    @property
    def pace(self) -> int:
        return self.env.pace

    def reset(self, seed: int | None = None, noise: Tensor | None = None) -> Tensor:
        return self.rows.start(self.env.reset(seed, noise))

    def step(self, action: Tensor, noise: Tensor | None = None) -> Step:
        given, state = self.rows.split_action(action, self.action)
        return self._joined(self.env.step(given, noise), state)

    def send(self, action: Tensor, group: int = 0) -> None:
        given, self._sent[group] = self.rows.split_action(action, self.action)
        self.env.send(given, group)  # type: ignore[attr-defined]

    def recv(self, group: int = 0) -> Step:
        return self._joined(self.env.recv(group), self._sent[group])  # type: ignore[attr-defined]

    def _joined(self, step: Step, state: Tensor) -> Step:
        done = step.terminated | step.truncated
        # after a step that only reset a row, its episode starts
        first = done if step.valid is None else done | ~step.valid
        obs = self.rows.join(step.obs, first, state * (~first).unsqueeze(1))
        return step._replace(obs=obs, final_obs=self.rows.join(step.final_obs, torch.zeros_like(done), state))

    def in_arrays(self) -> ArrayStepper | None:
        """A function that steps over arrays, for one rollout; None if the environment has none."""
        made: Any = getattr(type(self.env), "in_arrays", None)
        inner: ArrayStepper | None = None if made is None else made(self.env)
        if inner is None:
            return None
        width, size, action = self.rows.width, math.prod(self.action.shape), self.action
        dtype = torch.empty(0, dtype=action.dtype).numpy().dtype

        def step(rows: Array, noise: Array) -> StepArrays:
            given, state = rows[:, :size].reshape(-1, *action.shape).astype(dtype), rows[:, size:]
            answer = inner(given, noise)
            seen = answer.obs.reshape(len(rows), width)
            done = answer.terminated | answer.truncated
            first = done if answer.valid is None else done | ~answer.valid
            obs = np.empty((len(rows), width + 1 + state.shape[1]), np.float32)
            obs[:, :width], obs[:, width] = seen, first
            np.multiply(state, ~first[:, None], out=obs[:, width + 1 :])
            ended = np.union1d(np.flatnonzero(done), answer.rows) if done.any() or len(answer.rows) else NO_ROWS
            shown = seen[ended].astype(np.float32)  # a copy
            shown[np.searchsorted(ended, answer.rows)] = answer.final_obs.reshape(len(answer.rows), width)
            final = np.concatenate([shown, np.zeros((len(ended), 1), np.float32), state[ended]], 1)
            return answer._replace(obs=obs, rows=ended, final_obs=final)

        return step

    def compiled_step(self, action: Tensor, noise: Tensor) -> RecordedStep | None:
        """The recorded step of a tensor environment as C code, for one rollout; None if there is none."""
        plain = compiled_step(self.env, self.rows.split_action(action, self.action)[0], noise)
        if plain is None:
            return None
        found = plain.with_memory
        tried = plain.memory_rows is self.rows
        if not tried or not (found is None or found.verified or found.verify(plain.env.state, action, noise)):
            plain.memory_rows, make = self.rows, partial(StepWithMemory, self.rows)
            found = plain.with_memory = tried_step(plain.env, action, noise, True, make)
        return found

    def draw(self, obs: Tensor, action: Tensor | None = None) -> np.ndarray:
        """Frames of the observations in rows. Actions may be those of the environment, or rows with states."""
        if action is not None and action.shape[1:] != self.action.shape:
            action = self.rows.split_action(action, self.action)[0]
        return draw_observations(self.env, self.rows.observed(obs), action)

    def spawn(self, num_envs: int, seed: int, drawn: bool = False) -> Self:
        return type(self)(self.env.spawn(num_envs, seed, drawn), self.rows)

    def finished_episodes(self) -> Tensor:
        return self.env.finished_episodes()

    def state_dict(self) -> dict[str, Tensor]:
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.env.load_state_dict(state)

    def close(self) -> None:
        self.env.close()


def with_memory(env: Env, rows: MemoryRows | None) -> Env:
    """The environment for a policy whose observations have these rows; itself without memory."""
    return env if rows is None else EnvWithMemory(env, rows)


def without_memory(env: Env) -> Env:
    """The environment itself, where `with_memory` has changed it."""
    return env.env if isinstance(env, EnvWithMemory) else env
