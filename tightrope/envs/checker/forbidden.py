"""What step makes of actions that the masks forbid. Each is tried in an episode of its own."""

from __future__ import annotations

import time
from collections import Counter
from typing import cast

import numpy as np

from ...errors import plural
from ...types import Composite
from .env_under_test import TRACE_SECONDS
from .gym_under_test import SingleUnderTest
from .values import same_numbers

TRIES, DRAWS = 40, 50  # forbidden actions to play; draws to find one
FEWEST = 10  # actions of each kind before masks are called inverted
ENDINGS = ("raise an error", "end the episode", "change nothing", "go on")


def forbidden_actions(env: SingleUnderTest) -> None:
    """Play forbidden actions, and compare them with allowed ones. Training never takes them: this finds masks that forbid what
    step knows to do. A step that refuses them, or does nothing, is as good as any other."""
    if env.mask_columns is None or (isinstance(env.action, Composite) and env.action.conditions):
        return
    found, paid, paid_allowed, moved = Counter[str](), list[float](), list[float](), list[bool]()
    example, until = "", time.perf_counter() + 2 * TRACE_SECONDS
    for trial in range(TRIES):
        if time.perf_counter() > until:
            break
        obs = env.reset(env.seed + trial)
        for _ in range(trial % 8):
            step = env.step(env.random_actions())
            moved.append(not same_numbers(step.final_obs, obs))
            paid_allowed.append(float(step.reward[0]))
            obs = step.obs
        action = forbidden_action(env)
        if action is None:
            continue
        sent = env.writer.member(env.writer.batch(action), 0)
        ending, reward = try_action(env, sent, obs)
        found[ending] += 1
        if ending == "go on":
            paid.append(reward)
            example = example or f"action {sent}, {env.when}"
        if ending == "raise an error" and not can_reset(env):
            break
    count, went_on = found.total(), found["go on"]
    env.report.facts["forbidden"] = ", ".join(
        f"{found[ending]} of {count} {ending}" for ending in ENDINGS if found[ending]
    )
    if min(went_on, len(moved)) >= FEWEST and 2 * went_on > count and not any(moved):
        message = (
            f"{went_on} of {count} forbidden actions change the observation, and none of {len(moved)} allowed ones"
        )
        env.add("warning", "inverted mask", message)
    elif went_on:
        message = (
            f"step() takes {plural(went_on, 'action')} of {count} that the masks forbid and goes on, such as {example}"
        )
        allowed = f", allowed ones {np.mean(paid_allowed):.3g}" if paid_allowed else ""
        env.add("note", "forbidden", f"{message}; they pay {np.mean(paid):.3g} a step{allowed}")


def forbidden_action(env: SingleUnderTest) -> np.ndarray | None:
    """A random action that the present mask forbids; None if none is found."""
    for _ in range(DRAWS):
        action = env.random_actions()
        if not same_numbers(env.allowed(action), action):
            return cast(np.ndarray, action)
    return None


def try_action(env: SingleUnderTest, sent: np.ndarray, obs: np.ndarray) -> tuple[str, float]:
    """(what step does with an action, one of ENDINGS; its reward)."""
    try:
        shown, reward, terminated, truncated, _ = env.env.step(sent)
        rows = env.reader.rows(env.batch(shown)).reshape(1, -1)
        if terminated or truncated:
            return "end the episode", float(reward)
        return "change nothing" if same_numbers(rows, obs) else "go on", float(reward)
    except Exception:
        return "raise an error", 0.0


def can_reset(env: SingleUnderTest) -> bool:
    """Whether a new episode can begin after an error, which nothing in Gymnasium promises."""
    try:
        env.env.reset()
    except Exception:
        return False
    return True
