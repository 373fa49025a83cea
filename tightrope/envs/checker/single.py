"""Gymnasium's environments under the eyes of the checker: what all have in common, and single ones."""

from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium
import gymnasium.spaces as gs
import numpy as np

from ...errors import UsageError, one_line
from ..adapters import spaces
from ..step_arrays import Array
from ..training_warnings import find_action_mask, mask_names
from ..validate import brief, described
from .report import Level, Report
from .subject import FIVE, FIXES, OLD_STEP, Broken, Moment, Subject
from .values import misfits, same, told

MISFITS = {
    "structure": "return what observation_space says, or mend the space",
    "shape": "return what observation_space says, or give the space this shape",
    "dtype": "return obs.astype(observation_space.dtype), or give the space this dtype",
    "bounds": "give the space the bounds that are true, or clip",
}


class Gym(Subject):
    """What single and vector environments of Gymnasium have in common."""

    def __init__(self, env: Any, report: Report, steps: int, seed: int, seen: Any, acted: Any) -> None:
        super().__init__(env, report, steps, seed)
        self.whole: Any = getattr(env, "observation_space", None)
        self.shape: tuple[int, ...] = ()  # of a reward
        self.sampled = copy.deepcopy(getattr(env, "action_space", None))
        if isinstance(self.sampled, gs.Space):
            self.sampled.seed(seed)
        report.facts |= {"observation": brief(seen), "action": brief(acted)}
        self._masked(find_action_mask(env))
        try:
            self.reader = spaces.observation_reader(seen)
            self.observation = self.reader.spec
        except UsageError as error:
            self._unsupported(error)
        try:
            self.writer = spaces.action_writer(acted)
            self.action = self.writer.spec
        except UsageError as error:
            self._unsupported(error)

    def _unsupported(self, error: UsageError) -> None:
        message, _, fix = str(error).partition(": ")
        self.error("spaces", message, fix)

    def batch(self, obs: Any) -> Any:
        """An observation as vector environments give it."""
        return obs

    def send(self, action: Any) -> Any:
        """Actions as our adapters send them; those our policies do not have as they are."""
        return action if self.action is None else self.writer.batch(action)

    def choose(self) -> Any:
        if self.action is None and self.sampled is not None:
            return self.sampled.sample()
        return super().choose()

    def read(self, name: str, obs: Any) -> Array:
        """Rows of numbers from an observation, once its form was looked at."""
        self.lend(name, obs)
        wrong = list(misfits(self.whole, obs))
        for level, check, words in wrong:
            self.report.add(level, check, name + words, MISFITS[check])
        if self.observation is None:
            return np.zeros((self.num_envs, 0))
        try:
            rows = self.reader.rows(self.batch(obs)).reshape(self.num_envs, -1)
        except Exception:
            rows = np.zeros((self.num_envs, 0))
        if rows.shape[1] != math.prod(self.observation.shape):
            if not wrong:
                self.error("structure", f"{name} is {described(obs)}, which cannot be read", MISFITS["structure"])
            raise Broken
        return self.finite(name, rows)

    def start(self, seed: int | None = None, mask: Array | None = None) -> Array:
        if seed is not None:
            self.age, self.seeded = 0, seed
        options: dict[str, Any] = {} if mask is None else {"options": {"reset_mask": mask.copy()}}
        answer = self.call("reset", lambda: self._reset(seed, options))
        obs, info = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
        if obs is answer:
            self.error("reset", f"reset() returns {described(answer)}, not (observation, info)", "return obs, {}")
        self._informed("reset()", info)
        return self.read("the observation of reset()", obs)

    def _reset(self, seed: int | None, options: dict[str, Any]) -> Any:
        try:
            return self.env.reset(seed=seed, **options)
        except TypeError as error:
            if "'seed'" not in str(error) or options:
                raise
            self.error("seed", f"reset() takes no seed: {one_line(error)}", FIXES["reset"])
            return self.env.reset()

    def _informed(self, name: str, info: Any) -> None:
        if not isinstance(info, dict):
            self.error("info", f"the info of {name} is {described(info)}, not a dict", "return a dict, if an empty one")
        elif found := mask_names(info):
            self._masked(f"info[{found[0]!r}]")

    def _masked(self, where: str | None) -> None:
        if where is not None:
            message = f"it offers action masks ({where}), which are not applied: a policy may choose invalid actions"
            self.note("action mask", message, "let invalid actions do nothing, or cost a little")

    def advance(self, action: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """The five answers of one step, the numbers among them as arrays (N,)."""
        sent = self.send(action)
        before = copy.deepcopy(sent)
        self.age += 1
        answer = self.call("step", lambda: self.env.step(sent), before)
        if not same(sent, before):
            self.warning("action", f"step() writes into the action given to it, {self.when}", "use a copy of it")
        count = len(answer) if isinstance(answer, tuple) else None
        if count == 4:
            self.error("step", OLD_STEP, FIVE)
            answer = (*answer[:3], np.zeros_like(answer[2]), answer[3])
        elif count != 5:
            self.error("step", f"step() returns {described(answer)}, not 5 values", FIVE)
            raise Broken
        obs, reward, terminated, truncated, info = answer
        self._informed("step()", info)
        flags = self._numbers("terminated", terminated, "b"), self._numbers("truncated", truncated, "b")
        return obs, self._numbers("reward", reward, "iuf"), *flags, info if isinstance(info, dict) else {}

    def _numbers(self, name: str, value: Any, kinds: str) -> Array:
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
            message = f"{name} is {described(value)}, not {wanted}, {self.when}"
            self.report.add(level, name, message, f"return {name} as {wanted}")
        if array is None:
            raise Broken
        return array

    def noted(self, moment: Moment) -> Moment:
        if (moment.terminated & moment.truncated).any():
            message = f"terminated and truncated are both True, {self.when}: this counts as terminated"
            self.note("both flags", message, "leave terminated False where only the clock ran out")
        return super().noted(moment)


class Single(Gym):
    """One environment, reset by us where an episode ends."""

    def __init__(self, env: Any, report: Report, steps: int, seed: int) -> None:
        spaces_of = getattr(env, "observation_space", None), getattr(env, "action_space", None)
        super().__init__(env, report, steps, seed, *spaces_of)
        name = type(getattr(env, "unwrapped", env)).__name__
        self.engine = f"Gymnasium, one environment ({name})"
        if not isinstance(env, gymnasium.Env):
            self.error("class", f"{name} is no gymnasium.Env", "derive it from gymnasium.Env (old gym: see shimmy)")

    def batch(self, obs: Any) -> Any:
        return spaces.stacked(self.whole, [obs])

    def send(self, action: Any) -> Any:
        sent = super().send(action)
        return sent if self.action is None else sent[0]

    def act(self, action: Any) -> Moment:
        obs, reward, terminated, truncated, info = self.advance(action)
        final_obs = shown = self.read("the observation of step()", obs)
        done = terminated | truncated
        if done[0]:
            shown = self.start()
        reported = told(info, np.flatnonzero(done))
        return self.noted(Moment(shown, reward, terminated, truncated, final_obs, np.ones(1, bool), reported))
