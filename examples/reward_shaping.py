"""Compare three rewards for CartPole, upright, central and both, by the angles and positions that they lead to."""

import tightrope as tr
from tightrope.envs.classic.cartpole import LEAN, TRACK


class Upright(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return 1 - next_state[:, 2].abs() / LEAN


class Central(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return 1 - next_state[:, 0].abs() / TRACK


class Both(tr.envs.CartPole):
    def reward(self, state, action, next_state):
        return (Upright.reward(self, state, action, next_state) + Central.reward(self, state, action, next_state)) / 2


for kind in (Upright, Central, Both):
    agent = tr.PPO(kind(num_envs=64), num_steps=16, learning_rate=5e-3, total_timesteps=100_000, seed=1).learn(
        quiet=True
    )
    result = agent.evaluate(episodes=100, env="CartPole-v1")
    print(f"{kind.__name__:8s} CartPole-v1: {result}")
