"""Step a tensor environment with few rows on the CPU by replaying a recording of its methods with NumPy, which is faster.

The results are bit for bit those of the methods: the recording is compared with them in a few states before its first use, and
in one state whenever an attribute may have changed that the methods read (see `TensorEnv`). Methods that cannot be recorded,
change the environment or draw random numbers run on tensors, as on a device.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..recording import RecordedFunction
from .random_streams import GeneratorSnapshot, streams_lock
from .step_arrays import Array, StepArrays
from .validate import TensorEnvLike, bitwise_equal, check_choices, check_masks

MAX_NUMPY_ROWS = 1024  # with more rows, torch is faster
PACKAGE = __name__.partition(".")[0] + "."
TEST_SPREADS = (0.0, 0.01, 0.3, 3.0)  # distances from the current state at which a recording or a kernel is compared


class RecordedStep:
    """The recorded step of one environment, over views of its state."""

    def __init__(self, env: TensorEnvLike, action: Tensor, noise: Tensor, compiled: bool = False) -> None:
        self.env, self.compiled = env, compiled
        self.verified = False  # whether the methods are known to do what was recorded
        self.with_memory: RecordedStep | None = (
            None  # the same over rows with the state of a memory; None if impossible
        )
        self.memory_rows: object = None  # those for which `with_memory` was made
        self.seen: list[object] | None = None  # what the methods could read in classes when they were compared
        kept = (env.clock, env._running_return, env._finished)  # written at other moments than in a step over tensors
        over = torch.zeros(env.num_envs, dtype=torch.bool)
        record = partial(RecordedFunction, exact=True, banned=kept, compiled=compiled)
        self.transition = record(self.advanced, (env.state, action))
        self.restart = record(self.restarted, (env.state, over, noise, action))
        self.sums = np.empty(env.num_envs, np.float32)

    def advanced(self, state: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """The next states, and the rewards, terminations and observations that belong to them."""
        env = self.env
        following = env._apply("advance", state, action)
        reward = env._apply("reward", state, action, following)
        return following, reward, env._apply("terminated", following), env._show(following)

    def restarted(self, state: Tensor, done: Tensor, noise: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """The states with new episodes where `done`, and their observations. `action` led to `state`."""
        kept = torch.where(done.unsqueeze(-1), self.env._apply("initial", noise), state)
        return kept, self.env._show(kept)

    def __reduce__(self) -> tuple[Any, ...]:
        """None: the copy of an environment makes its own recording."""
        return type(None), ()

    def __call__(self, action: Array, noise: Array) -> StepArrays:
        env, limit = self.env, self.env.max_episode_steps
        state, clock, running_return = env.state.numpy(), env.clock.numpy(), env._running_return.numpy()
        kept, reward, terminated, final_obs = self.transition(state, action)
        done = terminated if limit is None else terminated | (clock >= limit - 1)
        ended, obs = done.nonzero()[0], final_obs
        if len(ended):
            kept, obs = self.restart(kept, done, noise, action)
            check_choices(env, obs)
        check_masks(env, obs)
        check_choices(env, final_obs)  # the step over tensors, which follows any error, reports it
        # nothing has been changed so far
        clock += 1
        running_return += reward
        np.copyto(state, kept)
        if not len(ended):
            return StepArrays(obs, reward, terminated, done & ~terminated, ended, final_obs[ended])
        episodes, returns, lengths = env._finished.numpy()
        episodes += done
        returns += np.multiply(running_return, done, self.sums)
        lengths += np.multiply(clock, done, self.sums)
        np.copyto(running_return, 0, where=done)
        np.copyto(clock, 0, where=done)
        return StepArrays(obs, reward, terminated, done & ~terminated, ended, final_obs[ended])

    @np.errstate(all="ignore")
    def verify(self, state: Tensor, action: Tensor, noise: Tensor) -> bool:
        """Compare the recordings with the methods in one state; sets and returns `verified`."""
        if self.with_memory is not None:
            self.with_memory.verified = False  # as something may have changed
        all_over = torch.ones(self.env.num_envs, dtype=torch.bool)
        expected = [*self.advanced(state.clone(), action), *self.restarted(state.clone(), all_over, noise, action)]
        replayed = (
            *self.transition(state.numpy(), action.numpy()),
            *self.restart(state.numpy(), all_over.numpy(), noise.numpy(), action.numpy()),
        )
        self.verified, self.seen = all(map(same_bits, expected, replayed)), class_values(self.env)
        return self.verified

    def unverify_if_changed(self) -> None:
        """Compare with the methods again before the next use, unless they read what they read before."""
        now = class_values(self.env)
        same = now is not None and self.seen is not None and len(now) == len(self.seen)
        if not (same and all(map(operator.is_, now or (), self.seen or ()))):
            self.verified = False


def class_values(env: object) -> list[object] | None:
    """Return all attributes of the environment's classes and all variables of their modules. None if methods may read anything
    else: if a class is not of this package, or the environment itself has a function or a container."""
    classes = type(env).__mro__[:-1]
    own = [value for name, value in vars(env).items() if name != "_recorded_step"]
    if any(callable(x) or isinstance(x, (list, dict, set)) for x in own) or not all(
        x.__module__.startswith(PACKAGE) for x in classes
    ):
        return None
    modules = [vars(sys.modules[x.__module__]) for x in classes]
    return [value for names in (*map(vars, classes), *modules) for value in names.values()]


def frozen(x: object) -> object:
    """A value to compare with a later one: content of containers and arrays, layout of tensors, identity of others."""
    if isinstance(x, Tensor):
        return Tensor, x.shape, x.dtype, x.stride(), x.device
    if isinstance(x, np.ndarray):
        return np.ndarray, x.shape, x.dtype.str, x.tobytes()
    if isinstance(x, (list, tuple, dict)):
        parts = x.items() if isinstance(x, dict) else x
        return type(x), tuple(map(frozen, parts))
    return x if isinstance(x, (bool, int, float, str)) else (id(x), x)


def verified_step(env: Any, action: Tensor, noise: Tensor, compiled: bool = False) -> RecordedStep | None:
    """The recorded step of a `TensorEnv`, after it has been compared with the methods; None if there is none."""
    step: RecordedStep | None = env._recorded_step
    if not env._uses_arrays:
        return None
    if step is None or compiled > step.compiled or not (step.verified or step.verify(env.state, action, noise)):
        compiled = compiled or (step is not None and step.compiled)
        env._recorded_step = step = record_step(env, action, noise, compiled)
        env._uses_arrays = step is not None
    return step


def compiled_step(env: Any, action: Tensor, noise: Tensor) -> RecordedStep | None:
    """The recorded step as C code, for one rollout; None if there is none or if a subclass of `TensorEnv` overrides step."""
    try:
        return None if env.in_arrays() is None else verified_step(env, action, noise, compiled=True)
    except Exception:  # nothing has been changed, and the step over tensors will raise it again
        env._uses_arrays = False
        return None


def record_step(env: TensorEnvLike, action: Tensor, noise: Tensor, compiled: bool = False) -> RecordedStep | None:
    """A recording of an environment's step; None unless it gives the same bits as the methods, in this state and a few
    around it, and the methods change nothing. With `compiled` it is C code, unless only NumPy gives the same bits."""
    found = tried_step(env, action, noise, compiled)
    if compiled and found is None and (found := tried_step(env, action, noise, False)) is not None:
        found.compiled = True  # has been tried
    return found


def tried_step(
    env: TensorEnvLike, action: Tensor, noise: Tensor, compiled: bool, make: Callable[..., RecordedStep] = RecordedStep
) -> RecordedStep | None:
    """A recording made by `make`; None unless it gives the same bits as the methods, and they change nothing."""
    with streams_lock:
        attributes = dict(vars(env))
        values: dict[str, Any] = {name: value.copy() for name, value in attributes.items() if is_numbers(value)}
        values |= {name: value.clone() for name, value in attributes.items() if isinstance(value, Tensor)}
        generator, randomness = torch.Generator().manual_seed(0), GeneratorSnapshot(env)
        try:
            step, state = make(env, action, noise, compiled), values["state"]
            for spread in TEST_SPREADS:
                around = state + spread * torch.randn(state.shape, generator=generator)
                drawn = noise if spread == 0 else torch.rand(noise.shape, generator=generator)
                if not step.verify(around, action, drawn):
                    return None
        except Exception:  # what cannot be recorded; a mistake is raised again by the step over tensors
            return None
        finally:
            unchanged, undrawn = restore_attributes(env, attributes, values), randomness.restore()
        return step if unchanged and undrawn else None


def same_bits(a: Tensor, b: Array) -> bool:
    """Whether a tensor and an array have the same bits; nan equals nan."""
    other = torch.from_numpy(b)
    return a.dtype == other.dtype and torch.equal(a.nan_to_num(), other.nan_to_num())


def is_numbers(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def restore_attributes(env: object, attributes: dict[str, Any], values: dict[str, Any]) -> bool:
    """Undo changes of an environment by its methods, and return whether there were none."""
    now = vars(env)
    unchanged = now.keys() == attributes.keys() and all(now[name] is value for name, value in attributes.items())
    now.clear()
    now.update(attributes)
    for name, value in values.items():
        unchanged = unchanged and bitwise_equal(torch.as_tensor(attributes[name]), torch.as_tensor(value))
        attributes[name][...] = value
    return unchanged
