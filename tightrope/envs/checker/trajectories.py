"""Checks that compare short trajectories: some must be equal, some must differ, and some must end."""

from __future__ import annotations

import time

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from ...errors import UsageError
from ...models.hybrid_spec import flat_parts
from ...types import Box, Discrete
from ..step_arrays import Array
from ..training_warnings import find_time_limit
from ..validate import draw_frames
from .env_under_test import TRACE_SECONDS, CheckReport, EnvUnderTest, Level
from .gym_under_test import SingleUnderTest, VectorUnderTest
from .protocol_under_test import ProtocolUnderTest, TensorUnderTest
from .random_play import WIDE
from .values import difference, global_streams, limits, own_streams, same_numbers

HELD_STEPS, HELD_SECONDS = 1000, 1.0  # of one action, and of all of them
MAX_HELD = 10  # actions of a Discrete space


def aliases_and_streams(env: EnvUnderTest) -> None:
    """Returned values must not change later, and global random streams must not be used."""
    env.returned = []
    is_tensor = isinstance(env, TensorUnderTest)
    for t in range(12):  # a buffer, or a few in turn, is written again by then
        before = global_streams()
        if t == 0:
            env.reset(env.seed)
        else:
            env.step(env.random_actions())
        moved = [name for name, state in global_streams().items() if state != before[name]]
        if moved and not (t == 0 and is_tensor):  # its reset seeds them
            message = f"{'step' if t else 'reset'}() moves the global random stream of {', '.join(moved)}"
            env.add("note" if is_tensor else "warning", "global stream", message)  # in a run they are the run's own
        for name, value, kept in env.returned:
            if not same_numbers(value, kept):
                level: Level = "warning" if isinstance(env, VectorUnderTest) else "error"  # our adapter copies in time
                env.add(level, "alias", f"{name} changes after it was returned, {env.when}")


def same_seed(env: EnvUnderTest) -> None:
    """The same seed and actions must give the same results, also after a reset in the middle of an episode."""
    actions = env.action_sequence()
    at_end = isinstance(env, SingleUnderTest) and env.ends > 0 and play_to_end(env)
    first = env.play_actions(env.seed, actions)
    at_end = at_end and play_to_end(env)
    differing = difference(first, env.play_actions(env.seed, actions))
    if differing:
        env.error("determinism", f"with seed {env.seed} and the same actions, {differing}")
    elif at_end and play_to_end(env):
        for action in actions[:7]:
            env.step(action)
        differing = difference(first, env.play_actions(env.seed, actions))
        if differing:
            message = f"after a reset in the middle of an episode, with the same seed and actions, {differing}"
            env.error("restart", message)


def play_to_end(env: EnvUnderTest) -> bool:
    """Play until an episode has ended and the next has just begun; False if that takes too long."""
    ends, until = env.ends, time.perf_counter() + 2 * TRACE_SECONDS
    while env.ends == ends and time.perf_counter() < until:
        env.step(env.random_actions())
    return env.ends > ends


def different_seeds(env: EnvUnderTest) -> None:
    """Different seeds, resets without a seed, and different rows must give different starts."""
    count = int(np.clip(2 * TRACE_SECONDS / env.cost("reset"), 3, 12))
    starts = [env.reset(env.seed + i) for i in range(count)]
    if all(same_numbers(start, starts[0]) for start in starts):
        return equal_starts(env)
    env.reset(env.seed)
    unseeded = [env.reset() for _ in range(count)]
    if all(same_numbers(start, unseeded[0]) for start in unseeded):
        message = f"{count} resets without a seed all start alike, though different seeds start differently"
        env.add("warning", "stream", message)
    if env.num_envs > 1 and all((start == start[0]).all() for start in starts):
        env.add("warning", "rows", f"all {env.num_envs} rows start alike under each of {count} seeds")
    return None


def equal_starts(env: EnvUnderTest) -> None:
    """Equal starts are fine in a task without chance; a warning where random numbers are drawn that no seed changes."""
    actions, before, traces = env.action_sequence(), [], []
    for seed in (env.seed, env.seed + 1):
        env.reset(seed)
        before.append(own_streams(env.env))
        env.step(actions[0])
        after = own_streams(env.env)
        traces.append(env.play_actions(seed, actions))
    if difference(*traces):
        return
    unseeded = any(one == other != later for one, other, later in zip(*before, after, strict=False))
    message = f"seeds {env.seed} and {env.seed + 1} give the same start and the same {len(actions)} steps"
    if unseeded:
        fix = "seed its generator with the seed of reset"
        env.add("warning", "seeds", f"{message}, though random numbers are drawn", fix)
    else:
        env.add("note", "seeds", message)


def held_actions(env: EnvUnderTest) -> None:
    """Without a time limit, repeating one action must not keep an episode going for ever."""
    until = time.perf_counter() + HELD_SECONDS
    for action in actions_to_hold(env) if find_time_limit(env.env) is None else ():
        env.reset(env.seed)
        going, steps = np.ones(env.num_envs, bool), 0
        while going.any() and steps < HELD_STEPS:
            if time.perf_counter() > until:
                return  # too slow to tell
            going &= ~env.step(action).done
            steps += 1
        if going.any():
            held = np.asarray(action)[np.flatnonzero(going)[0]].tolist()
            message = f"{steps:,} steps of action {held} end no episode, and no time limit is known"
            env.add("warning", "endless", message)
            return


def actions_to_hold(env: EnvUnderTest) -> list[Array]:
    """Actions for all rows: the first few of a Discrete space, otherwise the lowest, the highest and zero."""
    if isinstance(env.action, Discrete):
        return [np.full(env.num_envs, i) for i in range(min(env.action.n, MAX_HELD))]
    zero = []
    if isinstance(env.action, Box):
        low, high = limits(env.action)
        zero = [np.stack([np.clip(0.0, low, high).astype(np.float32)] * env.num_envs)]
    return [action for action in (env.extreme_actions(0), env.extreme_actions(1), *zero) if action is not None]


def extreme_actions(env: EnvUnderTest) -> None:
    """The environment must accept the lowest and highest actions; a note is added if the space is very wide."""
    boxes = [part for _, part in flat_parts(env.action) if isinstance(part, Box)] if env.action is not None else []
    if boxes:
        width = max((high - low).max() for low, high in map(limits, boxes))
        message = f"actions span {width:.4g}, which policies reach by scaling [-1, 1]"
        if np.isinf(width):
            message = "actions have no bounds: nothing keeps the policy from large ones"
        if width > WIDE:
            env.add("note", "action bounds", message)
    for action in (env.extreme_actions(0), env.extreme_actions(1)):
        if action is not None:
            env.reset(env.seed)
            env.step(action)


def actions_after_end(env: VectorUnderTest) -> None:
    """In next-step mode, the action of a row that is only reset changes nothing."""
    if env.mode is not AutoresetMode.NEXT_STEP:
        return
    actions, traces = env.action_sequence(more=env.report.facts.get("longest", 0)), []
    for side in (0, 1):
        env.idle_actions = env.extreme_actions(side)
        traces.append(env.play_actions(env.seed, actions))
    env.idle_actions = None
    differing = difference(*traces)
    if differing and not env.report.has("determinism"):
        env.autoreset_error(f"the action of the step after an end matters ({differing})")


def spawned_copy(env: ProtocolUnderTest) -> None:
    """A spawned environment has the same spaces and shares no state. Not for adapters: spawning one may take minutes."""
    if env.is_adapter:
        return
    spawned = env.call("spawn", lambda: env.env.spawn(2, env.seed + 1))
    child = type(env)(spawned, CheckReport("spawned"), env.steps, env.seed)
    form = child.num_envs, child.observation, child.action, child.env.device
    if form != (2, env.observation, env.action, env.env.device):
        message = f"spawn(2, seed) gives {child.num_envs} rows of {child.observation} on {child.env.device}"
        env.error("spawn", message)
    actions = env.action_sequence()
    alone = env.play_actions(env.seed, actions)
    child.reset(env.seed)
    differing = difference(alone, env.play_actions(env.seed, actions, between=child.isolated_step))
    if differing and not env.report.has("determinism"):
        env.error("spawn", f"while a spawned one is stepped too, {differing}")


def drawing(env: TensorUnderTest) -> None:
    """A draw method returns a frame for every row."""
    if env.env.drawable:
        obs = env.env.reset(seed=env.seed)
        try:
            draw_frames(env.env, obs, torch.as_tensor(env.random_actions(), device=obs.device))
        except UsageError as error:
            env.report.add_usage_error("warning", "draw", error)
