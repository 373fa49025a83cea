"""Adapters for Gymnasium: single environments, stepped one after the other, and vector environments of any kind.

The auto-reset mode of a vector environment is converted to same-step:

    same-step   final observations are in the infos
    disabled    finished rows are reset by mask in the same step
    next-step   the same if some rows can be reset alone (Gymnasium's own two classes); otherwise the step that only
                resets is marked as not real, and training ignores it
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Mapping
from typing import Any, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import DTypeLike
from torch import Tensor

from ... import activity
from ...errors import EnvError, UsageError
from ...types import Composite
from ..step_arrays import NO_ROWS, Array, StepArrays
from .gym_drawing import in_drawing_mode, pictures
from .gym_masks import check_mask_rows, mask_source, with_masks
from .gym_workers import (
    PIPE_ERRORS,
    SingleEnv,
    Workers,
    WorkerTimeout,
    add_worker_timeouts,
    capture_errors,
    close,
    first_dead,
    kill_workers,
)
from .host import HostEnv
from .hybrid_writer import writer_for_env
from .space_members import has_shape_of, space_text, stacked, take_rows
from .spaces import NUMPY, ObservationReader, observation_reader

Factory = Callable[[bool], SingleEnv]  # called with whether the environment must draw
VectorFactory = Callable[[int], VectorEnv]  # called with the number of environments


class GymEnv(HostEnv):
    """N single Gymnasium environments, stepped one after the other in this process."""

    backend = "gymnasium"

    def __init__(
        self, factory: Factory, num_envs: int, device: str | torch.device, name: str, drawn: bool = False
    ) -> None:
        self.name, self._factory, self._drawn = name, factory, drawn
        self._ended: dict[int, Array] = {}  # the last pictures of episodes
        one = factory(drawn)
        self.envs = [with_masks(one, masks := mask_source(one))]
        for _ in range(1, num_envs):
            self.envs.append(with_masks(factory(drawn), masks))
            activity.mark()
        one = self.envs[0]
        self._set_spaces(observation_reader(one.observation_space), writer_for_env(one), num_envs, device)
        self._plain = plain_type(self._observation)
        self._results = np.empty(num_envs, np.float32), np.empty(num_envs, bool), np.empty(num_envs, bool)
        self.solved_at = None if one.spec is None else one.spec.reward_threshold
        self.pace = int(one.metadata.get("render_fps") or self.pace)

    def _reset(self, seeds: Array | None) -> Array:
        per_row = [None] * self.num_envs if seeds is None else [int(seed) for seed in seeds]
        return self._rows([self._reset_row(i, seed) for i, seed in enumerate(per_row)])

    def _recv(self) -> StepArrays:
        observations: list[Any] = []
        rows: list[int] = []
        finals: list[Any] = []
        reward, terminated, truncated = self._results
        for i, env in enumerate(self.envs):
            try:
                obs, paid, over, late, self.info = env.step(self._action.member(self._sent, i))
                reward[i], terminated[i], truncated[i] = float(paid), over, late and not over
            except Exception as error:
                raise self.failure(i, self._sent, error) from error
            activity.mark()
            if over or late:
                rows.append(i)
                finals.append(copy.deepcopy(obs))  # the reset may write into the same array
                if self._drawn:
                    self._ended[i] = pictures(self.name, [env])[0]
                obs = self._reset_row(i)
            observations.append(obs)
        obs = self._rows(observations)
        if not rows:
            return StepArrays(obs, reward, terminated, truncated, NO_ROWS, obs[:0])
        return StepArrays(obs, reward, terminated, truncated, np.array(rows), self._rows(finals, rows))

    def _reset_row(self, row: int, seed: int | None = None) -> object:
        """The first observation of a new episode of one environment."""
        try:
            result = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise self.failure(row, None, error) from error
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise self.failure(row, None, "it returns an observation alone, not (observation, info)")
        activity.mark()
        self.info = result[1]
        return result[0]

    def _rows(self, singles: list[Any], rows: list[int] | None = None) -> Array:
        """Observations of single environments as rows. EnvError names the first of the wrong shape."""
        space = self._observation.space
        try:
            if self._plain is not None and {*map(type, singles)} == {np.ndarray}:
                batch = np.array(singles, self._plain)
            else:
                batch = self._read(stacked(space, singles), rows)
        except (ValueError, TypeError, KeyError, IndexError):
            batch = None
        if batch is None or batch.shape[1:] != self.observation.shape:
            wrong = next((i for i, one in enumerate(singles) if not has_shape_of(space, one)), 0)
            row, is_box = wrong if rows is None else rows[wrong], isinstance(space, gymnasium.spaces.Box)
            shown = f"shape {np.shape(singles[wrong])}" if is_box else repr(singles[wrong])
            raise EnvError(
                f"env {self.name!r} number {row} shows {shown}, which is not in {space_text(space)}: `tightrope check` it"
            )
        if rows is None:  # no action follows the others, which end an episode
            check_mask_rows(self, batch)
        return batch

    def _spawn(self, num_envs: int, drawn: bool) -> Self:
        return type(self)(self._factory, num_envs, self.device, self.name, drawn)

    def draw(self, obs: Tensor, action: Tensor | None = None) -> Array:
        """The environments in their current state: Gymnasium does not draw observations."""
        if not self._drawn:
            raise UsageError(f"env {self.name!r} cannot be drawn from observations alone: use agent.record(path)")
        return pictures(self.name, self.envs[: len(obs)])

    def draw_ended(self, obs: Tensor) -> Array | None:
        """The environments whose episodes ended in the last step as they were then; other rows are of no use."""
        if not self._ended:
            return None
        some = next(iter(self._ended.values()))
        return np.stack([self._ended.get(i, some) for i in range(len(obs))])

    def close(self) -> None:
        for env in self.envs:
            env.close()


def plain_type(reader: ObservationReader) -> DTypeLike | None:
    """The type of rows that are the observations themselves, only converted to it; None if more is done to them."""
    part, spec = reader.parts[0], reader.spec
    changed = part.axes is not None or part.whole is not None or part.start is not None or part.unit != 1
    if changed or isinstance(spec, Composite) or spec.shape != part.space.shape:
        return None
    return NUMPY[spec.dtype]


class GymVectorEnv(HostEnv):
    """A Gymnasium vector environment. `factory` makes another of the same kind, where that is possible."""

    backend = "gymnasium"

    def __init__(
        self, engine: VectorEnv, device: str | torch.device, name: str, factory: VectorFactory | None = None
    ) -> None:
        self.name, self._factory = name, factory
        self.engine: Any = engine
        mode = engine.metadata.get("autoreset_mode")
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            found = "does not say how it resets" if mode is None else f"declares autoreset_mode {mode!r}"
            fix = "set metadata['autoreset_mode'] to a member of gymnasium.vector.AutoresetMode"
            raise UsageError(f"vector env {name!r} {found}: {fix}") from None
        # not a wrapped one, whose step is more than the engine's
        self._in_background = type(engine) in (AsyncVectorEnv, Workers)
        own = type(engine) is SyncVectorEnv or (self._in_background and bool(getattr(engine, "shared_memory", False)))
        self._resets_rows = self._mode is AutoresetMode.DISABLED or own
        self.skips = self._mode is AutoresetMode.NEXT_STEP and not self._resets_rows
        spaces = observation_reader(engine.single_observation_space), writer_for_env(engine)
        self._set_spaces(*spaces, engine.num_envs, device)
        if isinstance(engine.unwrapped, AsyncVectorEnv):
            add_worker_timeouts(engine.unwrapped, name)
        self._pending = np.zeros(self.num_envs, bool)  # rows whose next step only resets them
        self.solved_at = getattr(engine.spec, "reward_threshold", None)

    def _reset(self, seeds: Array | None) -> Array:
        self._pending[:] = False
        per_row = isinstance(self.engine.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        seed: object = None if seeds is None else [int(s) for s in seeds] if per_row else int(seeds[0])
        obs, self.info = self._call(lambda: self.engine.reset(seed=seed), None)
        rows = self._read(obs)
        check_mask_rows(self, rows)
        return rows

    def _send(self, action: Array) -> None:
        if self._in_background:
            self._call(lambda: self.engine.step_async(action), action)

    def _recv(self) -> StepArrays:
        engine, action = self.engine, self._sent
        step = engine.step_wait if self._in_background else lambda: engine.step(action)
        batch, reward, terminated, truncated, self.info = self._call(step, action)
        terminated = np.array(terminated, bool)
        truncated = np.asarray(truncated, bool) & ~terminated
        reward, done = np.array(reward, np.float32), terminated | truncated
        valid = None
        if self.skips:
            valid = ~self._pending
            reward, done = np.where(valid, reward, 0.0), done & valid
            terminated, truncated = terminated & valid, truncated & valid
            self._pending = done
        obs, rows = self._read(batch).copy(), np.flatnonzero(done)
        final_obs = obs[rows]
        if len(rows) and self._mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_rows(self.info, rows)
        elif len(rows) and self._resets_rows:
            fresh, _ = self._call(lambda: self.engine.reset(options={"reset_mask": done}), action)
            obs[rows] = self._read(fresh)[rows]
        if not self.skips:
            check_mask_rows(self, obs)
        return StepArrays(obs, reward, terminated, truncated, rows, final_obs, valid)

    def _final_rows(self, info: Mapping[str, Any], rows: Array) -> Array:
        """The last observations of finished episodes: one object per row, or a batch of which these rows count."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise EnvError(f"vector env {self.name!r} resets in the same step but gives no info['final_obs']")
        space = self._observation.space
        singles = isinstance(final, np.ndarray) and final.dtype == object
        return self._read(stacked(space, list(final[rows])) if singles else take_rows(space, final, rows), rows)

    def _call(self, function: Callable[[], Any], action: Array | None) -> Any:
        """Call the vector environment. On a failure, end its processes; EnvError names the environment and its action."""
        with capture_errors() as messages:
            try:
                return function()
            except WorkerTimeout as error:
                self._abandon()
                raise self.failure(error.row, action, str(error)) from None
            except PIPE_ERRORS as error:
                dead = first_dead(self.engine.unwrapped)
                self._abandon()
                raise self.failure(dead, action, "its process died") from error
            except queue.Empty:
                self._abandon()
                raise self.failure(None, action, "it raised an exception that cannot be pickled") from None
            except Exception as error:
                pipes = getattr(self.engine.unwrapped, "parent_pipes", [])
                row = next((i for i, pipe in enumerate(pipes) if pipe is None), None)
                self._abandon()
                if messages:
                    error.add_note("\n".join(messages))  # the traceback in the worker
                raise self.failure(row, action, error) from error
            except BaseException:  # a signal: a result that nobody waits for would be taken for a later one
                self._abandon()
                raise

    def _abandon(self) -> None:
        if getattr(self.engine.unwrapped, "processes", []):
            kill_workers(self.engine.unwrapped)

    def _spawn(self, num_envs: int, drawn: bool) -> Any:
        """For evaluation and drawing. Single environments of Gymnasium's own vectors then run without processes."""
        fns = getattr(self.engine, "env_fns", None)  # not of a wrapped one: the wrapper may change anything
        if fns:
            factory = getattr(self.engine, "factory", None) or (lambda drawn: in_drawing_mode(fns[0](), drawn))
            return GymEnv(factory, num_envs, self.device, self.name, drawn)
        if self._factory is None:
            raise UsageError(
                f"vector env {self.name!r} cannot be copied, which scoring needs: give a factory of it instead, a function "
                "of num_envs"
            )
        return type(self)(self._factory(num_envs), self.device, self.name, self._factory)

    def close(self) -> None:
        if self._unread:
            self._abandon()
        if not getattr(self.engine.unwrapped, "closed", False):
            close(self.engine, self.name)

    def __del__(self) -> None:
        if hasattr(self, "engine"):
            self._abandon()
