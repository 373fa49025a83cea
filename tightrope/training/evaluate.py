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
from ..engine.collect import array_stepper
from ..envs import TensorEnv
from ..envs.adapters.host import HostEnv
from ..envs.step_arrays import ArrayStepper, StepArrays
from ..envs.with_memory import with_memory
from ..errors import EnvError, UsageError, raised
from ..models import ActorCritic
from ..types import Env
from .evaluation import Evaluation as Evaluation  # re-exported
from .signals import Interrupts

MAX_EPISODE_STEPS = 100_000  # after which an endless episode is cut off
MAX_HOST_EPISODE_STEPS = 30_000  # the same limit for environments outside torch, whose steps are slower
MAX_ENVS_PER_GAME = 16  # rows of a tensor environment that may form one game, so that their number must be a multiple
LOOK_EVERY = 64  # steps between checks whether all episodes are over, where a check synchronises with the device

Tick = Callable[[int], None]  # called after every step with the number of episodes that are over


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
    measured: Tensor  # (1,) sum over all counted steps
    measure: Callable[[], Tensor] | None  # of the present states, where the task has a unit of its own
    step_arrays: ArrayStepper | None = None  # a faster step of the environment, where there is one

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
        self.measured = 0.0  # sum over all counted steps

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
            self.measured += float(episodes.measured)
            self.returns += returns
            self.lengths += lengths
        limit = self.env.game_limit if isinstance(self.env, HostEnv) else None
        games_cut = 0 if limit is None else sum(length >= limit for length in self.lengths)
        unit = "" if measure_of(self.env) is None else getattr(self.env, "unit", "")
        measured = self.measured / max(sum(self.lengths), 1) if unit else None
        return Evaluation(
            self.returns, self.lengths, self.unfinished, games_cut=games_cut, measured=measured, unit=unit
        )

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
        measured, measure = torch.zeros(1, device=env.device), measure_of(env)
        in_numpy = isinstance(env, TensorEnv) and self.runtime.uses_numpy
        faster = array_stepper(shown) if in_numpy else None
        return Episodes(self.policy, shown, obs.contiguous(), total, length, running, measured, measure, faster)

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


def measure_of(env: Env) -> Callable[[], Tensor] | None:
    """Returns what the states of an environment are worth in its own unit, if it has one."""
    method = getattr(env, "measure", None)
    return (lambda: method(env.state)) if isinstance(env, TensorEnv) and env.unit and method is not None else None


def play(episodes: Episodes, noise: Tensor, draw: Tensor | None) -> None:
    """Take one step in every copy, with the likeliest action or, given the noise `draw`, a sampled one."""
    policy, env, running = episodes.policy, episodes.env, episodes.running
    _, action = policy.act(episodes.obs, draw)
    if episodes.measure is not None:
        episodes.measured += torch.where(running, episodes.measure(), 0.0).sum()
    if episodes.step_arrays is not None:
        count_step(episodes, episodes.step_arrays(action.numpy(), noise.numpy()))
        return
    step = env.step(action, noise)
    episodes.total += torch.where(running, step.reward, 0.0)
    episodes.length += running
    running &= ~(step.terminated | step.truncated)
    episodes.obs.copy_(step.obs)


@np.errstate(all="ignore")  # rewards may be infinite
def count_step(episodes: Episodes, step: StepArrays) -> None:
    """Count a step on the CPU, as `play` does for tensors."""
    obs, reward, terminated, truncated = step.arrays
    running = episodes.running.numpy()
    total, length = episodes.total.numpy(), episodes.length.numpy()
    np.add(total, reward, out=total, where=running)
    length += running
    running &= ~(terminated | truncated)
    np.copyto(episodes.obs.numpy(), obs)
