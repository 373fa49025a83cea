"""Brax's own PPO on its ant, with the recipe of Brax's training notebook, cut to 10 million steps. Prints one line of JSON.

    python benchmarks/peers/brax_ppo.py [--physics spring] [--seed 1] [--env ant] [--total-timesteps N]

A training step of Brax is batch_size * num_minibatches / num_envs = 16 unrolls of 5 steps of 4096 environments, 327,680
transitions, seen 4 times in 32 minibatches of 2048 unrolls. 31 of them are the first multiple beyond 10 million.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import train as ppo

if not hasattr(jax, "device_put_replicated"):  # gone from JAX; Brax's trainer still calls it
    jax.device_put_replicated = lambda tree, devices: jax.tree.map(
        lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree
    )

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--physics", default="spring", choices=["spring", "positional", "generalized", "mjx"])
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--env", default="ant")
parser.add_argument("--total-timesteps", type=int, default=31 * 327_680)
parser.add_argument("--num-evals", type=int, default=1, help="3 or more for a speed without compilation")
args = parser.parse_args()

began = time.perf_counter()
_, _, metrics = ppo.train(
    environment=envs.get_environment(args.env, backend=args.physics),
    num_timesteps=args.total_timesteps,
    episode_length=1000,
    num_envs=4096,
    unroll_length=5,
    batch_size=2048,
    num_minibatches=32,
    num_updates_per_batch=4,
    learning_rate=3e-4,
    discounting=0.97,
    entropy_cost=1e-2,
    reward_scaling=10,
    normalize_observations=True,
    num_evals=args.num_evals,
    num_eval_envs=128,
    deterministic_eval=True,
    max_devices_per_host=1,
    seed=args.seed,
)
seconds = time.perf_counter() - began - metrics["eval/walltime"]
print(
    json.dumps(
        {
            "library": "brax",
            "seed": args.seed,
            "return": float(metrics["eval/episode_reward"]),
            "std": float(metrics["eval/episode_reward_std"]),
            "length": float(metrics["eval/avg_episode_length"]),
            "seconds": seconds,
            "steps_per_s": float(metrics["training/sps"]),  # of the last stretch between evaluations
        }
    )
)
