"""Two agents in one environment: tag, learned by self-play.

Two rows are one game: row 2i is the chaser, row 2i + 1 the runner. Each row sees the game from its own side, and one policy
plays both. Rows of a game start from the same noise and end together. Ask for an even number of rows.
"""

import torch

import tightrope as tr


class Tag(tr.envs.TensorEnv):
    """State of a row: own position (x, y), the other's position, own role (+1 chases, -1 runs). Action: one of five moves."""

    observation = tr.types.Box((5,))
    action = tr.types.Discrete(5)
    noise_size = 4
    time_limit = 50

    def initial(self, noise):
        places = 2 * noise[::2] - 1  # one row of noise for both rows of a game
        return self.game(places[:, :2], places[:, 2:])

    def game(self, chaser, runner):
        """The two rows of every game, from the positions (N / 2, 2) of its players."""
        role = torch.ones_like(chaser[:, :1])
        rows = torch.stack([torch.cat([chaser, runner, role], -1), torch.cat([runner, chaser, -role], -1)], 1)
        return rows.flatten(0, 1)

    def advance(self, state, action):
        moves = torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], device=state.device)
        speed = 0.10 + 0.02 * state[:, 4:]  # the chaser is quicker
        place = (state[:, :2] + speed * moves[action]).clamp(-1, 1)
        return self.game(place[::2], place[1::2])

    def distance(self, state):
        return (state[:, :2] - state[:, 2:4]).norm(dim=-1)

    def reward(self, state, action, next_state):
        role = state[:, 4]
        return role * (self.distance(state) - self.distance(next_state) + self.terminated(next_state))

    def terminated(self, state):
        return self.distance(state) < 0.15


def caught(chaser, runner, games=200):
    """The share of games in which the runner is caught; a player is an agent, or None for one that moves at random."""
    env, generator = Tag(num_envs=2 * games), torch.Generator().manual_seed(0)
    obs, over = env.reset(seed=0), torch.zeros(2 * games, dtype=torch.bool)
    for _ in range(Tag.time_limit):
        action = torch.randint(5, (2 * games,), generator=generator)
        for player, rows in ((chaser, slice(0, None, 2)), (runner, slice(1, None, 2))):
            if player is not None:
                action[rows] = player.predict(obs[rows], deterministic=False)
        step = env.step(action)
        obs, over = step.obs, over | step.terminated
    return over[::2].float().mean().item()


torch.manual_seed(0)  # for predict, which draws from torch's own stream
agent = tr.PPO(Tag(num_envs=64), num_steps=32, learning_rate=3e-3, gamma=0.95, total_timesteps=150_000, seed=1)
agent.learn(quiet=True)
print(f"chaser at random, runner at random: caught {caught(None, None):.2f}")
print(f"chaser learned,   runner at random: caught {caught(agent, None):.2f}")
print(f"chaser learned,   runner learned:   caught {caught(agent, agent):.2f}")
print(f"chaser at random, runner learned:   caught {caught(None, agent):.2f}")
