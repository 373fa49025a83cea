"""Evaluation: fresh environments and random streams of their own, and one episode for each seed that was set beforehand.

An engine on the host plays a bounded number of episodes at once, in rounds: each round starts every environment anew from
the next seeds and ends when the last of its episodes does. Taking the first episodes to finish would favour short ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..engine import Mode, Runtime, apart, choose_threads, stream_seed, threads
from ..envs import TensorEnv
from ..envs.adapters.host import HostEnv
from ..errors import EnvError, UsageError, plural, raised
from ..models import ActorCritic
from ..types import Env, Settings
from .signals import Interrupts

MOST_STEPS = 100_000  # of an episode that nothing else ends
MOST_HOST_STEPS = 30_000  # the same, where an engine on the host takes them one by one
MOST_IN_A_GAME = 16  # rows of a tensor environment that may belong together, and come only all at once
LOOK_EVERY = 64  # steps between looks at whether all episodes are over, where looking costs a synchronisation

Tick = Callable[[int], None]  # called after every step with the number of episodes that are over


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of the episodes of an evaluation."""

    returns: list[float]
    """Return of each episode."""
    lengths: list[int]
    """Length of each episode, in steps."""
    unfinished: int = 0
    """How many of these episodes were cut off."""
    requested: int = 0
    """Episodes requested, if time was up before all of them were over; otherwise 0."""
    seconds: float = 0.0
    """The time limit that was reached, if one was."""
    favours_short: bool = False
    """Whether these are the episodes that ended first, without longer ones."""
    games_cut: int = 0
    """How many of them are games that were cut at their step limit."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        """Mean length of the episodes."""
        return float(np.mean(self.lengths))

    @property
    def representative(self) -> bool:
        """Whether the mean estimates the score: not where time was up before the first round was over."""
        return not self.requested or not (self.favours_short or self.unfinished == len(self.returns))

    def as_dict(self) -> Settings:
        """Everything, as `tightrope eval --json` prints it."""
        return {
            "mean": self.mean, "std": self.std, "min": min(self.returns), "max": max(self.returns),
            "episodes": len(self.returns), "mean_length": self.mean_length, "returns": self.returns,
            "lengths": self.lengths, "unfinished": self.unfinished, "requested": self.requested or len(self.returns),
            "favours_short": self.favours_short, "games_cut": self.games_cut,
        }  # fmt: skip

    @property
    def metrics(self) -> dict[str, float]:
        """What a row of metrics has of it."""
        row = {
            "eval/episodic_return": self.mean, "eval/episodic_length": self.mean_length, "eval/return_std": self.std,
            "eval/return_min": min(self.returns), "eval/return_max": max(self.returns), "eval/episodes": len(self.returns),
        }  # fmt: skip
        return row if self.representative else {**row, "eval/cut_off": 1.0}

    @property
    def note(self) -> str:
        """What to know about the score, in words; nothing where every episode ended by itself."""
        if self.requested:
            up = f"time was up after {self.seconds:g} s"
            if self.unfinished == len(self.returns):
                return f"{up} with none of {self.requested} episodes finished: these are the returns so far"
            only = ": the score is of those only"
            favoured = ", and short episodes are favoured" if self.favours_short else ""
            return f"{up} with {len(self.returns)} of {self.requested} episodes finished{only}{favoured}"
        if self.unfinished:
            return f"{self.unfinished} of them cut off after {max(self.lengths):,} steps, set max_episode_steps"
        if self.games_cut:
            circles = "play that repeats itself never ends, sampled actions may"
            return f"{self.games_cut} of them cut at the limit of {max(self.lengths):,} steps: {circles}"
        return ""

    def __str__(self) -> str:
        note = f"; {self.note}" if self.note else ""
        return (
            f"mean {self.mean:.2f}, std {self.std:.2f}, min {min(self.returns):.2f}, max {max(self.returns):.2f} "
            f"over {plural(len(self.returns), 'episode')} (mean length {self.mean_length:.1f}){note}"
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How episodes are played."""

    deterministic: bool = True  # the likeliest action; otherwise one drawn as in training
    num_envs: int = 16  # environments at once, of an engine on the host
    seconds: float | None = None  # after which the episodes under way are given up
    captured: bool = False  # a step is replayed as a CUDA graph where the environment allows it; changes no number
    in_itself: bool = False  # play in the environment itself, made for that, if it has as many rows as are needed

    def width(self, episodes: int, on_host: bool = True) -> int:
        """Episodes that are played at once."""
        rounds = -(-episodes // self.num_envs) if on_host else 1
        return -(-episodes // rounds)


@torch.no_grad()
def evaluate_policy(
    policy: ActorCritic, env: Env, episodes: int, seed: int, options: EvaluationOptions | None = None,
    interrupts: Interrupts | None = None, tick: Tick = lambda over: None,
) -> Evaluation:  # fmt: skip
    """Play `episodes` episodes in fresh copies of `env`. The first signal ends it with Interrupted."""
    options, refusal = options or EvaluationOptions(), None
    width = options.width(episodes, isinstance(env, HostEnv))
    with nullcontext(interrupts) if interrupts is not None else Interrupts() as signals:
        for rows in range(width, width + (MOST_IN_A_GAME if isinstance(env, TensorEnv) else 1)):
            playing = activity.during("playing evaluation episodes")
            with playing, threads(choose_threads(policy, width)), apart(seed, env.device):
                try:
                    return Rounds(policy, env, episodes, seed, options).play(rows, signals, tick)
                except RowsDoNotFit as error:  # several may be one game: play some more rows, which are not counted
                    refusal = refusal or error
    assert refusal is not None
    raise refusal


class RowsDoNotFit(UsageError):
    """A tensor environment cannot begin with so many rows."""


@contextmanager
def beginning(env: Env, rows: int) -> Iterator[None]:
    """What a tensor environment raises in here it raises because of its number of rows: all else has been tried before."""
    try:
        yield
    except Exception as error:
        if not isinstance(env, TensorEnv) or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        words = str(error) if isinstance(error, (UsageError, EnvError)) else raised(error)
        raise RowsDoNotFit(f"{type(env).__name__} cannot be evaluated with {rows} rows: {words}") from None


@dataclass
class Episodes:
    """One episode of each copy, as far as it has come. A step writes into these tensors and replaces none."""

    policy: ActorCritic
    env: Env
    obs: Tensor  # (N, ...)
    total: Tensor  # (N,)
    length: Tensor  # (N,)
    running: Tensor  # (N,) bool

    def results(self, rows: Tensor) -> tuple[list[float], list[int]]:
        return self.total[rows].tolist(), self.length[rows].tolist()


class Rounds:
    """All episodes of an evaluation, as many at a time as there are copies."""

    def __init__(self, policy: ActorCritic, env: Env, episodes: int, seed: int, options: EvaluationOptions) -> None:
        self.policy, self.env, self.episodes, self.seed, self.options = policy, env, episodes, seed, options
        mode: Mode = "graph" if options.captured and env.capturable else "eager"
        self.runtime = Runtime(mode, device=env.device, say=lambda line: None)  # training has said it already
        self.deadline = None if options.seconds is None else time.monotonic() + options.seconds
        self.noise = torch.Generator(env.device).manual_seed(seed)  # for episodes that follow, which nobody looks at
        self.sampling = None
        if not options.deterministic:
            self.sampling = torch.Generator(env.device).manual_seed(stream_seed(seed, "actions"))
        self.returns: list[float] = []  # of the rounds that are over
        self.lengths: list[int] = []
        self.unfinished = 0

    def play(self, rows: int, interrupts: Interrupts, tick: Tick) -> Evaluation:
        """The episodes in that many fresh copies, or in the environment itself where it is there for that."""
        given = self.env
        try:
            with interrupts.raised():  # in here alone: the streams of training are put back undisturbed
                if not (self.options.in_itself and isinstance(given, HostEnv) and given.num_envs == rows):
                    with beginning(given, rows):
                        self.env = given.spawn(rows, self.seed)
                with self.runtime.arithmetic():
                    return self._play_rounds(interrupts, tick)
        finally:
            if self.env is not given:
                self.env.close()

    def _play_rounds(self, interrupts: Interrupts, tick: Tick) -> Evaluation:
        while len(self.returns) < self.episodes:
            episodes = self._begin()
            rows = torch.arange(min(self.env.num_envs, self.episodes - len(self.returns)), device=self.env.device)
            if not self._play_round(episodes, interrupts, tick):
                return self._cut_off(episodes, rows)
            returns, lengths = episodes.results(rows)
            self.unfinished += int(episodes.running.sum())
            self.returns += returns
            self.lengths += lengths
        limit = self.env.game_limit if isinstance(self.env, HostEnv) else None
        games_cut = 0 if limit is None else sum(length >= limit for length in self.lengths)
        return Evaluation(self.returns, self.lengths, self.unfinished, games_cut=games_cut)

    def _begin(self) -> Episodes:
        """The next round. Episode i has the same seed however many are played at once."""
        env, count, first = self.env, self.env.num_envs, len(self.returns)
        if isinstance(env, HostEnv):
            env.seed(self.seed, first)
            obs = env.reset()
        else:
            with beginning(env, count):
                obs = env.reset(seed=self.seed)
        running = torch.arange(count, device=env.device) < self.episodes - first
        total, length = torch.zeros(count, device=env.device), torch.zeros_like(running, dtype=torch.int64)
        # observations are written to by every step, and a user's `observe` may return an expanded tensor
        return Episodes(self.policy, env, obs.contiguous(), total, length, running)

    def _play_round(self, episodes: Episodes, interrupts: Interrupts, tick: Tick) -> bool:
        """Until each episode is over; False if time was up before that."""
        env, look_every = self.env, LOOK_EVERY if self.runtime.on_device else 1
        most = MOST_STEPS if env.capturable else MOST_HOST_STEPS
        over, spare = len(self.returns), max(0, env.num_envs - (self.episodes - len(self.returns)))
        for t in range(most):
            if t % look_every == 0:
                running = int(episodes.running.sum())
                if not running:
                    return True
                over = len(self.returns) + env.num_envs - spare - running
            if t and self.deadline is not None and time.monotonic() >= self.deadline:
                return not episodes.running.any()
            noise = torch.rand(env.num_envs, env.noise_size, generator=self.noise, device=env.device)
            draw = None if self.sampling is None else self.policy.head.noise((env.num_envs,), self.sampling)
            with beginning(env, env.num_envs) if t == 0 else nullcontext():
                self.runtime.call("phase", play, episodes, noise, draw)
            activity.mark()
            interrupts.check()  # a signal whose exception got lost in code that swallows them
            tick(over)
        return True

    def _cut_off(self, episodes: Episodes, rows: Tensor) -> Evaluation:
        """What there is when time is up: rounds that are over, else the episodes that are, else those under way."""
        seconds = self.options.seconds or 0.0
        if self.returns:
            return Evaluation(self.returns, self.lengths, self.unfinished, self.episodes, seconds)
        finished = rows[~episodes.running[rows]]
        if len(finished):
            returns, lengths = episodes.results(finished)
            return Evaluation(returns, lengths, 0, self.episodes, seconds, favours_short=True)
        returns, lengths = episodes.results(rows)
        return Evaluation(returns, lengths, len(returns), self.episodes, seconds)


def play(episodes: Episodes, noise: Tensor, draw: Tensor | None) -> None:
    """One step of every copy: the likeliest action, or the one drawn with `draw`."""
    policy, env, running = episodes.policy, episodes.env, episodes.running
    distribution = policy.distribution(episodes.obs)
    action = distribution.mode() if draw is None else distribution.sample(draw)
    step = env.step(policy.head.to_env(action), noise)
    episodes.total += torch.where(running, step.reward, 0.0)
    episodes.length += running
    running &= ~(step.terminated | step.truncated)
    episodes.obs.copy_(step.obs)
