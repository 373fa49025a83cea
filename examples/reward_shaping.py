"""Compare three rewards for CartPole by the returns, positions and angles that they lead to: upright, central, and both."""

import torch

import tightrope as tr
from tightrope.envs.classic.cartpole import LEAN, TRACK


class Upright(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return 1 - next_state[:, 2].abs() / LEAN


class Central(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return 1 - next_state[:, 0].abs() / TRACK


def distances(agent):
    """Mean |x| in metres and mean |theta| in radians over 500 greedy steps of 100 environments."""
    env = tr.envs.CartPole(num_envs=100)
    shown = [env.reset(seed=1)]
    for _ in range(500):
        shown.append(env.step(agent.predict(shown[-1])).obs)
    return torch.stack(shown).abs().mean((0, 1))[[0, 2]].tolist()


for kind in (Upright, Central, tr.envs.EasyCart):  # EasyCart pays the mean of both
    agent = tr.PPO(kind(num_envs=64), num_steps=16, learning_rate=5e-3, total_timesteps=100_000, seed=1)
    agent.learn(quiet=True)
    result, (x, theta) = agent.evaluate(episodes=100, env="CartPole-v1"), distances(agent)
    print(f"{kind.__name__:8s} CartPole-v1: {result}, |x| {x:.3f} m, |theta| {theta:.4f} rad")
