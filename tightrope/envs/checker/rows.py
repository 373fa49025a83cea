"""Environments of several rows under the eyes of the checker: Gymnasium's vectors, and ours."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from ...errors import plural
from ...types import Box, Step
from ..adapters import spaces
from ..adapters.host import HostEnv
from ..attributes import SavedStreams
from ..step_arrays import Array
from ..tensor import TensorEnv
from ..training_warnings import find_action_mask
from ..validate import brief, described
from .report import Level, Report
from .single import Gym
from .subject import FIXES, Broken, Moment, Subject
from .values import entry, same, span, told, unequal


class Vector(Gym):
    """A vector environment, which resets its rows in the way it declares."""

    def __init__(self, env: VectorEnv, report: Report, steps: int, seed: int) -> None:
        super().__init__(env, report, steps, seed, env.single_observation_space, env.single_action_space)
        self.num_envs, self.shape = env.num_envs, (env.num_envs,)
        self.pending = np.zeros(self.num_envs, bool)  # rows whose next step only resets them
        self.idle: Array | None = None  # actions for these, where someone wants to know whether they matter
        self.mode: Any = (env.metadata or {}).get("autoreset_mode")
        try:
            self.mode = AutoresetMode(self.mode)
        except ValueError:
            message = f"metadata['autoreset_mode'] is {self.mode!r}: nobody can know when rows are reset"
            self.error("autoreset", message, "set it to the member of gymnasium.vector.AutoresetMode that is true")
        self.restarts_at_once = self.mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        mode = getattr(self.mode, "name", self.mode)
        self.engine = f"Gymnasium, {plural(self.num_envs, 'row')} ({type(env.unwrapped).__name__}), autoreset {mode}"
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != batch_space(getattr(env, f"single_{name}"), self.num_envs):
                message = f"{name} is {brief(getattr(env, name))}, not {self.num_envs} times single_{name}"
                self.error("spaces", message, f"set it to vector.utils.batch_space(single_{name}, num_envs)")

    def disagrees(self, what: str) -> None:
        mode = getattr(self.mode, "name", self.mode)
        fix = "declare the AutoresetMode it has, or reset as declared: otherwise what is learned at every end is wrong"
        self.error("autoreset", f"metadata declares {mode}, but {what}, {self.when}", fix)

    def start(self, seed: int | None = None, mask: Array | None = None) -> Array:
        if mask is None:
            self.pending[:] = False
        return super().start(seed, mask)

    def act(self, action: Any) -> Moment:
        if self.idle is not None:
            action = np.where(self.pending.reshape(-1, *(1,) * (action.ndim - 1)), self.idle, action)
        obs, reward, terminated, truncated, info = self.advance(action)
        shown = final_obs = self.read("the observation of step()", obs)
        done, real = terminated | truncated, ~self.pending
        rows = np.flatnonzero(done)
        final = info.get("final_obs", info.get("final_observation"))
        if self.mode is AutoresetMode.SAME_STEP and len(rows):
            final_obs = self._finals(final, rows, shown)
        elif final is not None and self.mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
            self.disagrees("info has 'final_obs', as in SAME_STEP")
        if self.mode is AutoresetMode.NEXT_STEP:
            self._idled(reward, done)
            self.pending = done & real
        if self.mode is AutoresetMode.DISABLED and len(rows):
            shown = self.start(mask=done)
            if not same(shown[~done], final_obs[~done]):
                self.disagrees(f"reset with reset_mask {done.tolist()} also changes rows that it leaves out")
        flags = terminated & real, truncated & real
        return self.noted(Moment(shown, reward, *flags, final_obs, real, told(info, rows)))

    def _idled(self, reward: Array, done: Array) -> None:
        moved = np.flatnonzero(self.pending & ((reward != 0) | done))
        if len(moved):
            seen = f"has reward {reward[moved[0]]:g} and done {bool(done[moved[0]])}, not 0 and False"
            self.disagrees(f"the step after row {moved[0]} ended {seen}, as in SAME_STEP")

    def _finals(self, final: Any, rows: Array, shown: Array) -> Array:
        """The last observations of episodes that ended; elsewhere what is shown."""
        if final is None:
            self.disagrees(f"info has no 'final_obs' where row {rows[0]} ended, as in NEXT_STEP")
            return shown
        if self.observation is None:
            return shown
        singles = isinstance(final, np.ndarray) and final.dtype == object
        space, result = self.reader.space, shown.copy()
        try:
            batch = spaces.stacked(space, list(final[rows])) if singles else spaces.take_rows(space, final, rows)
            result[rows] = self.reader.rows(batch).reshape(len(rows), -1)
        except Exception:
            one = final[rows[0]] if singles else final
            self.disagrees(f"info['final_obs'] holds {described(one)} where row {rows[0]} ended")
        return self.finite("the final observation", result)


class Ours(Subject):
    """An environment that speaks the Env protocol."""

    def __init__(self, env: Any, report: Report, steps: int, seed: int) -> None:
        super().__init__(env, report, steps, seed)
        self.num_envs, self.observation, self.action = env.num_envs, env.observation, env.action
        self.engine = f"Tightrope, {plural(self.num_envs, 'row')} on {env.device} ({type(env).__name__})"
        self.adapts = isinstance(env, HostEnv)  # an engine that may pay, score and end games each in its own way
        self.restarts_at_once = not self.adapts
        report.facts |= {"observation": brief(env.observation), "action": brief(env.action)}

    def start(self, seed: int | None = None) -> Array:
        if seed is not None:
            self.age, self.seeded = 0, seed
        return self.read("the observation of reset()", self.call("reset", lambda: self.env.reset(seed=seed)))

    def read(self, name: str, tensor: Any) -> Array:
        """Rows of an observation."""
        spec = self.env.observation
        rows = self.form(name, tensor, spec.dtype, spec.shape).reshape(self.num_envs, -1)
        low, high = span(spec)
        outside = np.argwhere((rows < low) | (rows > high))
        if len(outside):
            row, column = (int(i) for i in outside[0])
            words = f"{name}, {entry(spec, column)}, is {rows[row, column]:.6g}, outside [{low[column]:g}, {high[column]:g}]"
            level: Level = "warning" if isinstance(spec, Box) else "error"
            self.report.add(
                level, "bounds", f"{words}, in row {row}, {self.when}", "keep to the spec, or mend the spec"
            )
        return self.finite(name, rows)

    def form(self, name: str, tensor: Any, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> Array:
        """A copy of the tensor as an array, once its form was looked at."""
        if not isinstance(tensor, Tensor):
            self.error("structure", f"{name} is {described(tensor)}, not a tensor", "return a tensor")
            raise Broken
        self.lend(name, tensor)
        if tensor.dtype != dtype:
            self.error("dtype", f"{name} is {tensor.dtype}, not {dtype}", f"return it as {dtype}, or mend the spec")
        if tensor.device.type != self.env.device.type:
            message = f"{name} is on {tensor.device}, the environment on {self.env.device}"
            self.error("device", message, "make tensors with device=self.device")
            raise Broken
        if tensor.requires_grad:
            self.error("gradient", f"{name} requires a gradient", "detach it, or work under torch.no_grad()")
        expected = (self.num_envs, *shape)
        if tuple(tensor.shape) != expected:
            message = f"{name} has shape {tuple(tensor.shape)}, not {expected}"
            self.error("shape", message, "give one row per environment, each of the shape of the spec")
            raise Broken
        return tensor.detach().cpu().numpy().copy()

    def act(self, action: Any) -> Moment:
        sent = torch.tensor(action).to(self.env.device)  # a copy, whatever is done to it
        before = sent.clone()
        self.age += 1
        step = self.call("step", lambda: self.env.step(sent), action)
        if not same(sent, before):
            self.error("action", f"step() writes into the action given to it, {self.when}", "use a copy of it")
        if not isinstance(step, Step):
            self.error("step", f"step() returns {described(step)}, not a Step", "return a tightrope.types.Step")
            raise Broken
        obs, final_obs = self.read("obs", step.obs), self.read("final_obs", step.final_obs)
        reward = self.form("reward", step.reward, torch.float32).astype(np.float64)
        terminated = self.form("terminated", step.terminated, torch.bool).astype(bool)
        truncated = self.form("truncated", step.truncated, torch.bool).astype(bool)
        real = np.ones(self.num_envs, bool) if step.real is None else self.form("real", step.real, torch.bool)
        return self.noted(Moment(obs, reward, terminated, truncated, final_obs, real, {}))

    def noted(self, moment: Moment) -> Moment:
        both = np.flatnonzero(moment.terminated & moment.truncated)
        if len(both):
            message = f"row {both[0]} is terminated and truncated at once, {self.when}"
            self.error("both flags", message, "truncated = late & ~terminated: what is over is worth 0")
        strayed = np.flatnonzero(~moment.done & unequal(moment.obs, moment.final_obs).any(1))
        if len(strayed) and not self.adapts:
            message = f"row {strayed[0]} goes on, but its obs is not its final_obs, {self.when}"
            self.error("final_obs", message, "give the successor as both, and a fresh obs only where done")
        return super().noted(moment)


class Tensors(Ours):
    """A TensorEnv. Its methods have been tried. Like a run, it goes on from the same random streams and the same attributes
    whenever it starts from a seed."""

    fixes = FIXES | {
        "alias": "return a new tensor each time",
        "determinism": "keep what a step changes in columns of the state, or in attributes that are numbers, arrays, tensors, "
        "lists, dictionaries or random generators; these are saved with a run, iterators, files and captured variables are not",
        "endless": "set time_limit in the class, or let terminated end what leads nowhere",
        "rows": "use noise in initial: each row of it is for one environment",
        "seeds": "fine if there is no chance in the task; otherwise use noise in initial",
        "stream": "use noise in initial, not random numbers of its own",
        "global stream": "fine: in training these streams are the run's own, seeded and saved with it",
        "reset": "fix that line; `initial` and `observe` must take every row of noise",
        "step": "fix that line; every method must take every action, from every state",
    }

    def __init__(self, env: TensorEnv, report: Report, steps: int, seed: int) -> None:
        names = sorted(env.try_methods()) if env.pure else []
        super().__init__(env, report, steps, seed)
        self.kept = env.snapshot()
        for name in names:
            message = f"{name} writes into a tensor that it is given, or returns the same tensor each time"
            self.note(
                f"{name} in place", message, "fine: it is called on copies; return a new tensor to save that time"
            )
        where = find_action_mask(env)
        if where is not None:
            message = f"it offers action masks ({where}), which are not applied: a policy may choose invalid actions"
            self.note("action mask", message, "let invalid actions do nothing, or cost a little")

    def start(self, seed: int | None = None) -> Array:
        if seed is not None:
            self.env.load_state_dict(self.kept)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        return super().start(seed)

    def aside(self) -> Moment:
        """A step from which no other environment can tell that it happened."""
        streams = SavedStreams(SimpleNamespace())
        try:
            return self.act(self.choose())
        finally:
            streams.restore()
