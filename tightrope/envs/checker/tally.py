"""Random play, and what its numbers say of episodes, rewards, observations and speed."""

from __future__ import annotations

import math
import time

import numpy as np
import torch

from ...types import Box
from ..step_arrays import Array
from ..training_warnings import find_time_limit
from .report import Report
from .rows import Ours
from .single import Single
from .subject import Moment, Subject
from .values import entry, parts_of

PLAY_SECONDS = 2.0  # of random play; a slow environment is stopped here
ENOUGH = 100  # steps from which on numbers say something
GAMMA = 0.99  # of the returns whose size is judged
LARGE_REWARD, LARGE_RETURN, LARGE_ENTRY, WIDE = 100.0, 1e3, 1e3, 1e3
CLOCK_STEPS, ALL_ALIKE = 10, 3  # episodes of one length, at least so long and so many, look like a clock


class Tally:
    """Numbers of a random play."""

    def __init__(self, s: Subject) -> None:
        self.steps, self.stopped_early = 0, False
        self.rewards: list[Array] = []
        self.returns: list[Array] = []  # discounted, looking back
        self.lengths: list[int] = []  # of the episodes that ended
        self.by_termination: list[bool] = []
        self.running, self.total = np.zeros(s.num_envs), np.zeros(s.num_envs)
        self.length = np.zeros(s.num_envs, np.int64)
        parts = [] if s.observation is None else [part for _, part in parts_of(s.observation)]
        real = [np.full(math.prod(p.shape), isinstance(p, Box) and p.dtype != torch.uint8) for p in parts]
        self.real = np.flatnonzero(np.concatenate(real)) if real else np.zeros(0, int)  # entries that are real numbers
        self.count = 0  # of observations, whose sums are of what they differ from the first one
        self.first = self.low = self.high = self.sum = self.squares = np.zeros(len(self.real))

    def saw(self, rows: Array) -> None:
        """More observations."""
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
        """Of every entry."""
        return np.sqrt(np.maximum(self.squares / self.count - (self.sum / self.count) ** 2, 0.0))

    def add(self, moment: Moment, report: Report) -> None:
        real, done = moment.real, moment.done
        self.steps += int(real.sum())
        self.running = moment.reward + GAMMA * self.running
        self.rewards.append(moment.reward[real])
        self.returns.append(self.running[real])
        self.total += np.where(real, moment.reward, 0.0)
        self.length += real
        for row in np.flatnonzero(done):
            self.lengths.append(int(self.length[row]))
            self.by_termination.append(bool(moment.terminated[row]))
            counted = float(self.total[row]), float(self.length[row])
            said = moment.told.get(int(row), counted)
            if not np.allclose(said, counted, rtol=1e-3, atol=1e-3, equal_nan=True):
                message = f"info['episode'] says return and length {said}, counted are {counted}"
                fix = (
                    "wrap RecordEpisodeStatistics around all else (over a vector with DISABLED, Gymnasium's miscounts)"
                )
                report.add("warning", "statistics", message, fix)
        self.running[done], self.total[done], self.length[done] = 0.0, 0.0, 0
        self.saw(moment.final_obs[real])


def play(s: Subject) -> None:
    """Random play, and what its numbers say."""
    tally, until = Tally(s), time.perf_counter() + PLAY_SECONDS
    if isinstance(s, Ours):
        s.call("finished_episodes", s.env.finished_episodes)  # forgets what came before
    try:
        tally.saw(s.start(s.seed))
        while tally.steps < s.steps and not tally.stopped_early:
            tally.add(s.act(s.choose()), s.report)
            tally.stopped_early = time.perf_counter() > until
    finally:  # what there is, is judged even if the environment broke
        if tally.steps:
            judge_episodes(s, tally)
            judge_rewards(s, tally)
            judge_observations(s, tally)
            judge_speed(s, tally)
    if isinstance(s, Ours) and not s.adapts:
        judge_count(s, tally)


def judge_episodes(s: Subject, tally: Tally) -> None:
    lengths = tally.lengths
    s.report.facts |= {"steps": tally.steps, "stopped_early": tally.stopped_early, "episodes": len(lengths)}
    if not lengths:
        if tally.steps >= ENOUGH and find_time_limit(s.env) is None:
            message = f"no episode ended in {tally.steps:,} random steps, and no time limit is known"
            s.warning("endless", message, s.fixes["endless"])
        return
    shortest, longest = min(lengths), max(lengths)
    by_clock = len(lengths) >= ALL_ALIKE and shortest == longest >= CLOCK_STEPS
    s.report.facts |= {"episode_length": float(np.mean(lengths)), "shortest": shortest, "longest": longest}
    if by_clock and all(tally.by_termination):
        message = f"all {len(lengths)} episodes end by termination after exactly {longest} steps"
        s.warning("clock", message, "if that is a clock, return it as truncated, or leave it to max_episode_steps")
    restarts = s.restarts_at_once and not s.report.has("autoreset")
    if restarts and s.unmoved == s.ends >= ALL_ALIKE and s.varied:
        message = f"after each of {s.ends} ends, the next episode begins with the last one's final observation"
        s.error("restart", message, "start anew in reset, and return what is seen then")


def judge_rewards(s: Subject, tally: Tally) -> None:
    reward, returns = np.concatenate(tally.rewards), np.concatenate(tally.returns)
    mean, std, spread = float(reward.mean()), float(reward.std()), float(returns.std())
    low, high = float(reward.min()), float(reward.max())
    s.report.facts |= {"reward_mean": mean, "reward_std": std, "reward_min": low, "reward_max": high}
    if low == high and len(reward) >= ENOUGH:
        if low == 0:
            message = f"no reward in {len(reward):,} random steps: what random play does not find is not learned"
            s.warning(
                "no reward", message, "pay for progress, start nearer to the goal, or be sure that longer play finds it"
            )
        else:
            message = f"every reward is {low:g}: only the length of an episode tells good from bad"
            s.note("constant reward", message, "fine where the task is to last or to end soon; otherwise shape it")
    size = max(abs(mean) / LARGE_REWARD, std / LARGE_REWARD, spread / LARGE_RETURN)
    if 1 < size < math.inf:
        message = f"rewards have mean {mean:.4g} and std {std:.4g}, discounted returns std {spread:.4g}"
        divisor = 10 ** math.ceil(math.log10(size * 10))
        s.warning("reward scale", message, f"set norm_reward, or divide rewards by {divisor}")


def judge_observations(s: Subject, tally: Tally) -> None:
    """The size of what the network sees as real numbers; pixels and one-hot codes have theirs already."""
    if tally.count < ENOUGH or s.observation is None:
        return
    names = [entry(s.observation, int(i)) for i in tally.real]
    still, moving = np.flatnonzero(tally.low == tally.high), np.flatnonzero(tally.low < tally.high)
    if len(still):
        some = ", ".join(names[i] for i in still[:5]) + (", ..." if len(still) > 5 else "")
        message = f"{len(still)} of {len(names)} numbers never change in random play: {some}"
        s.note("constant entries", message, "leave out what can never change")
    largest, std = np.maximum(-tally.low, tally.high)[moving], tally.std[moving]
    if not len(moving) or not np.isfinite(std).all():
        return
    top, wide, narrow = (names[moving[i]] for i in (largest.argmax(), std.argmax(), std.argmin()))
    if largest.max() > LARGE_ENTRY:
        message = f"{top} reaches {largest.max():.4g} in magnitude"
        s.warning("observation scale", message, "set norm_obs, or divide by the usual size")
    elif std.max() > WIDE * std.min():
        message = f"{wide} has std {std.max():.3g}, {narrow} {std.min():.3g}"
        s.warning("observation scale", message, "set norm_obs, or bring entries to a similar size")


def judge_speed(s: Subject, tally: Tally) -> None:
    step, reset = sum(s.seconds["step"]), sum(s.seconds["reset"])
    s.report.facts["steps_per_second"] = tally.steps / (step + reset)
    if tally.lengths and isinstance(s, Single):  # others reset within a step
        s.report.facts["reset_share"] = reset / (step + reset)
        ratio, length = s.cost("reset") / s.cost("step"), float(np.mean(tally.lengths))
        share = ratio / (ratio + length)
        if ratio > 20 and share > 0.5:
            message = f"a reset costs as much as {ratio:.0f} steps, episodes last {length:.0f}: resets take {share:.0%}"
            s.note("reset cost", message, "make once what does not change between episodes")


def judge_count(s: Subject, tally: Tally) -> None:
    total = float(np.concatenate(tally.rewards).sum() - tally.total.sum())
    counted = [float(len(tally.lengths)), total, float(sum(tally.lengths))]
    said = s.call("finished_episodes", lambda: s.env.finished_episodes().tolist())
    known = np.isfinite(counted)  # a reward that is no number has been said
    if len(said) != 3 or not np.allclose(np.array(said)[known], np.array(counted)[known], rtol=1e-3, atol=1e-2):
        message = f"finished_episodes() says {said} for episodes, returns and lengths, counted are {counted}"
        s.error("statistics", message, "add up return and length of each row, and forget both where done")
