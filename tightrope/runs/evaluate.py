"""Greedy evaluation: an environment and random stream of its own, the first episode of each of many copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine import Execution, Mode, apart, capturable, choose_threads, reads_are_free, threads
from ..models import ActorCritic
from ..types import Env

MOST_STEPS = 100_000  # of an episode that nothing else ends
MOST_HOST_STEPS = 30_000  # the same, where an engine on the host takes them one by one
LOOK_EVERY = 64  # steps between looks at whether all episodes are over, where looking costs a synchronisation


@dataclass(frozen=True)
class Evaluation:
    """What greedy episodes returned and how long they lasted."""

    returns: list[float]
    lengths: list[int]
    unfinished: int = 0  # episodes that nothing ended, cut off after the last of their lengths

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def as_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "std": self.std,
            "min": min(self.returns),
            "max": max(self.returns),
            "episodes": len(self.returns),
            "mean_length": self.mean_length,
            "returns": self.returns,
            "lengths": self.lengths,
            "unfinished": self.unfinished,
        }

    @property
    def metrics(self) -> dict[str, float]:
        """What a row of metrics has of it."""
        return {
            "eval/episodic_return": self.mean,
            "eval/episodic_length": self.mean_length,
            "eval/return_std": self.std,
            "eval/return_min": min(self.returns),
            "eval/return_max": max(self.returns),
            "eval/episodes": len(self.returns),
        }

    def __str__(self) -> str:
        cut = (
            f"; {self.unfinished} of them cut off after {max(self.lengths):,} steps, set max_episode_steps"
            if self.unfinished
            else ""
        )
        return (
            f"mean {self.mean:.2f}, std {self.std:.2f}, min {min(self.returns):.2f}, max {max(self.returns):.2f} "
            f"over {len(self.returns)} episodes (mean length {self.mean_length:.1f}){cut}"
        )


@torch.no_grad()
def evaluate(policy: ActorCritic, env: Env, episodes: int, seed: int, captured: bool = False) -> Evaluation:
    """Run the policy greedily for the first episode of `episodes` fresh copies of `env`.

    One episode per copy: taking the first to finish would favour short ones. With `captured`, a step is replayed as a CUDA
    graph where the environment allows it, which changes no number.
    """
    mode: Mode = "graph" if captured and env.capturable else "eager"
    execution = Execution(mode, device=env.device, say=lambda line: None)  # training has said it already
    with threads(choose_threads(policy, episodes)), apart(seed, env.device):
        return execution.run(_first_episodes, policy, env.spawn(episodes, seed), episodes, seed)


@dataclass
class Episodes:
    """The first episode of each copy, as far as it has come. A step writes into these tensors and replaces none."""

    policy: ActorCritic
    env: Env
    obs: Tensor  # (N, ...)
    total: Tensor  # (N,)
    length: Tensor  # (N,)
    running: Tensor  # (N,) bool


def _first_episodes(policy: ActorCritic, env: Env, count: int, seed: int) -> Evaluation:
    device = env.device
    episodes = Episodes(
        policy,
        env,
        obs=env.reset(seed=seed),
        total=torch.zeros(count, device=device),
        length=torch.zeros(count, dtype=torch.int64, device=device),
        running=torch.ones(count, dtype=torch.bool, device=device),
    )
    generator = torch.Generator(device).manual_seed(seed)  # for the episodes that follow, which nobody looks at
    look_every = 1 if reads_are_free(device) else LOOK_EVERY
    t = 0
    most = MOST_STEPS if env.capturable else MOST_HOST_STEPS
    while t < most and (t % look_every or bool(episodes.running.any())):
        play(episodes, torch.rand(count, env.noise_size, generator=generator, device=device))
        t += 1
    env.close()
    return Evaluation(episodes.total.tolist(), episodes.length.tolist(), int(episodes.running.sum()))


@capturable("phase")
def play(episodes: Episodes, noise: Tensor) -> None:
    """One greedy step of every copy."""
    policy, env, running = episodes.policy, episodes.env, episodes.running
    step = env.step(policy.head.to_env(policy.distribution(episodes.obs).mode()), noise)
    episodes.total += torch.where(running, step.reward, 0.0)
    episodes.length += running
    running &= ~(step.terminated | step.truncated)
    episodes.obs.copy_(step.obs)
