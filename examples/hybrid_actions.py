"""Hybrid actions: a golfer chooses a club, and how hard to hit with it. Each stroke costs, by the distance that is left.

A driver sends the ball up to 10 metres and a putter up to 1, by the force of the stroke; a tap always moves it 0.2 metres. The
action has two parts, and the policy one head for each. `conditions` says that `force` is used with two of the clubs only: after
a tap, the force that was drawn with it is neither rewarded nor blamed.
"""

import torch

import tightrope as tr
from tightrope.types import Box, Composite, Discrete

CLUBS = ["tap", "putter", "driver"]


class Golf(tr.envs.TensorEnv):
    """State: the distance to the hole. It is observed on two scales."""

    observation = Box((2,))
    action = Composite(
        (("club", Discrete(3)), ("force", Box((1,), 0.0, 1.0))),
        conditions=(("force", "club", (1, 2)),),
    )
    time_limit = 12

    def initial(self, noise):
        return 1 + 19 * noise

    def observe(self, state):
        return torch.cat([state / 10, state.clamp(max=1)], 1)

    def advance(self, state, action):
        reach = torch.tensor([0.2, 1.0, 10.0], device=state.device)[action["club"]]
        force = torch.where(action["club"] == 0, 1.0, action["force"][:, 0])
        return (state[:, 0] - reach * force).abs().unsqueeze(1)

    def reward(self, state, action, next_state):
        return -0.1 - 0.1 * next_state[:, 0]

    def terminated(self, state):
        return state[:, 0] < 0.1


agent = tr.PPO(Golf(num_envs=128), num_steps=16, total_timesteps=200_000, learning_rate=3e-3, gamma=0.95, seed=1)
print("sampled before:", agent.evaluate(200, deterministic=False))
print("after:", agent.learn(quiet=True).evaluate(200))
for distance in (15.0, 5.0, 0.5):
    action = agent.predict(agent.state.env.observe(torch.tensor([[distance]]))[0])
    print(f"{distance} m from the hole: {CLUBS[int(action['club'])]}, force {float(action['force']):.2f}")
