"""One clock and one check for everybody: how long does training take until CartPole is solved, and stays solved?

Only training counts: the clock stands still during checks, imports and construction. A check is the mean return of the
first episode of 100 fresh Gymnasium CartPoles under greedy actions, at least 2,048 training steps after the last check and
on new episodes each time. Five passing checks in a row end the run; the time at the first of the five is the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

THRESHOLD, EPISODES, LIMIT, STREAK, APART = 495.0, 100, 500, 5, 2_048


class Held(Exception):
    """Raised by `check` at the fifth passing check in a row."""


def greedy_mean(act: Callable[[np.ndarray], Any], seed: int, envs: gym.vector.VectorEnv) -> float:
    """Mean return of the first episodes; ends early, with what there is, once the threshold is out of reach."""
    obs, _ = envs.reset(seed=seed)
    total, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    for t in range(LIMIT):
        obs, reward, terminated, truncated, _ = envs.step(np.asarray(act(obs.astype(np.float32))))
        total += reward * running
        running &= ~(terminated | truncated)
        if not running.any() or (total + running * (LIMIT - t - 1)).mean() < THRESHOLD:
            break
    return float(total.mean())


class Hold:
    """The clock, started and stopped around training, and the streak of passing checks."""

    def __init__(self) -> None:
        self.envs = gym.make_vec("CartPole-v1", num_envs=EPISODES, vectorization_mode="vector_entry_point")
        self.seconds, self.since = 0.0, 0.0
        self.checks, self.checked_at = 0, 0
        self.streak: list[float] = []
        self.first_pass: float | None = None

    def start(self) -> None:
        self.since = time.perf_counter()

    def stop(self) -> None:
        self.seconds += time.perf_counter() - self.since

    def check(self, steps: int, act: Callable[[np.ndarray], Any]) -> None:
        """Call after every update, while the clock runs."""
        if steps - self.checked_at < APART:
            return
        self.stop()
        self.checks, self.checked_at = self.checks + 1, steps
        if greedy_mean(act, 10_000 + 1_000 * self.checks, self.envs) >= THRESHOLD:
            self.streak.append(self.seconds)
            self.first_pass = self.first_pass or self.seconds
            if len(self.streak) == STREAK:
                raise Held
        else:
            self.streak = []
        self.start()

    def report(self, library: str, seed: int, steps: int) -> None:
        held = self.streak[0] if len(self.streak) == STREAK else None
        print(json.dumps({"library": library, "seed": seed, "seconds_to_hold": held, "first_pass": self.first_pass,
                          "seconds": self.seconds, "steps": steps, "steps_per_s": steps / self.seconds}))  # fmt: skip
