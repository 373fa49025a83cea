"""Brax's own PPO, with the recipe of Brax's training notebook but for the number of steps. Prints one line of JSON.

    python benchmarks/peers/brax_ppo.py [--physics spring] [--seed 1] [--env ant] [--total-timesteps N]

A training step of Brax is batch_size x unroll_length x num_minibatches = 327,680 transitions of any of these recipes. The
notebook trains hopper and walker2d with SAC; here they have the cheetah's settings.
"""

import argparse
import json

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import train as ppo

if not hasattr(jax, "device_put_replicated"):  # gone from JAX; Brax's trainer still calls it
    jax.device_put_replicated = lambda tree, devices: jax.tree.map(
        lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree
    )

ANT = dict(
    num_envs=4096, unroll_length=5, batch_size=2048, num_updates_per_batch=4, discounting=0.97, entropy_cost=1e-2,
    reward_scaling=10,
)  # fmt: skip
CHEETAH = dict(
    num_envs=2048, unroll_length=20, batch_size=512, num_updates_per_batch=8, discounting=0.95, entropy_cost=1e-3,
    reward_scaling=1,
)  # fmt: skip
HUMANOID = dict(
    num_envs=2048, unroll_length=10, batch_size=1024, num_updates_per_batch=8, discounting=0.97, entropy_cost=1e-3,
    reward_scaling=0.1,
)  # fmt: skip
RECIPES = {"ant": ANT, "halfcheetah": CHEETAH, "hopper": CHEETAH, "walker2d": CHEETAH, "humanoid": HUMANOID}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--physics", default="spring", choices=["spring", "positional", "generalized", "mjx"])
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--env", default="ant", choices=list(RECIPES))
parser.add_argument("--total-timesteps", type=int, default=31 * 327_680)
parser.add_argument("--num-evals", type=int, default=1, help="3 or more for a speed without compilation")
args = parser.parse_args()

_, _, metrics = ppo.train(
    environment=envs.get_environment(args.env, backend=args.physics), num_timesteps=args.total_timesteps, seed=args.seed,
    episode_length=1000, num_minibatches=32, learning_rate=3e-4, normalize_observations=True, num_evals=args.num_evals,
    num_eval_envs=128, deterministic_eval=True, max_devices_per_host=1, **RECIPES[args.env],
)  # fmt: skip
speed = float(metrics["training/sps"])  # of the last stretch between evaluations
print(json.dumps({"return": float(metrics["eval/episode_reward"]), "steps_per_s": speed}))
