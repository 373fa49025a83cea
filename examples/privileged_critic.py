"""A critic that sees more than the actor: a courier rides to a door, and how well a day pays is known to the simulator only.

The pay of the day changes no decision, but it is most of the reward. A critic that sees it explains it away, and what the
courier did is left. The actor never sees it, so the trained policy needs the position alone.
"""

import torch

import tightrope as tr


class Courier(tr.envs.TensorEnv):
    """State: position, speed, pay of the day. The door is at 0. Reward: minus the distance, plus the pay."""

    observation = tr.types.Box((2,))
    action = tr.types.Box((1,), -1.0, 1.0)
    noise_size = 2
    time_limit = 40

    def initial(self, noise):
        place, pay = (2 * noise - 1).unbind(-1)
        return torch.stack([2 * place, torch.zeros_like(place), 5 * pay], -1)

    def advance(self, state, action):
        place, speed, pay = state.unbind(-1)
        speed = 0.9 * speed + 0.1 * action[:, 0]
        return torch.stack([place + speed, speed, pay], -1)

    def observe(self, state):  # what the actor sees, and the critic too
        return state[:, :2]

    def privileged(self, state):  # what only the critic sees
        return state[:, 2:]

    def reward(self, state, action, next_state):
        return next_state[:, 2] - next_state[:, 0].abs()


class NormalDay(Courier):
    """Every day pays 0, so that returns can be compared."""

    def initial(self, noise):
        return super().initial(noise) * torch.tensor([1.0, 1.0, 0.0], device=noise.device)


settings = dict(num_steps=40, learning_rate=3e-3, gamma=0.95, total_timesteps=60_000)
for name, parts in {"with the observation alone": ("observation",), "with the pay too": None}.items():
    agent = tr.PPO(Courier(num_envs=64), critic_obs=parts, seed=1, **settings)
    rows = list(agent.phases())
    explained = rows[-1]["losses/explained_variance"]
    print(f"a critic {name} explains {explained:.2f} of the returns: {agent.evaluate(env=NormalDay())}")

print("the action at the left, at rest:", agent.predict(torch.tensor([-1.0, 0.0])))
