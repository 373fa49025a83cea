"""Evaluate a policy in fresh environments with separate random streams. The seed of each episode is fixed beforehand.

Environments outside torch play a limited number of episodes at once, in rounds: a round resets every environment with the next
seeds and ends when its last episode ends. Counting the first episodes to finish would favour short ones.
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
from ..engine import Mode, Runtime, choose_threads, isolated_rng, stream_seed, threads
from ..envs import TensorEnv
from ..envs.adapters.host import HostEnv
from ..envs.with_memory import with_memory
from ..errors import EnvError, UsageError, plural, raised
from ..models import ActorCritic
from ..types import Env, Settings
from .signals import Interrupts

MAX_EPISODE_STEPS = 100_000  # after which an endless episode is cut off
MAX_HOST_EPISODE_STEPS = 30_000  # the same limit for environments outside torch, whose steps are slower
MAX_ENVS_PER_GAME = 16  # rows of a tensor environment that may form one game, so that their number must be a multiple
LOOK_EVERY = 64  # steps between checks whether all episodes are over, where a check synchronises with the device

Tick = Callable[[int], None]  # called after every step with the number of episodes that are over


@dataclass(frozen=True)
class Evaluation:
    """The returns and lengths of the episodes of an evaluation."""

    returns: list[float]
    """Return of each episode."""
    lengths: list[int]
    """Length of each episode, in steps."""
    unfinished: int = 0
    """Number of episodes that were cut off before their end."""
    requested: int = 0
    """Number of episodes requested, if the time limit came before all of them ended; otherwise 0."""
    seconds: float = 0.0
    """The time limit in seconds, if it was reached."""
    favours_short: bool = False
    """Whether only the episodes that ended first are counted, which favours short ones."""
    games_cut: int = 0
    """Number of Atari games that were cut off at their step limit."""

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
        """Whether the mean estimates the score: not if the time limit came before the end of the first round."""
        return not self.requested or not (self.favours_short or self.unfinished == len(self.returns))

    def as_dict(self) -> Settings:
        """All results, as `tightrope eval --json` prints them."""
        return {
            "mean": self.mean, "std": self.std, "min": min(self.returns), "max": max(self.returns),
            "episodes": len(self.returns), "mean_length": self.mean_length, "returns": self.returns,
            "lengths": self.lengths, "unfinished": self.unfinished, "requested": self.requested or len(self.returns),
            "favours_short": self.favours_short, "games_cut": self.games_cut,
        }  # fmt: skip

    @property
    def metrics(self) -> dict[str, float]:
        """The columns of an evaluation in a row of metrics."""
        row = {
            "eval/episodic_return": self.mean, "eval/episodic_length": self.mean_length, "eval/return_std": self.std,
            "eval/return_min": min(self.returns), "eval/return_max": max(self.returns), "eval/episodes": len(self.returns),
        }  # fmt: skip
        return row if self.representative else {**row, "eval/cut_off": 1.0}

    @property
    def note(self) -> str:
        """A note on episodes that were cut off or not finished; empty if every episode ended by itself."""
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
            circles = "a deterministic policy may repeat itself forever, sampling actions may end the game"
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
    """Options of an evaluation."""

    deterministic: bool = True  # take the likeliest action; otherwise sample as in training
    num_envs: int = 16  # environments at once, for environments outside torch
    seconds: float | None = None  # time limit
    captured: bool = False  # replay a step as a CUDA graph where the environment allows it; results are the same
    in_itself: bool = False  # play in the given environment instead of a copy, if it has the number of rows needed

    def width(self, episodes: int, on_host: bool = True) -> int:
        """The number of episodes that are played at once."""
        rounds = -(-episodes // self.num_envs) if on_host else 1
        return -(-episodes // rounds)


@torch.no_grad()
def evaluate_policy(
    policy: ActorCritic, env: Env, episodes: int, seed: int, options: EvaluationOptions | None = None,
    interrupts: Interrupts | None = None, tick: Tick = lambda over: None,
) -> Evaluation:  # fmt: skip
    """Play `episodes` episodes in fresh copies of `env`. The first signal raises Interrupted."""
    options, refusal = options or EvaluationOptions(), None
    width = options.width(episodes, isinstance(env, HostEnv))
    with nullcontext(interrupts) if interrupts is not None else Interrupts() as signals:
        for rows in range(width, width + (MAX_ENVS_PER_GAME if isinstance(env, TensorEnv) else 1)):
            playing = activity.during("playing evaluation episodes")
            with playing, threads(choose_threads(policy, width)), isolated_rng(seed, env.device):
                try:
                    return Rounds(policy, env, episodes, seed, options).play(rows, signals, tick)
                except RowsDoNotFit as error:  # several rows may form one game: add rows that are not counted
                    refusal = refusal or error
    assert refusal is not None
    raise refusal


class RowsDoNotFit(UsageError):
    """A tensor environment cannot be reset with this number of rows."""


@contextmanager
def beginning(env: Env, rows: int) -> Iterator[None]:
    """Turn an error of a tensor environment into RowsDoNotFit: only the number of rows is new, training ran the rest."""
    try:
        yield
    except Exception as error:
        if not isinstance(env, TensorEnv) or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        words = str(error) if isinstance(error, (UsageError, EnvError)) else raised(error)
        raise RowsDoNotFit(f"{type(env).__name__} cannot be evaluated with {rows} rows: {words}") from None


@dataclass
class Episodes:
    """The state of one episode in each copy. Steps write into these tensors in place."""

    policy: ActorCritic
    env: Env
    obs: Tensor  # (N, ...)
    total: Tensor  # (N,)
    length: Tensor  # (N,)
    running: Tensor  # (N,) bool

    def results(self, rows: Tensor) -> tuple[list[float], list[int]]:
        return self.total[rows].tolist(), self.length[rows].tolist()


class Rounds:
    """Plays all episodes of an evaluation, in rounds of one episode for each copy of the environment."""

    def __init__(self, policy: ActorCritic, env: Env, episodes: int, seed: int, options: EvaluationOptions) -> None:
        self.policy, self.env, self.episodes, self.seed, self.options = policy, env, episodes, seed, options
        mode: Mode = "graph" if options.captured and env.capturable else "eager"
        self.runtime = Runtime(mode, device=env.device, say=lambda line: None)  # training has printed it already
        self.deadline = None if options.seconds is None else time.monotonic() + options.seconds
        self.noise = torch.Generator(env.device).manual_seed(seed)  # for episodes after the counted ones
        self.sampling = None
        if not options.deterministic:
            self.sampling = torch.Generator(env.device).manual_seed(stream_seed(seed, "actions"))
        self.returns: list[float] = []  # of finished rounds
        self.lengths: list[int] = []
        self.unfinished = 0

    def play(self, rows: int, interrupts: Interrupts, tick: Tick) -> Evaluation:
        """Play all episodes in an environment with `rows` fresh copies, or in the given one if the options allow it."""
        given = self.env
        try:
            with interrupts.raised():  # only inside: restoring the streams of training must not be interrupted
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
        """Start the next round. Episode i has the same seed for every number of copies."""
        env, count, first = self.env, self.env.num_envs, len(self.returns)
        shown = with_memory(env, self.policy.memory_rows)
        if isinstance(env, HostEnv):
            env.seed(self.seed, first)
            obs = shown.reset()
        else:
            with beginning(env, count):
                obs = shown.reset(seed=self.seed)
        running = torch.arange(count, device=env.device) < self.episodes - first
        total, length = torch.zeros(count, device=env.device), torch.zeros_like(running, dtype=torch.int64)
        # contiguous, since steps write into the observations and a user's `observe` may return an expanded tensor
        return Episodes(self.policy, shown, obs.contiguous(), total, length, running)

    def _play_round(self, episodes: Episodes, interrupts: Interrupts, tick: Tick) -> bool:
        """Play until every episode is over; False if the time limit comes first."""
        env, look_every = self.env, LOOK_EVERY if self.runtime.on_device else 1
        most = MAX_EPISODE_STEPS if env.capturable else MAX_HOST_EPISODE_STEPS
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
            interrupts.check()  # an environment may have swallowed the exception of a signal
            tick(over)
        return True

    def _cut_off(self, episodes: Episodes, rows: Tensor) -> Evaluation:
        """The result at the time limit: finished rounds; without any, finished episodes; without any, unfinished ones."""
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
    """Take one step in every copy, with the likeliest action or, given the noise `draw`, a sampled one."""
    policy, env, running = episodes.policy, episodes.env, episodes.running
    _, action = policy.act(episodes.obs, draw)
    step = env.step(action, noise)
    episodes.total += torch.where(running, step.reward, 0.0)
    episodes.length += running
    running &= ~(step.terminated | step.truncated)
    episodes.obs.copy_(step.obs)
