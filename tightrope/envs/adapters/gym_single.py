"""N single Gymnasium environments, stepped one after the other in this process."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ... import activity
from ...draw import shrink
from ...errors import EnvError, UsageError
from ..options import Array
from ..step_arrays import NOBODY, Answer
from .host import HostEnv, one_line
from .mujoco import explained
from .spaces import action, fits, observation, space_in_words, stacked

Factory = Callable[[bool], "gymnasium.Env[Any, Any]"]  # called with whether it will be asked to draw


class GymEnv(HostEnv):
    """N single Gymnasium environments, stepped one after the other."""

    backend = "gymnasium"

    def __init__(
        self, factory: Factory, num_envs: int, device: str | torch.device, name: str, drawn: bool = False
    ) -> None:
        self.name, self._factory, self._drawn = name, factory, drawn
        self.envs = []
        for _ in range(max(num_envs, 1)):
            self.envs.append(factory(drawn))
            activity.mark()
        one = self.envs[0]
        self._describe(observation(one.observation_space), action(one.action_space), num_envs, device)
        self.solved_at = None if one.spec is None else one.spec.reward_threshold
        self.pace = int(one.metadata.get("render_fps") or self.pace)

    def _restart(self, seeds: Array | None) -> Array:
        given = [None] * self.num_envs if seeds is None else [int(seed) for seed in seeds]
        return self._rows([self._begin(i, seed) for i, seed in enumerate(given)])

    def _recv(self) -> Answer:
        action = self._given
        shown: list[Any] = []
        rows: list[int] = []
        finals: list[Any] = []
        reward = np.empty(self.num_envs, np.float32)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            try:
                obs, paid, over, late, self.info = env.step(action[i])
                reward[i], terminated[i], truncated[i] = float(paid), over, late and not over
            except Exception as error:
                raise self.failure(i, action, error) from error
            activity.mark()
            if over or late:
                rows.append(i)
                finals.append(copy.deepcopy(obs))  # the reset may write into the same array
                obs = self._begin(i)
            shown.append(obs)
        obs = self._rows(shown)
        if not rows:
            return Answer(obs, reward, terminated, truncated, NOBODY, obs[:0])
        return Answer(obs, reward, terminated, truncated, np.array(rows), self._rows(finals, rows))

    def _begin(self, row: int, seed: int | None = None) -> Any:
        """The first observation of a new episode of one environment."""
        try:
            answer = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise self.failure(row, None, error) from error
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise self.failure(row, None, "it returns an observation alone, not (observation, info)")
        activity.mark()
        self.info = answer[1]
        return answer[0]

    def _rows(self, singles: list[Any], rows: list[int] | None = None) -> Array:
        """Observations of single environments as rows; those of the wrong shape are named."""
        space = self._observation.space
        try:
            batch = self._read(stacked(space, singles), rows)
        except (ValueError, TypeError, KeyError, IndexError):
            batch = None
        if batch is None or batch.shape[1:] != self.observation.shape:
            wrong = next((i for i, one in enumerate(singles) if not fits(space, one)), 0)
            row = wrong if rows is None else rows[wrong]
            what = (
                f"shape {np.shape(singles[wrong])}" if isinstance(space, gymnasium.spaces.Box) else repr(singles[wrong])
            )
            raise EnvError(
                f"env {self.name!r} number {row} shows {what}, which is not in {space_in_words(space)}: `tightrope check` it"
            )
        return batch

    def _twin(self, num_envs: int, drawn: bool) -> Self:
        return type(self)(self._factory, num_envs, self.device, self.name, drawn)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """The environments as they are now: Gymnasium draws states, not observations."""
        if not self._drawn:
            raise UsageError(f"env {self.name!r} cannot be drawn from observations alone: use agent.record(path)")
        try:
            frames: list[Any] = [env.render() for env in self.envs[: len(obs)]]
        except NotImplementedError:
            frames = [None]
        except Exception as error:
            raise UsageError(f"env {self.name!r} cannot be drawn here: {explained(one_line(error))}") from None
        if any(not isinstance(frame, np.ndarray) for frame in frames):
            raise UsageError(
                f"env {self.name!r} does not draw itself: give it a render() that returns pixels (H, W, 3) "
                "in render_mode 'rgb_array'"
            )
        return np.stack([shrink(frame) for frame in frames])

    def close(self) -> None:
        for env in self.envs:
            env.close()


def in_drawing_mode(
    env: gymnasium.Env[Any, Any], drawn: bool, factory: Callable[..., Any] | None = None
) -> gymnasium.Env[Any, Any]:
    """The environment, told to draw where it can be told."""
    if not drawn or env.render_mode == "rgb_array":
        return env
    if factory is not None and "render_mode" in parameters(factory):
        env.close()
        return factory(render_mode="rgb_array")
    if env.spec is not None:
        with contextlib.suppress(ValueError):  # a wrapper that does not say how it was made
            return gymnasium.make(env.spec, render_mode="rgb_array")
    return env


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
