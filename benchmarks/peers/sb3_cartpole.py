"""Stable-Baselines3 with its tuned CartPole recipe (rl-zoo3), on the clock of hold.py. One torch thread."""

import argparse
import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from hold import Held, Hold
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=1)
seed = parser.parse_args().seed
torch.set_num_threads(1)

model = PPO(
    "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=seed), n_steps=32, batch_size=256, n_epochs=20, gae_lambda=0.8,
    gamma=0.98, ent_coef=0.0, learning_rate=lambda left: left * 1e-3, clip_range=lambda left: left * 0.2, seed=seed,
    device="cpu",
)  # fmt: skip
hold = Hold()


class Check(BaseCallback):
    """A check before each rollout, of the policy just updated."""

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            hold.check(self.num_timesteps, lambda obs: model.predict(obs, deterministic=True)[0])

    def _on_step(self) -> bool:
        return True


hold.start()
with contextlib.suppress(Held):
    model.learn(100_000, callback=Check())
    hold.stop()
hold.report("stable-baselines3", seed, model.num_timesteps)
