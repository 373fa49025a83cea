"""Action masks: packages are put into four boxes until none fits any more. A box without room for the package is forbidden.

The same task is trained with the mask and without it. Without the mask the policy has to learn which boxes are full: trying one
costs a step and a little reward.
"""

import torch

import tightrope as tr

BOXES, ROOM = 4, 10


class Packing(tr.envs.TensorEnv):
    """State and observation: the room left in each box and the size of the next package. Reward: what fits.

    The first size comes from `noise`, one number per row (noise_size is 1). Later sizes follow from the state by a fixed rule,
    so a step draws nothing.
    """

    observation = tr.types.Box((BOXES + 1,))
    action = tr.types.Discrete(BOXES)
    time_limit = 24

    def initial(self, noise):
        return torch.cat(
            [torch.full((len(noise), BOXES), float(ROOM), device=noise.device), 1 + (noise * 5).floor()], 1
        )

    def advance(self, state, action):
        room, size = state[:, :BOXES], state[:, BOXES:]
        placed = torch.nn.functional.one_hot(action, BOXES) * (room >= size)
        following = 1 + (3 * size + room.sum(1, keepdim=True)) % 5
        return torch.cat([room - placed * size, torch.where(placed.any(1, keepdim=True), following, size)], 1)

    def reward(self, state, action, next_state):
        filled = (state[:, :BOXES] - next_state[:, :BOXES]).sum(1) / (BOXES * ROOM)
        return torch.where(filled > 0, filled, torch.full_like(filled, -0.05))

    def terminated(self, state):
        return (state[:, :BOXES] < state[:, BOXES:]).all(1)


class MaskedPacking(Packing):
    def action_mask(self, state):
        return state[:, :BOXES] >= state[:, BOXES:]  # if nothing fits, the episode is over


for env in (Packing, MaskedPacking):
    agent = tr.PPO(env(num_envs=64), num_steps=24, learning_rate=3e-3, total_timesteps=20_000, seed=1).learn(quiet=True)
    print(f"{env.__name__}: {agent.evaluate(100)}")

state = torch.tensor([0.0, 1.0, 10.0, 1.0, 2.0])  # only box 2 has room for a package of size 2
print("with one box allowed:", agent.predict(state, mask=state[:BOXES] >= state[BOXES]))
