"""An environment of any kind as something that can be played and watched."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import EnvError, UsageError, plural, raised
from ...types import Box, Discrete, MultiDiscrete, Spec
from ..step_arrays import Array
from ..validate import brief
from .report import Report
from .values import Seen, entry, limits, unequal

TRACE_SECONDS, TRACE_STEPS = 0.25, 100  # of each trajectory that is compared with another
OLD_STEP = "step() returns 4 values, the interface of the old gym, not 5"
FIVE = "return obs, reward, terminated, truncated, info: truncated where the clock ran out, terminated where the task ended"
FIXES = {  # what to do about a finding, for environments of Gymnasium's form
    "alias": "return a copy of it",
    "determinism": "seed all chance in reset, by super().reset(seed=seed) and self.np_random, and set all state anew there",
    "endless": "set max_episode_steps (--max-episode-steps N), or end episodes that lead nowhere",
    "rows": "give each row a stream of its own",
    "seeds": "fine if there is no chance in the task; otherwise draw from self.np_random",
    "stream": "seed only where a seed is given, as super().reset(seed=seed) does",
    "global stream": "draw from self.np_random, which super().reset(seed=seed) seeds",
    "reset": "write reset(self, *, seed=None, options=None), start it with super().reset(seed=seed), return obs, info",
    "step": "mend that line: step must take every action of its space, from every state",
}


class Broken(Exception):
    """The check under way cannot go on; why is in the report."""


class Moment(NamedTuple):
    """One step of N rows: our Step in arrays, with observations as rows of what the network would see."""

    obs: Array  # (N, D)
    reward: Array  # (N,)
    terminated: Array
    truncated: Array
    final_obs: Array
    real: Array
    told: dict[int, tuple[float, float]]  # by row: return and length of an episode, where the environment reports them

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated


class Subject:
    """N rows of an environment, played with actions as our policies choose them."""

    engine: str
    fixes: ClassVar[Mapping[str, str]] = FIXES
    num_envs = 1
    observation: Spec | None = None
    action: Spec | None = None
    restarts_at_once = True  # whether the observation after an end belongs to the next episode

    def __init__(self, env: Any, report: Report, steps: int, seed: int) -> None:
        self.env, self.report, self.steps, self.seed = env, report, steps, seed
        self.rng = np.random.default_rng(seed)
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}  # of every call
        self.age, self.seeded = 0, seed  # steps since the last seeded reset, and its seed
        self.ends, self.unmoved = 0, 0  # ends of episodes, and those after which the same was observed as before
        self.varied = False  # whether two rows of observations were ever different
        self.shown: Array | None = None  # the first of them
        self.lent: list[tuple[str, Any, Any]] | None = None  # what was handed out, with copies, while someone looks

    def start(self, seed: int | None = None) -> Array:
        """Rows of first observations."""
        raise NotImplementedError

    def act(self, action: Any) -> Moment:
        raise NotImplementedError

    # saying ----------------------------------------------------------------------------------------------------------

    def error(self, check: str, message: str, fix: str) -> None:
        self.report.add("error", check, message, fix)

    def warning(self, check: str, message: str, fix: str) -> None:
        self.report.add("warning", check, message, fix)

    def note(self, check: str, message: str, fix: str) -> None:
        self.report.add("note", check, message, fix)

    @property
    def when(self) -> str:
        return f"{plural(self.age, 'step')} after reset(seed={self.seeded})"

    # asking ----------------------------------------------------------------------------------------------------------

    def call(self, name: str, function: Callable[[], Any], action: Any = None) -> Any:
        """What the environment answers; what it raises is a finding and ends the check under way."""
        began = time.perf_counter()
        try:
            return function()
        except (Exception, SystemExit) as error:
            given = "" if action is None else f" on action {brief(np.asarray(action).tolist())}"
            if isinstance(error, (UsageError, EnvError)) and error.__cause__ is None:  # which names the user's method
                message, _, fix = str(error).rpartition(": ")
                self.error(name, f"{message}, in {name}(){given}, {self.when}", fix)
                raise Broken from None
            words = raised(error)
            if name == "step" and "expected 5, got 4" in words:
                self.error(name, OLD_STEP, FIVE)
            self.error(name, f"{name}() raises{given}, {self.when}: {words}", self.fixes.get(name, "fix that line"))
            raise Broken from None
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def cost(self, name: str) -> float:
        """Seconds of a usual call."""
        return max(float(np.median(self.seconds[name] or [0.0])), 1e-9)

    def choose(self) -> Any:
        """Random actions (N, ...)."""
        if isinstance(self.action, Box):
            low, high = limits(self.action)
            low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, -1.0))
            high = np.where(np.isfinite(high), high, low + 2)
            return (low + self.rng.random((self.num_envs, *low.shape)) * (high - low)).astype(np.float32)
        if isinstance(self.action, (Discrete, MultiDiscrete)):
            shape = (self.num_envs, *self.action.shape)
            return (self.rng.random(shape) * np.asarray(self.action.n)).astype(np.int64)
        raise Broken  # there is no such policy, which is said where spaces are looked at

    def extreme(self, side: int) -> Array | None:
        """The lowest (0) or highest (1) actions of all; None where there is no such thing."""
        if isinstance(self.action, Box):
            bound = limits(self.action)[side].astype(np.float32)
            return np.stack([bound] * self.num_envs) if np.isfinite(bound).all() else None
        if isinstance(self.action, (Discrete, MultiDiscrete)):
            return np.stack([np.asarray(side * (np.asarray(self.action.n) - 1))] * self.num_envs)
        return None

    def actions(self, more: int = 0) -> list[Any]:
        """For a trajectory, as many as there is time for."""
        return [self.choose() for _ in range(int(np.clip(TRACE_SECONDS / self.cost("step"), 5, TRACE_STEPS + more)))]

    def trace(self, seed: int, actions: list[Any], between: Callable[[], Any] = lambda: None) -> Seen:
        """Everything that these actions show from a seeded reset to one without a seed."""
        seen: Seen = [("the observation of reset(seed)", self.start(seed))]
        names = {"final_obs": "the observation", "reward": "the reward", "terminated": "terminated"}
        names |= {"truncated": "truncated", "obs": "the observation after the end"}
        for t, action in enumerate(actions, 1):
            between()
            moment = self.act(action)
            seen += [(f"{name} of step {t}", getattr(moment, key)) for key, name in names.items()]
        return [*seen, ("the observation of a later reset()", self.start())]

    # watching --------------------------------------------------------------------------------------------------------

    def lend(self, name: str, thing: Any) -> None:
        if self.lent is not None:
            self.lent.append((name, thing, copy.deepcopy(thing)))

    def finite(self, name: str, rows: Array) -> Array:
        """The rows; a number in them that is none is a finding."""
        finite = np.isfinite(rows) if rows.dtype.kind == "f" else np.ones(1, bool)
        if not finite.all():
            row, *place = (int(i) for i in np.argwhere(~finite)[0])
            which = f", {entry(self.observation, place[0])}," if place and self.observation is not None else ""
            message = f"{name}{which} is {rows[(row, *place)]} in row {row}, {self.when}"
            self.error("finite", message, "find the division by 0, the root or the overflow; clip what may grow")
        return rows

    def noted(self, moment: Moment) -> Moment:
        """The moment, counted."""
        if not self.report.has("reward"):
            self.finite("the reward", moment.reward)
        self.ends += int(moment.done.sum())
        self.unmoved += int((~unequal(moment.obs, moment.final_obs).any(1) & moment.done).sum())
        self.shown = moment.final_obs[:1] if self.shown is None else self.shown
        self.varied = self.varied or bool(unequal(moment.final_obs, self.shown).any())
        return moment
