"""A task with action masks: Tightrope's PPO against MaskablePPO of sb3-contrib, in one process, with the same settings.

    python benchmarks/masks.py                        # Taxi, whose info has a mask; about five minutes on one core
    python benchmarks/masks.py --seeds 1 --steps 100000

MaskablePPO needs `pip install sb3-contrib`. Times are processor seconds, with one thread. Scores are greedy means over 100
episodes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

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
    began = time.process_time()
    agent = tr.PPO(
        "Taxi-v4", seed=seed, total_timesteps=steps, num_envs=ENVS, num_steps=STEPS, num_minibatches=32, update_epochs=10,
        learning_rate=1e-3, norm_reward=True, defaults="plain", device="cpu", threads=1,
    )  # fmt: skip
    agent.learn(quiet=True)
    return agent.evaluate(EPISODES).mean, time.process_time() - began


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
    env, returns = TaxiWithMasks(), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(obs, deterministic=True, action_masks=env.action_masks())
            obs, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return sum(returns) / EPISODES, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    args = parser.parse_args()
    spent = {"ours": 0.0, "theirs": 0.0}
    for seed in range(1, args.seeds + 1):
        for name, train in (("ours", ours), ("theirs", theirs)):
            score, seconds = train(seed, args.steps)
            spent[name] += seconds
            print(f"Taxi-v4, {args.steps:,} steps, seed {seed}, {name}: mean {score:.2f}, {seconds:.1f} s", flush=True)
    print(f"time of ours / MaskablePPO: {spent['ours'] / spent['theirs']:.3f}")


if __name__ == "__main__":
    main()
