"""CartPole without its velocities, which a single observation cannot tell: an agent without memory, and one with a GRU.

The environment is a subclass that hides a part of the observation. (It is also registered, as CartPoleNoVelocity-v0.)

    python examples/memory.py            # half a minute
    python examples/memory.py 20000      # fewer steps
"""

import sys

from torch import Tensor

import tightrope as tr
from tightrope.envs.classic import CartPole
from tightrope.types import Box


class Blind(CartPole):
    """Shows the position of the cart and the angle of the pole, not their speeds."""

    observation = Box((2,))

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2].clone()


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
settings = dict(
    num_envs=64, num_steps=64, num_minibatches=8, learning_rate=3e-3, ent_coef=0.0, norm_obs=True, total_timesteps=steps,
    eval_every=16_384, stop_at_return=500.0,
)  # fmt: skip
for memory in (None, "gru"):
    agent = tr.PPO(Blind, memory=memory, defaults="plain", **settings).learn(quiet=True)
    print(f"memory {memory}: {agent.evaluate(100)}")

state = None  # at the start of an episode
for obs in ([0.0, 0.02], [0.0, 0.03], [0.0, 0.05]):  # the pole is falling to the right
    action, state = agent.predict(obs, state)
    print(f"angle {obs[1]}: push {'right' if action else 'left'}")
