"""Stable-Baselines3's PPO with given settings, on one thread; called by suite.py for suites whose algo is sb3."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

WIDE = dict(log_std_init=-2, ortho_init=False, activation_fn=torch.nn.ReLU, net_arch=[256, 256])


class Returns(BaseCallback):
    """Returns of training episodes, as the environments pay them."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        self.ended += [(self.num_timesteps, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return True


def train(task: str, seed: int, settings: dict[str, Any], episodes: int) -> dict[str, Any]:
    """One run: returns of greedy episodes, those of training, steps and seconds. `wide` is the zoo's network of 256 units."""
    torch.set_num_threads(1)
    given = dict(settings)
    steps, num_envs = int(given.pop("n_timesteps")), given.pop("n_envs", 1)
    if given.pop("wide", False):
        given["policy_kwargs"] = WIDE
    envs = VecNormalize(make_vec_env(task, num_envs, seed=seed), gamma=given.get("gamma", 0.99))
    model, returns = PPO("MlpPolicy", envs, seed=seed, device="cpu", **given), Returns()
    began = time.perf_counter()
    model.learn(steps, callback=returns)
    seconds = time.perf_counter() - began
    return {
        "greedy": [greedy_return(model, envs, task, 10_000 * seed + i) for i in range(episodes)],
        "ended": returns.ended,
        "steps": model.num_timesteps,
        "seconds": seconds,
    }


def greedy_return(model: PPO, envs: VecNormalize, task: str, seed: int) -> float:
    env = gym.make(task)
    (obs, _), total, over = env.reset(seed=seed), 0.0, False
    while not over:
        action, _ = model.predict(envs.normalize_obs(np.asarray(obs)[None]), deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(
            np.clip(action[0], env.action_space.low, env.action_space.high)
        )
        total, over = total + float(reward), terminated or truncated
    env.close()
    return total
