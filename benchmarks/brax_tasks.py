"""Tasks of Brax: Brax's own PPO, then ours, in one run; the ratios of their greedy returns and of their speeds.

    python benchmarks/brax_tasks.py [TASK ...] [--device cuda] [--physics spring] [--seeds 3] [--first-seed 1] [--same-recipe]
                                    [--total-timesteps N] [--num-evals K] [NAME=VALUE ...]

Ours is `tightrope train brax/TASK`, with NAME=VALUE changed. Theirs are the settings of Brax's training notebook
(peers/brax_ppo.py). Both are scored by the mean return of 128 greedy episodes of at most 1000 steps. Speeds are steps per
second: ours in the second half of training, Brax's in its last stretch between two of its K evaluations. Brax compiles in the
first stretch and may once more in the second: K is 5 or more for its speed, and N a multiple of (K - 1) x 327,680.

--same-recipe is for the ant: ours with Brax's learning rate, minibatch size, number of updates, discount and clip. What is
not the same then: Brax collects 80 steps a phase and cuts them into unrolls of 5 before it estimates advantages, anew for
every minibatch; we collect 10 and estimate once. Brax has a small actor (4 x 32) and a large critic (5 x 256), a tanh-
squashed Gaussian whose width depends on the state and whose entropy is bounded (bonus 1e-2; ours is not squashed, and has
none), leaves out truncated steps, scales rewards by 10 and starts every episode of a row in the same state.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

import tightrope as tr
from tightrope.algorithms.ppo import ppo

TASKS = ("ant", "halfcheetah", "hopper", "walker2d", "humanoid")
PEER = Path(__file__).parent / "peers" / "brax_ppo.py"
SAME: dict[str, Any] = dict(
    num_envs=4096, num_steps=10, num_minibatches=4, update_epochs=4, learning_rate=3e-4, anneal_lr=False, gamma=0.97,
    gae_lambda=0.95, clip_coef=0.3, ent_coef=0.0, vf_coef=0.5, max_grad_norm=None, norm_obs=True, norm_reward=True,
    hidden_sizes=(256, 256), activation="silu",
)  # fmt: skip


def theirs(task: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """In a process of its own, which gives the GPU back."""
    command = [sys.executable, str(PEER), "--env", task, "--seed", str(seed), "--physics", args.physics]
    command += ["--total-timesteps", str(args.total_timesteps), "--num-evals", str(args.num_evals)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(task: str, seed: int, args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, float]:
    agent = tr.PPO(f"brax/{task}", env_kwargs={"backend": args.physics}, seed=seed, device=args.device, **settings)
    half = agent.config.algorithm.phases // 2
    for metrics in ppo(agent.state, agent.config.algorithm):
        if agent.state.phase == half:
            float(metrics.grad_norm)  # waits for the device
            halfway = time.perf_counter()
    float(metrics.grad_norm)
    seconds = time.perf_counter() - halfway
    speed = (agent.state.phase - half) * agent.config.algorithm.batch_size / seconds
    return {"return": agent.evaluate(128).mean, "steps_per_s": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="TASK or NAME=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--physics", default="spring")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--same-recipe", action="store_true")
    parser.add_argument("--total-timesteps", type=int, default=92 * 327_680)
    parser.add_argument("--num-evals", type=int, default=5, help="of Brax, the one before it learns included")
    args = parser.parse_intermixed_args()
    settings = {k: yaml.safe_load(v) for k, _, v in (word.partition("=") for word in args.words if "=" in word)}
    settings = (SAME if args.same_recipe else {}) | {"total_timesteps": args.total_timesteps} | settings
    print("| task | seed | Brax | ours | return, ours / Brax | speed, ours / Brax |\n|---|---|---|---|---|---|")
    for task in [word for word in args.words if "=" not in word] or TASKS:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            own, other = ours(task, seed, args, settings), theirs(task, seed, args)
            ratios = " | ".join(f"{own[name] / other[name]:.2f}" for name in ("return", "steps_per_s"))
            print(f"| {task} | {seed} | {other['return']:.0f} | {own['return']:.0f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
