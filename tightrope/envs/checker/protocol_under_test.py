"""Environments under test that implement Tightrope's Env protocol, including tensor environments."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import plural
from ...types import Box, Step
from ..adapters.host import HostEnv
from ..random_streams import GeneratorSnapshot
from ..step_arrays import Array
from ..tensor import TensorEnv
from ..training_warnings import find_action_mask
from ..validate import describe_value, short_text
from .env_under_test import FIXES, CheckAborted, CheckReport, EnvUnderTest, ObservedStep
from .values import differs_at, same_numbers, scalar_label, spec_range


class ProtocolUnderTest(EnvUnderTest):
    """An environment under test that implements the Env protocol."""

    fixes = FIXES | {
        "bounds": "keep to the spec, or fix the spec",
        "both flags": "truncated = late & ~terminated: what is over is worth 0",
        "dtype": "return it in the type of the spec, or fix the spec",
        "shape": "give one row per environment, each of the shape of the spec",
        "structure": "return a tensor",
    }

    def __init__(self, env: Any, report: CheckReport, steps: int, seed: int) -> None:
        super().__init__(env, report, steps, seed)
        self.num_envs, self.observation, self.action = env.num_envs, env.observation, env.action
        self.engine = f"Tightrope, {plural(self.num_envs, 'row')} on {env.device} ({type(env).__name__})"
        self.is_adapter = isinstance(env, HostEnv)  # rewards, scores and ends of games may differ by design
        self.restarts_at_once = not self.is_adapter
        report.facts |= {"observation": short_text(env.observation), "action": short_text(env.action)}

    def reset(self, seed: int | None = None) -> Array:
        if seed is not None:
            self.age, self.last_seed = 0, seed
        rows = self.read("the observation of reset()", self.call("reset", lambda: self.env.reset(seed=seed)))
        return self.read_masks(rows)

    def read(self, name: str, tensor: object) -> Array:
        """Rows of an observation."""
        spec = self.env.observation
        rows = self.checked_array(name, tensor, spec.dtype, spec.shape).reshape(self.num_envs, -1)
        low, high = spec_range(spec)
        outside = np.argwhere((rows < low) | (rows > high))
        if len(outside):
            row, column = (int(i) for i in outside[0])
            value = f"{rows[row, column]:.6g}, outside [{low[column]:g}, {high[column]:g}]"
            message = f"{name}, {scalar_label(spec, column)}, is {value}, in row {row}, {self.when}"
            self.add("warning" if isinstance(spec, Box) else "error", "bounds", message)
        return self.check_finite(name, rows)

    def checked_array(self, name: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...] = ()) -> Array:
        """Check the dtype, device and shape of a tensor, and return a copy as an array."""
        if not isinstance(tensor, Tensor):
            self.error("structure", f"{name} is {describe_value(tensor)}, not a tensor")
            raise CheckAborted
        self.watch(name, tensor)
        if tensor.dtype != dtype:
            self.error("dtype", f"{name} is {tensor.dtype}, not {dtype}")
        if tensor.device.type != self.env.device.type:
            self.error("device", f"{name} is on {tensor.device}, the environment on {self.env.device}")
            raise CheckAborted
        if tensor.requires_grad:
            self.error("gradient", f"{name} requires a gradient")
        expected = (self.num_envs, *shape)
        if tuple(tensor.shape) != expected:
            self.error("shape", f"{name} has shape {tuple(tensor.shape)}, not {expected}")
            raise CheckAborted
        return tensor.detach().cpu().numpy().copy()

    def step(self, action: object) -> ObservedStep:
        action = self.allowed(action)
        sent = torch.tensor(action).to(self.env.device)  # a copy, which the environment may change
        before = sent.clone()
        self.age += 1
        step = self.call("step", lambda: self.env.step(sent), action)
        if not same_numbers(sent, before):
            self.error("action", f"step() writes into the action given to it, {self.when}")
        if not isinstance(step, Step):
            self.error("step", f"step() returns {describe_value(step)}, not a Step", "return a tightrope.types.Step")
            raise CheckAborted
        obs, final_obs = self.read("obs", step.obs), self.read("final_obs", step.final_obs)
        reward = self.checked_array("reward", step.reward, torch.float32).astype(np.float64)
        terminated = self.checked_array("terminated", step.terminated, torch.bool).astype(bool)
        truncated = self.checked_array("truncated", step.truncated, torch.bool).astype(bool)
        valid = (
            np.ones(self.num_envs, bool) if step.valid is None else self.checked_array("valid", step.valid, torch.bool)
        )
        return self.inspect(ObservedStep(obs, reward, terminated, truncated, final_obs, valid))

    def inspect(self, step: ObservedStep) -> ObservedStep:
        both = np.flatnonzero(step.terminated & step.truncated)
        if len(both):
            self.error("both flags", f"row {both[0]} is terminated and truncated at once, {self.when}")
        differing = np.flatnonzero(~step.done & differs_at(step.obs, step.final_obs).any(1))
        if len(differing) and not self.is_adapter:
            self.error("final_obs", f"row {differing[0]} is not done, but its obs is not its final_obs, {self.when}")
        return super().inspect(step)

    def isolated_step(self) -> ObservedStep:
        """A random step that leaves the global random streams as they were."""
        streams = GeneratorSnapshot(SimpleNamespace())
        try:
            return self.step(self.random_actions())
        finally:
            streams.restore()


class TensorUnderTest(ProtocolUnderTest):
    """A TensorEnv under test. As in a run, every seeded reset starts from the same random streams and attributes."""

    fixes = ProtocolUnderTest.fixes | {
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

    def __init__(self, env: TensorEnv, report: CheckReport, steps: int, seed: int) -> None:
        in_place = sorted(env.try_methods()) if env.pure else []
        super().__init__(env, report, steps, seed)
        self.snapshot = env.snapshot()
        for name in in_place:
            message = f"{name} writes into a tensor that it is given, or returns the same tensor each time"
            fix = "fine: it is called on copies; return a new tensor to save that time"
            self.add("note", f"{name} in place", message, fix)
        self.note_mask(find_action_mask(env))

    def reset(self, seed: int | None = None) -> Array:
        if seed is not None:
            self.env.load_state_dict(self.snapshot)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        return super().reset(seed)
