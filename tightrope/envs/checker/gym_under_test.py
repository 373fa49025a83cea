"""Gymnasium environments under test, single and vector, without an adapter."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ...errors import UsageError, one_line, plural
from ..adapters import spaces
from ..adapters.actions import writer_for_env
from ..adapters.space_members import space_text, stacked, take_rows
from ..step_arrays import Array
from ..training_warnings import find_action_mask, mask_names
from ..validate import describe_value, short_text
from .env_under_test import FIVE_VALUES, OLD_STEP, CheckAborted, CheckReport, EnvUnderTest, Level, ObservedStep
from .values import same_numbers, space_violations


class GymUnderTest(EnvUnderTest):
    """The base of single and vector environments under test."""

    def __init__(self, env: object, report: CheckReport, steps: int, seed: int, seen: Any, acted: Any) -> None:
        super().__init__(env, report, steps, seed)
        self.space: Any = getattr(env, "observation_space", None)
        self.shape: tuple[int, ...] = ()  # of a reward
        self.sampled = copy.deepcopy(getattr(env, "action_space", None))
        if isinstance(self.sampled, gs.Space):
            self.sampled.seed(seed)
        report.facts |= {"observation": short_text(space_text(seen)), "action": short_text(space_text(acted))}
        try:
            self.reader = spaces.observation_reader(seen)
            self.observation = self.reader.spec
        except UsageError as error:
            report.add_usage_error("error", "spaces", error)
        try:
            self.writer = writer_for_env(env)
            self.action = self.writer.spec
        except UsageError as error:
            report.add_usage_error("error", "spaces", error)
        self.note_mask(find_action_mask(env))

    def batch(self, obs: object) -> object:
        """An observation in the form of vector environments."""
        return obs

    def encode(self, action: Any) -> Any:
        """Actions as our adapters send them; actions of unsupported spaces as they are."""
        return action if self.action is None else self.writer.batch(self.allowed(action))

    def random_actions(self) -> object:
        if self.action is None and self.sampled is not None:
            return self.sampled.sample()
        return super().random_actions()

    def read(self, name: str, obs: object) -> Array:
        """Rows of numbers from an observation, after it was compared with its space."""
        self.watch(name, obs)
        violations = list(space_violations(self.space, obs))
        for level, check, message in violations:
            self.add(level, check, name + message)
        if self.observation is None:
            return np.zeros((self.num_envs, 0))
        try:
            rows = self.reader.rows(self.batch(obs)).reshape(self.num_envs, -1)
        except Exception:
            rows = np.zeros((self.num_envs, 0))
        if rows.shape[1] != math.prod(self.observation.shape):
            if not violations:
                self.error("structure", f"{name} is {describe_value(obs)}, which cannot be read")
            raise CheckAborted
        return self.check_finite(name, rows)

    def reset(self, seed: int | None = None, mask: Array | None = None) -> Array:
        if seed is not None:
            self.age, self.last_seed = 0, seed
        options: dict[str, Any] = {} if mask is None else {"options": {"reset_mask": mask.copy()}}
        result = self.call("reset", lambda: self._reset(seed, options))
        obs, info = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if obs is result:
            self.error("reset", f"reset() returns {describe_value(result)}, not (observation, info)", "return obs, {}")
        self._check_info("reset()", info)
        return self.read_masks(self.read("the observation of reset()", obs))

    def _reset(self, seed: int | None, options: dict[str, Any]) -> object:
        try:
            return self.env.reset(seed=seed, **options)
        except TypeError as error:
            if "'seed'" not in str(error) or options:
                raise
            self.error("seed", f"reset() takes no seed: {one_line(error)}")
            return self.env.reset()

    def _check_info(self, name: str, info: object) -> None:
        if not isinstance(info, dict):
            self.error("info", f"the info of {name} is {describe_value(info)}, not a dict")
        elif found := mask_names(info):
            self.note_mask(f"info[{found[0]!r}]")

    def raw_step(self, action: object) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """The five values of one step; reward and flags as arrays (N,)."""
        sent = self.encode(action)
        before = copy.deepcopy(sent)
        self.age += 1
        values = self.call("step", lambda: self.env.step(sent), before)
        if not same_numbers(sent, before):
            self.add("warning", "action", f"step() writes into the action given to it, {self.when}")
        count = len(values) if isinstance(values, tuple) else None
        if count == 4:
            self.error("step", OLD_STEP, FIVE_VALUES)
            values = (*values[:3], np.zeros_like(values[2]), values[3])
        elif count != 5:
            self.error("step", f"step() returns {describe_value(values)}, not 5 values", FIVE_VALUES)
            raise CheckAborted
        obs, reward, terminated, truncated, info = values
        self._check_info("step()", info)
        flags = self._numbers("terminated", terminated, "b"), self._numbers("truncated", truncated, "b")
        return obs, self._numbers("reward", reward, "iuf"), *flags, info if isinstance(info, dict) else {}

    def _numbers(self, name: str, value: object, kinds: str) -> Array:
        """The value as an array (N,) of numbers or, for kind b, of bools."""
        kind = bool if kinds == "b" else float
        level: Level | None = "error"
        try:
            array = np.asarray(value)
            if array.shape == self.shape and array.dtype.kind in "biuf":
                level = None if array.dtype.kind in kinds else "warning"  # 0 for False, or False for 0
            array = array.astype(kind).reshape(self.num_envs)
        except (TypeError, ValueError):
            array = None
        if level is not None:
            wanted = f"an array {self.shape} of {kind.__name__}" if self.shape else f"a {kind.__name__}"
            message = f"{name} is {describe_value(value)}, not {wanted}, {self.when}"
            self.add(level, name, message, f"return {name} as {wanted}")
        if array is None:
            raise CheckAborted
        return array

    def inspect(self, step: ObservedStep) -> ObservedStep:
        if (step.terminated & step.truncated).any():
            message = f"terminated and truncated are both True, {self.when}: this counts as terminated"
            self.add("note", "both flags", message)
        return super().inspect(step)


class SingleUnderTest(GymUnderTest):
    """One environment, which the checker resets where an episode ends."""

    def __init__(self, env: object, report: CheckReport, steps: int, seed: int) -> None:
        seen, acted = getattr(env, "observation_space", None), getattr(env, "action_space", None)
        super().__init__(env, report, steps, seed, seen, acted)
        name = type(getattr(env, "unwrapped", env)).__name__
        self.engine = f"Gymnasium, one environment ({name})"
        if not isinstance(env, gymnasium.Env):
            self.error("class", f"{name} is not a gymnasium.Env")

    def batch(self, obs: object) -> object:
        return stacked(self.space, [obs])

    def encode(self, action: object) -> object:
        sent = super().encode(action)
        return sent if self.action is None else self.writer.member(sent, 0)

    def step(self, action: object) -> ObservedStep:
        value, reward, terminated, truncated, _ = self.raw_step(action)
        final_obs = obs = self.read("the observation of step()", value)
        if terminated[0] or truncated[0]:
            obs = self.reset()
        return self.inspect(ObservedStep(obs, reward, terminated, truncated, final_obs, np.ones(1, bool)))


class VectorUnderTest(GymUnderTest):
    """A vector environment, which resets its rows in the way it declares."""

    def __init__(self, env: VectorEnv, report: CheckReport, steps: int, seed: int) -> None:
        super().__init__(env, report, steps, seed, env.single_observation_space, env.single_action_space)
        self.num_envs, self.shape = env.num_envs, (env.num_envs,)
        self.pending = np.zeros(self.num_envs, bool)  # rows whose next step only resets them
        self.idle_actions: Array | None = None  # for these rows, while it is checked whether their actions matter
        self.mode: object = (env.metadata or {}).get("autoreset_mode")
        try:
            self.mode = AutoresetMode(self.mode)
        except ValueError:
            message = f"metadata['autoreset_mode'] is {self.mode!r}: nobody can know when rows are reset"
            self.error("autoreset", message, "set it to the member of gymnasium.vector.AutoresetMode that is true")
        self.restarts_at_once = self.mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        self.mode_name = getattr(self.mode, "name", self.mode)
        kind = type(env.unwrapped).__name__
        self.engine = f"Gymnasium, {plural(self.num_envs, 'row')} ({kind}), autoreset {self.mode_name}"
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != batch_space(getattr(env, f"single_{name}"), self.num_envs):
                message = (
                    f"{name} is {short_text(space_text(getattr(env, name)))}, not {self.num_envs} times single_{name}"
                )
                self.error("spaces", message, f"set it to vector.utils.batch_space(single_{name}, num_envs)")

    def autoreset_error(self, observed: str) -> None:
        self.error("autoreset", f"metadata declares {self.mode_name}, but {observed}, {self.when}")

    def reset(self, seed: int | None = None, mask: Array | None = None) -> Array:
        if mask is None:
            self.pending[:] = False
        return super().reset(seed, mask)

    def step(self, action: Any) -> ObservedStep:
        if self.idle_actions is not None:
            action = np.where(self.pending.reshape(-1, *(1,) * (action.ndim - 1)), self.idle_actions, action)
        value, reward, terminated, truncated, info = self.raw_step(action)
        obs = final_obs = self.read("the observation of step()", value)
        done, valid = terminated | truncated, ~self.pending
        final = info.get("final_obs", info.get("final_observation"))
        if self.mode is AutoresetMode.SAME_STEP and done.any():
            final_obs = self._final_rows(final, np.flatnonzero(done), obs)
        elif final is not None and self.mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            self.autoreset_error("info has 'final_obs', as in SAME_STEP")
        if self.mode is AutoresetMode.NEXT_STEP:
            moved = np.flatnonzero(self.pending & ((reward != 0) | done))
            if len(moved):
                seen = f"has reward {reward[moved[0]]:g} and done {bool(done[moved[0]])}, not 0 and False"
                self.autoreset_error(f"the step after row {moved[0]} ended {seen}, as in SAME_STEP")
            self.pending = done & valid
        if self.mode is AutoresetMode.DISABLED and done.any():
            obs = self.reset(mask=done)
            if not same_numbers(obs[~done], final_obs[~done]):
                self.autoreset_error(f"reset with reset_mask {done.tolist()} also changes rows that it leaves out")
        return self.inspect(ObservedStep(obs, reward, terminated & valid, truncated & valid, final_obs, valid))

    def _final_rows(self, final: Any, rows: Array, obs: Array) -> Array:
        """The observations, with the last ones of episodes that ended."""
        if final is None:
            self.autoreset_error(f"info has no 'final_obs' where row {rows[0]} ended, as in NEXT_STEP")
            return obs
        if self.observation is None:
            return obs
        singles = isinstance(final, np.ndarray) and final.dtype == object
        space, result = self.reader.space, obs.copy()
        try:
            batch = stacked(space, list(final[rows])) if singles else take_rows(space, final, rows)
            result[rows] = self.reader.rows(batch).reshape(len(rows), -1)
        except Exception:
            one = final[rows[0]] if singles else final
            self.autoreset_error(f"info['final_obs'] holds {describe_value(one)} where row {rows[0]} ended")
        return self.check_finite("the final observation", result)
