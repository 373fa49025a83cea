"""Trajectories that must be the same or must differ, and what else is tried out."""

from __future__ import annotations

import time

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from ...errors import UsageError, raised
from ...types import Box, Discrete
from ..step_arrays import Array
from ..training_warnings import find_time_limit
from ..validate import described, draw_frames
from .report import Report
from .rows import Ours, Tensors, Vector
from .single import Single
from .subject import TRACE_SECONDS, Subject
from .tally import WIDE
from .values import difference, global_streams, limits, own_streams, same

LASTING_STEPS, LASTING_SECONDS = 1000, 1.0  # of one action, and of all of them
MOST_HELD = 10  # actions of a Discrete space


def hands(s: Subject) -> None:
    """What is handed out stays as it is, and nothing moves but the environment's own random stream."""
    s.lent = []
    for t in range(12):  # a buffer, or a few in turn, is written again by then
        before = global_streams()
        if t == 0:
            s.start(s.seed)
        else:
            s.act(s.choose())
        moved = [name for name, state in global_streams().items() if state != before[name]]
        if moved and not (t == 0 and isinstance(s, Tensors)):  # whose start seeds them
            message = f"{'step' if t else 'reset'}() moves the global random stream of {', '.join(moved)}"
            say = s.note if isinstance(s, Tensors) else s.warning  # there it is the run's own stream
            say("global stream", message, s.fixes["global stream"])
        for name, thing, kept in s.lent:
            if not same(thing, kept):
                say = (
                    s.warning if isinstance(s, Vector) else s.error
                )  # what a vector returns, our adapter copies in time
                say("alias", f"{name} changes after it was returned, {s.when}", s.fixes["alias"])


def repeat(s: Subject) -> None:
    """The same seed and actions give the same, whether or not an episode is under way at the reset."""
    actions = s.actions()
    settled = isinstance(s, Single) and s.ends > 0 and finished(s)
    first = s.trace(s.seed, actions)
    settled = settled and finished(s)
    differing = difference(first, s.trace(s.seed, actions))
    if differing:
        s.error("determinism", f"with seed {s.seed} and the same actions, {differing}", s.fixes["determinism"])
    elif settled and finished(s):
        for action in actions[:7]:
            s.act(action)
        differing = difference(first, s.trace(s.seed, actions))
        if differing:
            message = f"after a reset in the middle of an episode, with the same seed and actions, {differing}"
            s.error("restart", message, "set all state anew in reset, whatever was under way")


def finished(s: Subject) -> bool:
    """Play on to the end of an episode, if there is time; the next has then just begun."""
    ends, until = s.ends, time.perf_counter() + 2 * TRACE_SECONDS
    while s.ends == ends and time.perf_counter() < until:
        s.act(s.choose())
    return s.ends > ends


def streams(s: Subject) -> None:
    """Different seeds differ; a reset without a seed goes on in the stream; rows have streams of their own."""
    tries = int(np.clip(2 * TRACE_SECONDS / s.cost("reset"), 3, 12))
    starts = [s.start(s.seed + i) for i in range(tries)]
    if all(same(start, starts[0]) for start in starts):
        return unmoved_by_seeds(s)
    s.start(s.seed)
    again = [s.start() for _ in range(tries)]
    if all(same(start, again[0]) for start in again):
        message = f"{tries} resets without a seed all start alike, though different seeds start differently"
        s.warning("stream", message, s.fixes["stream"])
    if s.num_envs > 1 and all((start == start[0]).all() for start in starts):
        message = f"all {s.num_envs} rows start alike under each of {tries} seeds"
        s.warning("rows", message, s.fixes["rows"])
    return None


def unmoved_by_seeds(s: Subject) -> None:
    """Legal for a task without chance; not where the environment draws numbers that no seed changes."""
    actions, starts, seen = s.actions(), [], []
    for seed in (s.seed, s.seed + 1):
        s.start(seed)
        starts.append(own_streams(s.env))
        s.act(actions[0])
        after = own_streams(s.env)
        seen.append(s.trace(seed, actions))
    if difference(*seen):
        return
    drawn = [at_start == other != later for at_start, other, later in zip(*starts, after, strict=False)]
    message = f"seeds {s.seed} and {s.seed + 1} give the same start and the same {len(actions)} steps"
    if any(drawn):
        s.warning("seeds", f"{message}, though random numbers are drawn", "seed its generator with the seed of reset")
    else:
        s.note("seeds", message, s.fixes["seeds"])


def lasting(s: Subject) -> None:
    """Where no time limit is known, an action that is held all the time must not keep an episode going for ever."""
    until = time.perf_counter() + LASTING_SECONDS
    for action in held_actions(s) if find_time_limit(s.env) is None else ():
        s.start(s.seed)
        going, steps = np.ones(s.num_envs, bool), 0
        while going.any() and steps < LASTING_STEPS:
            if time.perf_counter() > until:
                return  # too slow to say anything
            going &= ~s.act(action).done
            steps += 1
        if going.any():
            shown = np.asarray(action)[np.flatnonzero(going)[0]].tolist()
            message = f"{steps:,} steps of action {shown} end no episode, and no time limit is known"
            s.warning("endless", message, s.fixes["endless"])
            return


def held_actions(s: Subject) -> list[Array]:
    """Actions for all rows: the first few of a Discrete space, otherwise the lowest, the highest and none."""
    if isinstance(s.action, Discrete):
        return [np.full(s.num_envs, i) for i in range(min(s.action.n, MOST_HELD))]
    none = []
    if isinstance(s.action, Box):
        low, high = limits(s.action)
        none = [np.stack([np.clip(0.0, low, high).astype(np.float32)] * s.num_envs)]
    return [action for action in (s.extreme(0), s.extreme(1), *none) if action is not None]


def bounds(s: Subject) -> None:
    """Actions at both ends of the space are taken; and how wide it is."""
    if isinstance(s.action, Box):
        low, high = limits(s.action)
        width = (high - low).max()
        if width > WIDE:
            message = f"actions span {width:.4g}, which policies reach by scaling [-1, 1]"
            if np.isinf(width):
                message = "actions have no bounds: nothing keeps the policy from large ones"
            s.note("action bounds", message, "give the Box the bounds that make sense")
    for extreme in (s.extreme(0), s.extreme(1)):
        if extreme is not None:
            s.start(s.seed)
            s.act(extreme)


def idle_actions(s: Subject) -> None:
    """In next-step mode, the action of a row that is only reset changes nothing."""
    if not isinstance(s, Vector) or s.mode is not AutoresetMode.NEXT_STEP:
        return
    actions, seen = s.actions(more=s.report.facts.get("longest", 0)), []
    for side in (0, 1):
        s.idle = s.extreme(side)
        seen.append(s.trace(s.seed, actions))
    s.idle = None
    differing = difference(*seen)
    if differing and not s.report.has("determinism"):
        s.disagrees(f"the action of the step after an end matters ({differing})")


def spawned(s: Subject) -> None:
    """Another of the same kind has a life of its own."""
    if not isinstance(s, Ours) or s.adapts:  # to spawn an engine may take minutes
        return
    child = type(s)(s.call("spawn", lambda: s.env.spawn(2, s.seed + 1)), Report("spawned"), s.steps, s.seed)
    step_child = child.aside if isinstance(child, Tensors) else lambda: child.act(child.choose())
    if (child.num_envs, child.observation, child.action, child.env.device) != (
        2,
        s.observation,
        s.action,
        s.env.device,
    ):
        message = f"spawn(2, seed) gives {child.num_envs} rows of {child.observation} on {child.env.device}"
        s.error("spawn", message, "give as many rows as asked for, with the same spaces and device")
    actions = s.actions()
    alone = s.trace(s.seed, actions)
    child.start(s.seed)
    differing = difference(alone, s.trace(s.seed, actions, between=step_child))
    if differing and not s.report.has("determinism"):
        s.error("spawn", f"while a spawned one is stepped too, {differing}", "share no state and no generator with it")


def drawing(s: Subject) -> None:
    """A tensor environment that has a draw method draws every row."""
    if isinstance(s, Tensors) and s.env.drawable:
        obs = s.env.reset(seed=s.seed)
        try:
            draw_frames(s.env, obs, torch.as_tensor(s.choose(), device=obs.device))
        except UsageError as error:
            message, _, fix = str(error).rpartition(": ")
            s.warning("draw", message, fix)


def render(s: Subject) -> None:
    """An environment of one's own that says it draws, draws."""
    env = getattr(s.env, "unwrapped", s.env)
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or []
    if not isinstance(s, Single) or "rgb_array" not in modes or type(env).__module__.startswith("gymnasium."):
        return
    drawing = s.env
    try:
        if getattr(env, "render_mode", None) != "rgb_array":
            drawing = type(env)(render_mode="rgb_array")
        drawing.reset(seed=s.seed)
    except Exception:  # it takes other arguments, which nobody here knows, or it is broken, as is known by now
        return
    fix = "return a uint8 array (height, width, 3) in render_mode rgb_array, or take it out of metadata"
    try:
        frame = drawing.render()
        if not (isinstance(frame, np.ndarray) and frame.ndim == 3):
            s.note("render", f"metadata promises rgb_array, but render() returns {described(frame)}", fix)
    except Exception as error:
        s.note("render", f"render() raises {raised(error)}", fix)
    if drawing is not s.env:
        drawing.close()
