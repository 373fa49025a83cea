"""Your own tensor environment: a point on a line that is rewarded for returning to 0. One class, four methods."""

import torch

import tightrope as tr


class ComeHome(tr.envs.TensorEnv):
    """State: position and speed. Action: a push in [-1, 1]. Reward: minus the distance from 0."""

    observation = tr.types.Box((2,))
    action = tr.types.Box((1,), -1.0, 1.0)
    noise_size = 1
    time_limit = 100

    def initial(self, noise):
        return torch.cat([4 * noise - 2, torch.zeros_like(noise)], -1)

    def advance(self, state, action):
        position, speed = state.unbind(-1)
        speed = 0.9 * speed + 0.1 * action[:, 0]
        return torch.stack([position + 0.1 * speed, speed], -1)

    def reward(self, state, action, next_state):
        return -next_state[:, 0].abs()

    def terminated(self, state):
        return state[:, 0].abs() > 3


agent = tr.PPO(ComeHome(num_envs=64), num_steps=50, learning_rate=3e-3, gamma=0.97, total_timesteps=200_000, seed=1)
print("before:", agent.evaluate())
agent.learn(quiet=True)
print("after: ", agent.evaluate())
