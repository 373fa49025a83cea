"""Randomness in a tensor environment: gusts of wind during an episode, and a motor that differs between episodes.

The strength of the motor is a column of the state. `initial` draws it from its noise: this is domain randomisation. `advance`
draws the gusts by `torch.rand_like`; docs/environments.md says what that costs.
"""

import torch

import tightrope as tr


class Windy(tr.envs.TensorEnv):
    """State: position, strength of the motor. Observation: the position. Reward: minus the distance from 0."""

    observation = tr.types.Box((1,))
    action = tr.types.Box((1,), -1.0, 1.0)
    noise_size = 2  # numbers that `initial` uses: one for the position, one for the motor
    time_limit = 50

    def __init__(self, num_envs=1, device="cpu", max_episode_steps=None, motor=(1.0, 1.0)):
        self.motor = motor  # before super().__init__(), which calls initial
        super().__init__(num_envs, device, max_episode_steps)

    def initial(self, noise):
        weakest, strongest = self.motor
        return torch.stack([2 * noise[:, 0] - 1, weakest + (strongest - weakest) * noise[:, 1]], -1)

    def advance(self, state, action):
        x, strength = state.unbind(-1)
        gust = torch.where(torch.rand_like(x) < 0.1, torch.randn_like(x), 0.0)
        return torch.stack([x + strength * action[:, 0] + gust, strength], -1)  # new tensors: `state` stays as it is

    def observe(self, state):
        return state[:, :1]

    def reward(self, state, action, next_state):
        return -next_state[:, 0].abs()


for name, motor in {"one motor": (1.0, 1.0), "all motors": (0.5, 2.5)}.items():
    env = Windy(num_envs=64, motor=motor)
    agent = tr.PPO(env, num_steps=25, learning_rate=3e-3, gamma=0.9, total_timesteps=60_000, seed=1).learn(quiet=True)
    for strength in (1.0, 2.5):
        score = agent.evaluate(env=Windy(motor=(strength, strength)))
        print(f"trained on {name}, tried with motor {strength}: {score}")
