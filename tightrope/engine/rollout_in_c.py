"""A whole rollout as one C function: the compiled recordings of a policy and of a tensor environment, step after step. Where
another engine steps the environments, a C function for each action."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..envs.recorded_step import RecordedStep, compiled_step
from ..envs.tensor import TensorEnv
from ..envs.with_memory import EnvWithMemory, without_memory
from ..recording import Array, NotCompiled, RecordedFunction
from ..recording.compiler import compiled
from ..types import Discrete, Env, MultiDiscrete, Rollout
from .distributed import world
from .noise import Noise
from .rollout_policy import RecordedPolicy, RolloutPolicy

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

STEPS_AT_ONCE = 256  # between marks of activity and a look at signals
Address = ctypes.c_void_p


class Piece(ctypes.Structure):
    """A C function and its table of addresses."""

    _fields_ = [("run", Address), ("table", Address)]


class Copying(ctypes.Structure):
    """What is copied in a step."""

    _fields_ = [("source", Address), ("target", Address), ("size", ctypes.c_int64)]


PARTS = (
    "obs", "noise", "learned", "log_prob", "value", "given", "state", "advanced", "shown", "reward", "terminated", "over",
    "restarted", "reset", "led", "fresh", "begun",
)  # fmt: skip
WRITTEN = ("obs", "action", "log_prob", "value", "reward", "terminated", "truncated", "final_obs")  # of a rollout
ARRAYS = (
    "final_obs", "truncated", "last", "clock", "running_return", "episodes", "returns", "lengths", "done", "dead",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """The struct `rollout` of rollout.c."""

    _fields_ = [
        *((name, Piece) for name in ("sample", "advance", "restart")),
        *((name, Copying) for name in PARTS),
        *((name, Address) for name in ARRAYS),
        *((name, ctypes.c_int64) for name in ("rows", "limit", "deaths")),
    ]


@cache
def library() -> ctypes.CDLL:
    """Return rollout.c, compiled. Raises NotCompiled."""
    found = compiled(Path(__file__).with_name("rollout.c").read_text(), exact=True)
    found.collect.restype, found.collect.argtypes = ctypes.c_int64, [Address, *[ctypes.c_int64] * 3]
    found.act.restype, found.act.argtypes = None, [Address, ctypes.c_int64]
    return found


def collector() -> CFuncPtr:
    """Return the compiled function that takes the steps of a rollout."""
    found: CFuncPtr = library().collect
    return found


class Own(NamedTuple):
    """What the C function writes besides the rollout and the environments."""

    done: Array  # environments whose episode ends in this step
    dead: Array  # environments that have terminated
    last: Tensor  # the observation after the last step


class Prepared(NamedTuple):
    """The arguments of the C function, which serve for every rollout into the same memory."""

    key: object
    arguments: Arguments
    own: Own
    kept: object  # what the addresses belong to


class Ineligible(Exception):
    """This rollout needs Python between its steps."""


def piece(recording: RecordedFunction) -> Piece:
    """Return a recording that is one C function."""
    function = recording.function
    if function is None:
        raise Ineligible
    return Piece(ctypes.cast(function.function, Address).value, ctypes.addressof(function.table))


def copying(source: Array | None, target: Array | None, like: Array | None = None) -> Copying:
    """Return a copy. `like` is the array of one step, if `source` or `target` has all steps."""
    if target is None:
        return Copying(None, None, 0)
    one = target if like is None else like
    for x in (source, target):
        if x is not None and (x.dtype != one.dtype or not x.flags.c_contiguous or x.nbytes % max(one.nbytes, 1)):
            raise Ineligible
    if source is not None and like is None and source.nbytes != target.nbytes:
        raise Ineligible
    return Copying(None if source is None else source.ctypes.data, target.ctypes.data, one.nbytes)


def collect_in_c(
    env: Env, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None
) -> tuple[Tensor, int] | None:
    """Fill the rollout, or return None, having changed nothing, if a step needs more than C functions. Returns the observation
    after the last step and the number of steps taken."""
    inner = without_memory(env)
    if not isinstance(inner, TensorEnv) or not isinstance(actor, RecordedPolicy) or actor.samples.function is None:
        return None
    checked = inner._masked or isinstance(inner._seen or inner.observation, (Discrete, MultiDiscrete))
    if checked or (dead_fraction is not None and world().is_distributed):
        return None
    _, given, *_ = actor.choose(obs.numpy(), noise.action[0].numpy())
    stepper = env.compiled_step if isinstance(env, EnvWithMemory) else partial(compiled_step, inner)
    step = stepper(torch.from_numpy(given), noise.reset[0])
    if step is None:
        return None
    deaths = 0 if dead_fraction is None else max(1, math.ceil(dead_fraction * len(obs)))
    key, known = addresses_of(inner, step, rollout), actor.in_c
    try:
        if not isinstance(known, Prepared) or known.key != key:
            own = Own(np.zeros(len(obs), bool), np.zeros(len(obs), bool), obs.clone())
            arguments = arguments_of(inner, step, actor, rollout, noise, deaths, own)
            actor.in_c = known = Prepared(key, arguments, own, (step, rollout, inner.state))
        own, arguments, run = known.own, known.arguments, collector()
    except (Ineligible, NotCompiled):
        return None
    draws = noise.action.contiguous(), noise.reset.contiguous()
    arguments.noise.source, arguments.reset.source = (x.data_ptr() for x in draws)
    arguments.limit, arguments.deaths = inner.max_episode_steps or 0, deaths
    own.dead.fill(False)
    steps = len(rollout.reward)
    rollout.obs[0] = obs
    for start in range(0, steps, STEPS_AT_ONCE):
        stop = min(start + STEPS_AT_ONCE, steps)
        taken = run(ctypes.byref(arguments), start, stop, steps)
        activity.mark()
        if deaths and own.dead.sum() >= deaths:
            return own.last.clone(), taken
    return own.last.clone(), steps


def act_in_c(actor: RolloutPolicy, rollout: Rollout, noise: Noise) -> Callable[[int], Array] | None:
    """Return a function of the step that writes an action to the rollout, and returns it for the environment, in an array that
    the next call overwrites. None if that is not one C function."""
    if not isinstance(actor, RecordedPolicy) or actor.samples.function is None:
        return None
    sample = actor.samples
    try:
        arguments, run = Arguments(sample=piece(sample)), library().act
        for name, part in zip(PARTS, copies_of_act(sample, rollout, noise), strict=False):
            setattr(arguments, name, part)
    except (Ineligible, NotCompiled):
        return None
    where, given = ctypes.byref(arguments), sample.results[1]

    def act(t: int) -> Array:
        run(where, t)
        return given

    return act


def copies_of_act(sample: RecordedFunction, rollout: Rollout, noise: Noise) -> list[Copying]:
    """Return what is copied when the policy acts: observations and noise to the recording; its actions, and with memory their
    log-probabilities and the values, to the rollout."""
    obs, draws = rollout.obs.numpy(), noise.action.numpy()
    learned, _, *evaluation = sample.results
    written = [x.numpy() for x in (rollout.action, rollout.log_prob, rollout.value)]
    results = [learned, *evaluation] if evaluation else [learned, None, None]
    return [
        copying(obs, sample.inputs[0], obs[0]),
        copying(draws, sample.inputs[1], draws[0]),
        *(copying(x, None if x is None else y, y[0]) for x, y in zip(results, written, strict=True)),
    ]


def addresses_of(env: TensorEnv, step: RecordedStep, rollout: Rollout) -> object:
    """Return the memory that arguments refer to."""
    written = (getattr(rollout, name) for name in WRITTEN)
    counts = (env.state, env.clock, env._running_return, env._finished)
    return id(step), len(rollout.reward), [x.data_ptr() for x in (*written, *counts)]


def arguments_of(
    env: TensorEnv, step: RecordedStep, actor: RecordedPolicy, rollout: Rollout, noise: Noise, deaths: int, own: Own
) -> Arguments:
    """Return the arguments of the C function. Raise Ineligible if arrays do not fit."""
    sample, advance, restart = actor.samples, step.transition, step.restart
    following, reward, terminated, shown = advance.results
    state = env.state.numpy()
    done, dead, last = own
    observed = rollout.obs.numpy()
    whole = rollout.reward.numpy(), rollout.terminated.numpy()
    parts = (
        *copies_of_act(sample, rollout, noise),
        copying(sample.results[1], advance.inputs[1]),
        copying(state, advance.inputs[0]),
        copying(following, state),
        copying(shown, observed, observed[0]),
        copying(reward, whole[0], whole[0][0]),
        copying(terminated, whole[1], whole[1][0]),
        copying(done, restart.inputs[1]),
        copying(following, restart.inputs[0]),
        copying(noise.reset.numpy(), restart.inputs[2], noise.reset[0].numpy()),
        copying(sample.results[1], restart.inputs[3]),
        copying(restart.results[0], state),
        copying(restart.results[1], last.numpy()),
    )
    arrays = (
        rollout.final_obs,
        rollout.truncated,
        last,
        env.clock,
        env._running_return,
        *env._finished,
        done,
        dead,
    )
    plain = [x if isinstance(x, np.ndarray) else x.numpy() for x in arrays]
    wanted = {0: observed.dtype, 1: bool, 3: np.int32, **dict.fromkeys(range(4, 8), np.float32)}
    fits = all(x.flags.c_contiguous for x in plain) and all(plain[i].dtype == kind for i, kind in wanted.items())
    if not fits or plain[0].shape != observed.shape or reward.dtype != np.float32 or terminated.dtype != bool:
        raise Ineligible
    return Arguments(
        *(piece(x) for x in (sample, advance, restart)),
        *parts,
        *(x.ctypes.data for x in plain),
        len(dead),
        env.max_episode_steps or 0,
        deaths,
    )
