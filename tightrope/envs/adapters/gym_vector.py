"""A Gymnasium vector environment, in other processes or of its own making, driven through its own interface.

Whichever auto-reset it declares is converted to ours:

    same-step   final observations are in the infos
    disabled    finished rows are reset by mask in the same step
    next-step   likewise where the engine can reset some of its rows (Gymnasium's own two); where it cannot, the row that
                only resets is marked as not real, and nothing learns from it
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ...errors import EnvError, UsageError
from ..options import Array
from ..step_arrays import Answer
from .gym_single import GymEnv, in_drawing_mode
from .gym_workers import LOST, NoAnswer, Workers, abandon, close, errors_kept, first_lost, limit_waiting
from .host import HostEnv
from .spaces import action, chosen, observation, stacked

VectorFactory = Callable[[int], VectorEnv]  # called with the number of environments


class GymVectorEnv(HostEnv):
    """A Gymnasium vector environment. `again` makes another of the same kind, where that is possible."""

    backend = "gymnasium"

    def __init__(
        self, engine: VectorEnv, device: str | torch.device, name: str, again: VectorFactory | None = None
    ) -> None:
        self.name, self._again = name, again
        self.engine: Any = engine
        mode = engine.metadata.get("autoreset_mode")
        if mode is None:
            raise UsageError(
                f"vector env {name!r} does not say how it resets: set metadata['autoreset_mode'] to a member of "
                "gymnasium.vector.AutoresetMode"
            )
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            raise UsageError(
                f"vector env {name!r} declares autoreset_mode {mode!r}: give a member of gymnasium.vector.AutoresetMode"
            ) from None
        # not a wrapped one, whose step is more than the engine's
        self._works_alone = type(engine) in (AsyncVectorEnv, Workers)
        own = type(engine) is SyncVectorEnv or (self._works_alone and bool(getattr(engine, "shared_memory", False)))
        self._resets_rows = self._mode is AutoresetMode.DISABLED or own
        self.skips = self._mode is AutoresetMode.NEXT_STEP and not self._resets_rows
        spaces = observation(engine.single_observation_space), action(engine.single_action_space)
        self._describe(*spaces, engine.num_envs, device)
        if isinstance(engine.unwrapped, AsyncVectorEnv) and not isinstance(engine, Workers):
            limit_waiting(engine.unwrapped, name)
        self._pending = np.zeros(self.num_envs, bool)  # rows whose next step will only reset them
        self.solved_at = getattr(engine.spec, "reward_threshold", None)

    def _restart(self, seeds: Array | None) -> Array:
        self._pending[:] = False
        per_row = isinstance(self.engine.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        given: Any = None if seeds is None else [int(s) for s in seeds] if per_row else int(seeds[0])
        obs, self.info = self._ask(lambda: self.engine.reset(seed=given), None)
        return self._read(obs)

    def _send(self, action: Array) -> None:
        if self._works_alone:
            self._ask(lambda: self.engine.step_async(action), action)

    def _recv(self) -> Answer:
        engine, action = self.engine, self._given
        question = engine.step_wait if self._works_alone else lambda: engine.step(action)
        shown, reward, terminated, truncated, self.info = self._ask(question, action)
        terminated = np.array(terminated, bool)
        truncated = np.asarray(truncated, bool) & ~terminated
        reward, done = np.array(reward, np.float32), terminated | truncated
        real = None
        if self.skips:
            real = ~self._pending
            reward, done = np.where(real, reward, 0.0), done & real
            terminated, truncated = terminated & real, truncated & real
            self._pending = done
        obs, rows = self._read(shown).copy(), np.flatnonzero(done)
        final_obs = obs[rows]
        if len(rows) and self._mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_rows(self.info, rows)
        elif len(rows) and self._resets_rows:
            fresh, _ = self._ask(lambda: self.engine.reset(options={"reset_mask": done}), action)
            obs[rows] = self._read(fresh)[rows]
        return Answer(obs, reward, terminated, truncated, rows, final_obs, real)

    def _final_rows(self, info: Mapping[str, Any], rows: Array) -> Array:
        """The last observations of finished episodes: one object per row, or a batch of which these rows count."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise EnvError(f"vector env {self.name!r} resets in the same step but gives no info['final_obs']")
        space = self._observation.space
        singles = isinstance(final, np.ndarray) and final.dtype == object
        return self._read(stacked(space, list(final[rows])) if singles else chosen(space, final, rows), rows)

    def _ask(self, question: Callable[[], Any], action: Array | None) -> Any:
        """The engine's answer, or an error that says which environment failed on what; then no process is left."""
        with errors_kept() as said:
            try:
                return question()
            except NoAnswer as error:
                self._abandon()
                raise self.failure(error.row, action, str(error)) from None
            except LOST as error:
                lost = first_lost(self.engine.unwrapped)
                self._abandon()
                raise self.failure(lost, action, "its process died") from error
            except queue.Empty:
                self._abandon()
                raise self.failure(None, action, "it raised an exception that cannot be pickled") from None
            except Exception as error:
                pipes = getattr(self.engine.unwrapped, "parent_pipes", [])
                row = next((i for i, pipe in enumerate(pipes) if pipe is None), None)
                self._abandon()
                if said:
                    error.add_note("\n".join(said))  # the traceback in the worker
                raise self.failure(row, action, error) from error
            except BaseException:  # a signal: answers that nobody waits for would be taken for later ones
                self._abandon()
                raise

    def _processes(self) -> list[Any]:
        return list(getattr(self.engine.unwrapped, "processes", []))

    def _abandon(self) -> None:
        if self._processes():
            abandon(self.engine.unwrapped)

    def _twin(self, num_envs: int, drawn: bool) -> Any:
        """For evaluation and drawing. Gymnasium's own are taken apart, so that processes are not needed for that."""
        fns = getattr(self.engine, "env_fns", None)  # of a wrapped one nothing is known of what the wrapper does
        if fns:
            one = getattr(self.engine, "make", fns[0])  # of ours, what is not for a worker
            return GymEnv(lambda drawn: in_drawing_mode(one(), drawn), num_envs, self.device, self.name, drawn)
        if self._again is None:
            raise UsageError(
                f"vector env {self.name!r} cannot be copied, which scoring needs: give a factory of it instead, a function "
                "of num_envs"
            )
        return type(self)(self._again(num_envs), self.device, self.name, self._again)

    def close(self) -> None:
        if self._waiting:
            self._abandon()
        if not getattr(self.engine.unwrapped, "closed", False):
            close(self.engine, self.name)

    def __del__(self) -> None:
        if hasattr(self, "engine"):
            self._abandon()
