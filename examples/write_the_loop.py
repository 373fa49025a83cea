"""Train without an agent or a run directory: `ppo(state, config)` is a generator with one yield per phase.

If a number is not finite, the loop raises `tightrope.NotFinite`, and `state` is restored to before that phase.
"""

import torch

from tightrope.algorithms.ppo import PPOConfig, ppo, start
from tightrope.envs import CartPole
from tightrope.models import NetworkConfig, actor_critic

torch.manual_seed(0)  # of the initial weights, which actor_critic draws
torch.set_num_threads(1)
config = PPOConfig(
    num_envs=64, num_steps=16, num_minibatches=2, update_epochs=8, learning_rate=0.01, total_timesteps=50_000
)
env = CartPole(config.num_envs)
policy = actor_critic(env.observation, env.action, NetworkConfig(hidden_sizes=(32, 32)))
state = start(env, policy, config, seed=1)  # the seed of everything that training draws
for metrics in ppo(state, config):
    if state.phase % 8 == 0:
        episodes, returns, _ = metrics.episodes.tolist()
        print(f"phase {state.phase:3d}  return {returns / max(episodes, 1):6.1f}  KL {metrics.terms.approx_kl:.4f}")
