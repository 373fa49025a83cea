"""A task with action masks: Tightrope's PPO against MaskablePPO of sb3-contrib, in one process, with the same settings.

    python benchmarks/masks.py                        # Taxi, whose info has a mask; about five minutes on one core
    python benchmarks/masks.py --seeds 1 --steps 100000
    python benchmarks/masks.py cost                   # what the code for masks costs where there are none; half a minute

MaskablePPO needs `pip install sb3-contrib`. Times are processor seconds of training, with one thread. Scores are greedy
means over the same 100 episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import gymnasium as gym
import torch

import tightrope as tr

ENVS, STEPS, EPISODES = 8, 512, 100


class TaxiWithMasks(gym.Wrapper[Any, Any, Any, Any]):
    """Taxi with the method that MaskablePPO calls."""

    def __init__(self) -> None:
        super().__init__(gym.make("Taxi-v4"))

    def action_masks(self) -> Any:
        env: Any = self.unwrapped
        return env.action_mask(env.s)


def ours(seed: int, steps: int) -> tuple[float, float]:
    learner = tr.PPO  # loads the package: both are loaded before their clocks start
    began = time.process_time()
    agent = learner(
        "Taxi-v4", seed=seed, total_timesteps=steps, num_envs=ENVS, num_steps=STEPS, num_minibatches=32, update_epochs=10,
        learning_rate=1e-3, norm_reward=True, defaults="plain", device="cpu", threads=1,
    )  # fmt: skip
    agent.learn(quiet=True)
    spent = time.process_time() - began
    return score(lambda obs, mask: agent.predict(obs, mask=mask)), spent


def theirs(seed: int, steps: int) -> tuple[float, float]:
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    began = time.process_time()
    envs = VecNormalize(DummyVecEnv([TaxiWithMasks] * ENVS), norm_obs=False)
    model = MaskablePPO(
        "MlpPolicy", envs, n_steps=STEPS, batch_size=ENVS * STEPS // 32, n_epochs=10, seed=seed, device="cpu",
        learning_rate=lambda left: 1e-3 * left, ent_coef=0.01,
    )  # fmt: skip
    model.learn(steps)
    spent = time.process_time() - began
    return score(lambda obs, mask: model.predict(obs, deterministic=True, action_masks=mask)[0]), spent


def score(choose: Callable[[Any, Any], Any]) -> float:
    """The mean return of greedy episodes, which begin alike for both libraries."""
    env, returns = TaxiWithMasks(), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(choose(obs, env.action_masks())))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return sum(returns) / EPISODES


def cost() -> None:
    """The share of training CartPole, which has no masks, that is spent in functions for masks.

    Each call of them is timed. Its fastest time, which other programs disturb least, times the number of calls, is compared
    with the fastest of three whole runs: so shares far below the noise of a whole run can be told apart.
    """
    from tightrope.envs import recorded_step, tensor
    from tightrope.envs.adapters import gym_single
    from tightrope.models import ActorCritic
    from tightrope.training import scoring

    parts: list[tuple[Any, str]] = [
        (recorded_step, "check_masks"), (tensor, "check_masks"), (tensor, "with_parts"), (gym_single, "check_mask_rows"),
        (scoring, "mask_in_info"), (ActorCritic, "_prepare"),
    ]  # fmt: skip
    for backend, steps in (("tensor", 200_000), ("gymnasium", 40_000)):
        for algo in (tr.PPO, tr.VPG):
            settings: dict[str, Any] = dict(
                backend=backend, total_timesteps=steps, device="cpu", threads=1, eval_every=0, stop_at_return=None
            )
            times = []
            for _ in range(3):
                agent, began = algo("CartPole-v1", **settings), time.process_time()
                agent.learn(quiet=True)
                times.append(time.process_time() - began)
            calls: dict[str, list[int]] = {}
            with contextlib.ExitStack() as stack:
                for owner, name in parts:
                    found = calls.setdefault(f"{owner.__name__.rpartition('.')[2]}.{name}", [])
                    stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name), found)))
                algo("CartPole-v1", **settings).learn(quiet=True)
            spent = {name: len(found) * min(found) / 1e9 for name, found in calls.items() if found}
            counts = ", ".join(f"{name} {len(found):,} calls" for name, found in calls.items() if found)
            print(f"{algo.__name__}, {backend}: {100 * sum(spent.values()) / min(times):.2f} % ({counts})", flush=True)


def timed(function: Callable[..., Any], found: list[int]) -> Callable[..., Any]:
    """The function, which adds the nanoseconds of each call to a list."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            found.append(time.perf_counter_ns() - began)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("cost",))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    args = parser.parse_args()
    if args.what == "cost":
        cost()
        return
    spent = {"ours": 0.0, "theirs": 0.0}
    for seed in range(1, args.seeds + 1):
        for name, train in (("ours", ours), ("theirs", theirs)):
            score, seconds = train(seed, args.steps)
            spent[name] += seconds
            print(f"Taxi-v4, {args.steps:,} steps, seed {seed}, {name}: mean {score:.2f}, {seconds:.1f} s", flush=True)
    print(f"time of ours / MaskablePPO: {spent['ours'] / spent['theirs']:.3f}")


if __name__ == "__main__":
    main()
