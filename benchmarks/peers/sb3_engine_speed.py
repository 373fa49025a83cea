"""Stable-Baselines3 on a workload of workloads.py: WORKLOAD SEED STEPS. Prints its steps per second."""

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

workload, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(2 if workload == "W6" else 1)
policy = "MlpPolicy"
if workload == "W2":
    env = make_vec_env("CartPole-v1", 4, seed=seed)
    recipe = dict(n_steps=128, batch_size=128, n_epochs=4, learning_rate=2.5e-4, ent_coef=0.01, clip_range_vf=0.2)
elif workload == "W3":
    env = make_vec_env("LunarLander-v3", 16, seed=seed)
    recipe = dict(n_steps=1024, batch_size=64, n_epochs=4, gae_lambda=0.98, gamma=0.999, ent_coef=0.01)
elif workload == "W6":
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env, policy = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", 8, seed=seed), 4), "CnnPolicy"
    recipe = dict(n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4, clip_range=0.1, ent_coef=0.01)
else:
    count = {"W4": 1, "W5": 64}[workload]
    env = VecNormalize(make_vec_env("HalfCheetah-v5", count, seed=seed), gamma=0.99, clip_reward=10.0)
    recipe = dict(n_steps=2048 // count, batch_size=64, n_epochs=10, learning_rate=3e-4, ent_coef=0.0)
model = PPO(policy, env, seed=seed, device="cpu", **recipe)
began = time.perf_counter()
model.learn(steps)
print(json.dumps({"steps_per_s": model.num_timesteps / (time.perf_counter() - began)}))
