"""Adapter for vector environments of Gymnasium of any kind. Their auto-reset mode is converted to same-step:

same-step   final observations are in the infos
disabled    finished rows are reset by mask in the same step
next-step   the same if some rows can be reset alone (Gymnasium's own two classes); otherwise the step that only
            resets is marked as not real, and training ignores it
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ...errors import EnvError, UsageError
from ..step_arrays import Array, StepArrays
from .actions import writer_for_env
from .gym_single import GymEnv, check_mask_rows, given_mask_columns, in_drawing_mode
from .gym_workers import Workers, WorkerTimeout, add_worker_timeouts, capture_errors, close, failed_worker, kill_workers
from .host import HostEnv
from .space_members import stacked, take_rows
from .spaces import observation_reader

VectorFactory = Callable[[int], VectorEnv]  # called with the number of environments


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
        self._mask_columns = given_mask_columns(self)
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
        check_mask_rows(self, rows, self._mask_columns)
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
            check_mask_rows(self, obs, self._mask_columns)
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
            except Exception as error:
                row, reason = failed_worker(self.engine.unwrapped, error)
                self._abandon()
                if messages:
                    error.add_note("\n".join(messages))  # the traceback in the worker
                explained = isinstance(error, (WorkerTimeout, queue.Empty))
                raise self.failure(row, action, reason) from (None if explained else error)
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
