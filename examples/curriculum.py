"""A curriculum: a lock of twenty-four digits, learned from its end. The first level starts with three digits left to enter.

The level is a tensor that is changed in place, so that recorded steps and CUDA graphs see the change. Attributes that have
changed since the first reset are saved with the run. An evaluation plays in copies of the environment, at its present level.
"""

import torch

import tightrope as tr


class Lock(tr.envs.TensorEnv):
    """Enter binary digits, `level` of which are left at the start; the first wrong one ends the episode.

    State: digits entered, whether the last was wrong.
    """

    observation = tr.types.Discrete(25)
    action = tr.types.Discrete(2)
    time_limit = 24

    def __init__(self, num_envs=1, device="cpu", max_episode_steps=None):
        self.digits = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1] * 2 + [1, 1, 0, 1, 0, 1, 1, 0], device=device)
        self.level = torch.tensor(24.0, device=device)  # attributes come before super().__init__()
        super().__init__(num_envs, device, max_episode_steps)

    def initial(self, noise):
        entered = (24 - self.level).expand(len(noise))
        return torch.stack([entered, torch.zeros_like(entered)], -1)

    def advance(self, state, action):
        entered = state[:, 0]
        wrong = action != self.digits[entered.long().clamp(max=23)]
        return torch.stack([entered + 1, wrong.float()], -1)

    def observe(self, state):
        return state[:, 0].long()

    def reward(self, state, action, next_state):
        entered, wrong = next_state.unbind(-1)
        return (entered >= 24) * (1 - wrong)  # only the open lock is rewarded

    def terminated(self, state):
        return (state[:, 0] >= 24) | (state[:, 1] > 0)


settings = dict(num_steps=24, learning_rate=1e-3, ent_coef=0.02, total_timesteps=300_000, seed=1)
env = Lock(num_envs=64)
agent = tr.PPO(env, **settings)
env.level.fill_(3)
for row in agent.phases():
    if row["phase"] % 4:
        continue
    score = agent.evaluate(10)
    if score.mean < 1:
        continue
    print(f"{env.level:.0f} digits after {agent.steps:,} steps:", score)
    if env.level == 24:
        break
    env.level += 3  # in place
print("all at once:", tr.PPO(Lock(num_envs=64), **settings).learn(until=agent.steps, quiet=True).evaluate(10))
