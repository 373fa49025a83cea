"""Random play, and checks of its episodes, rewards, observations and speed; then actions that the masks forbid."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import cast

import numpy as np
import torch

from ...errors import plural
from ...models.hybrid_spec import flat_parts
from ...types import Box, Composite
from ..step_arrays import Array
from ..training_warnings import find_time_limit
from .env_under_test import TRACE_SECONDS, EnvUnderTest, ObservedStep
from .gym_under_test import SingleUnderTest
from .protocol_under_test import ProtocolUnderTest
from .values import same_numbers, scalar_label

PLAY_SECONDS = 2.0  # after which a slow environment is stopped
ENOUGH = 100  # steps for statistics to mean something
GAMMA = 0.99  # of the returns whose size is checked
LARGE_REWARD, LARGE_RETURN, LARGE_ENTRY, WIDE = 100.0, 1e3, 1e3, 1e3
CLOCK_STEPS, ALL_ALIKE = 10, 3  # so many episodes of one length, at least so long, look like a clock
TRIES, DRAWS = 40, 50  # forbidden actions to play; draws to find one
FEWEST = 10  # actions of each kind before masks are called inverted
ENDINGS = ("raise an error", "end the episode", "change nothing", "go on")


class PlayStatistics:
    """Numbers of a random play."""

    def __init__(self, env: EnvUnderTest) -> None:
        self.steps, self.stopped_early = 0, False
        self.rewards: list[Array] = []
        self.returns: list[Array] = []  # discounted sums of past rewards
        self.lengths: list[int] = []  # of the episodes that ended
        self.by_termination: list[bool] = []
        self.running, self.total = np.zeros(env.num_envs), np.zeros(env.num_envs)
        self.length = np.zeros(env.num_envs, np.int64)
        parts = [] if env.observation is None else [part for _, part in flat_parts(env.observation)]
        real = [np.full(math.prod(p.shape), isinstance(p, Box) and p.dtype != torch.uint8) for p in parts]
        entries = np.concatenate(real) if real else np.zeros(0, bool)
        if env.mask_columns is not None:
            entries[env.mask_columns] = False
        self.real = np.flatnonzero(entries)  # entries that are real numbers
        self.count = 0  # observations; sums are of their differences from the first
        self.first = self.low = self.high = self.sum = self.squares = np.zeros(len(self.real))

    def add_observations(self, rows: Array) -> None:
        if not rows.size:
            return
        x = rows[:, self.real].astype(np.float64)
        if self.count == 0:
            self.first = self.low = self.high = x[0]
        self.low, self.high = np.minimum(self.low, x.min(0)), np.maximum(self.high, x.max(0))
        offset = x - self.first
        self.sum, self.squares = self.sum + offset.sum(0), self.squares + (offset**2).sum(0)
        self.count += len(x)

    @property
    def std(self) -> Array:
        """The standard deviation of every entry."""
        return np.sqrt(np.maximum(self.squares / self.count - (self.sum / self.count) ** 2, 0.0))

    def add(self, step: ObservedStep) -> None:
        valid, done = step.valid, step.done
        self.steps += int(valid.sum())
        self.running = step.reward + GAMMA * self.running
        self.rewards.append(step.reward[valid])
        self.returns.append(self.running[valid])
        self.total += np.where(valid, step.reward, 0.0)
        self.length += valid
        self.lengths += self.length[done].tolist()
        self.by_termination += step.terminated[done].tolist()
        self.running[done], self.total[done], self.length[done] = 0.0, 0.0, 0
        self.add_observations(step.final_obs[valid])


def play_at_random(env: EnvUnderTest) -> None:
    """Play at random, then check episodes, rewards, observations, speed and counts."""
    play, until = PlayStatistics(env), time.perf_counter() + PLAY_SECONDS
    if isinstance(env, ProtocolUnderTest):
        env.call("finished_episodes", env.env.finished_episodes)  # forgets earlier episodes
    try:
        play.add_observations(env.reset(env.seed))
        while play.steps < env.steps and not play.stopped_early:
            play.add(env.step(env.random_actions()))
            play.stopped_early = time.perf_counter() > until
    finally:  # also after an exception, with the steps so far
        if play.steps:
            check_episode_lengths(env, play)
            check_reward_scale(env, play)
            check_observations(env, play)
            check_speed(env, play)
    if isinstance(env, ProtocolUnderTest) and not env.is_adapter:
        check_counts(env, play)


def check_episode_lengths(env: EnvUnderTest, play: PlayStatistics) -> None:
    lengths = play.lengths
    env.report.facts |= {"steps": play.steps, "stopped_early": play.stopped_early, "episodes": len(lengths)}
    if not lengths:
        if play.steps >= ENOUGH and find_time_limit(env.env) is None:
            message = f"no episode ended in {play.steps:,} random steps, and no time limit is known"
            env.add("warning", "endless", message)
        return
    shortest, longest = min(lengths), max(lengths)
    by_clock = len(lengths) >= ALL_ALIKE and shortest == longest >= CLOCK_STEPS
    env.report.facts |= {"episode_length": float(np.mean(lengths)), "shortest": shortest, "longest": longest}
    if by_clock and all(play.by_termination):
        message = f"all {len(lengths)} episodes end by termination after exactly {longest} steps"
        env.add("warning", "clock", message)
    restarts = env.restarts_at_once and not env.report.has("autoreset")
    if restarts and env.unchanged_ends == env.ends >= ALL_ALIKE and env.varied:
        message = f"after each of {env.ends} ends, the next episode begins with the last one's final observation"
        env.error("restart", message)


def check_reward_scale(env: EnvUnderTest, play: PlayStatistics) -> None:
    """Report rewards that are all equal, and rewards or returns too large to learn from without scaling."""
    reward, returns = np.concatenate(play.rewards), np.concatenate(play.returns)
    mean, std, spread = float(reward.mean()), float(reward.std()), float(returns.std())
    low, high = float(reward.min()), float(reward.max())
    env.report.facts |= {"reward_mean": mean, "reward_std": std, "reward_min": low, "reward_max": high}
    if low == high and len(reward) >= ENOUGH:
        if low == 0:
            message = f"no reward in {len(reward):,} random steps: what random play does not find is not learned"
            env.add("warning", "no reward", message)
        else:
            message = f"every reward is {low:g}: only the length of an episode tells good from bad"
            env.add("note", "constant reward", message)
    size = max(abs(mean) / LARGE_REWARD, std / LARGE_REWARD, spread / LARGE_RETURN)
    if 1 < size < math.inf:
        message = f"rewards have mean {mean:.4g} and std {std:.4g}, discounted returns std {spread:.4g}"
        divisor = 10 ** math.ceil(math.log10(size * 10))
        env.add("warning", "reward scale", message, f"set norm_reward, or divide rewards by {divisor}")


def check_observations(env: EnvUnderTest, play: PlayStatistics) -> None:
    """The size of entries that are real numbers; pixels and choices are scaled by the network."""
    if play.count < ENOUGH or env.observation is None:
        return
    names = [scalar_label(env.observation, int(i)) for i in play.real]
    still, moving = np.flatnonzero(play.low == play.high), np.flatnonzero(play.low < play.high)
    if len(still):
        some = ", ".join(names[i] for i in still[:5]) + (", ..." if len(still) > 5 else "")
        message = f"{len(still)} of {len(names)} numbers never change in random play: {some}"
        env.add("note", "constant entries", message)
    largest, std = np.maximum(-play.low, play.high)[moving], play.std[moving]
    if not len(moving) or not np.isfinite(std).all():
        return
    top, wide, narrow = (names[moving[i]] for i in (largest.argmax(), std.argmax(), std.argmin()))
    if largest.max() > LARGE_ENTRY:
        message = f"{top} reaches {largest.max():.4g} in magnitude"
        env.add("warning", "observation scale", message, "set norm_obs, or divide by the usual size")
    elif std.max() > WIDE * std.min():
        env.add("warning", "observation scale", f"{wide} has std {std.max():.3g}, {narrow} {std.min():.3g}")


def check_speed(env: EnvUnderTest, play: PlayStatistics) -> None:
    step, reset = sum(env.seconds["step"]), sum(env.seconds["reset"])
    env.report.facts["steps_per_second"] = play.steps / (step + reset)
    if play.lengths and isinstance(env, SingleUnderTest):  # others reset within a step
        env.report.facts["reset_share"] = reset / (step + reset)


def check_counts(env: EnvUnderTest, play: PlayStatistics) -> None:
    """finished_episodes() agrees with what was counted here."""
    total = float(np.concatenate(play.rewards).sum() - play.total.sum())
    counted = [float(len(play.lengths)), total, float(sum(play.lengths))]
    reported = env.call("finished_episodes", lambda: env.env.finished_episodes().tolist())
    finite = np.isfinite(counted)  # a reward that is not finite is reported already
    if len(reported) != 3 or not np.allclose(
        np.array(reported)[finite], np.array(counted)[finite], rtol=1e-3, atol=1e-2
    ):
        message = f"finished_episodes() says {reported} for episodes, returns and lengths, counted are {counted}"
        env.error("statistics", message)


# actions that the masks forbid -----------------------------------------------------------------------------------------


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
