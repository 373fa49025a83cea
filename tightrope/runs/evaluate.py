"""Greedy evaluation: an environment and random stream of its own, the first episode of each of many copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..engine import choose_threads, reads_are_free, threads
from ..models import ActorCritic
from ..types import Env

MOST_STEPS = 100_000  # of an episode that nothing else ends
LOOK_EVERY = 64  # steps between looks at whether all episodes are over, where looking costs a synchronisation


@dataclass(frozen=True)
class Evaluation:
    """What greedy episodes returned and how long they lasted."""

    returns: list[float]
    lengths: list[int]

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
        }

    def __str__(self) -> str:
        return (
            f"mean {self.mean:.2f}, std {self.std:.2f}, min {min(self.returns):.2f}, max {max(self.returns):.2f} "
            f"over {len(self.returns)} episodes (mean length {self.mean_length:.1f})"
        )


@torch.no_grad()
def evaluate(policy: ActorCritic, env: Env, episodes: int, seed: int) -> Evaluation:
    """Run the policy greedily for the first episode of `episodes` fresh copies of `env`.

    One episode per copy: taking the first to finish would favour short ones.
    """
    with threads(choose_threads(policy, episodes)):
        return _first_episodes(policy, env.spawn(episodes, seed), episodes, seed)


def _first_episodes(policy: ActorCritic, env: Env, episodes: int, seed: int) -> Evaluation:
    obs = env.reset(seed=seed)
    total = torch.zeros(episodes, device=env.device)
    length = torch.zeros(episodes, dtype=torch.int64, device=env.device)
    running = torch.ones(episodes, dtype=torch.bool, device=env.device)
    look_every = 1 if reads_are_free(env.device) else LOOK_EVERY
    t = 0
    while t < MOST_STEPS and (t % look_every or bool(running.any())):
        step = env.step(policy.head.to_env(policy.distribution(obs).mode()))
        total += torch.where(running, step.reward, 0.0)
        length += running
        running &= ~(step.terminated | step.truncated)
        obs = step.obs
        t += 1
    env.close()
    return Evaluation(total.tolist(), length.tolist())
