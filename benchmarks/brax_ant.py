"""Brax's ant after 10 million steps: Brax's own PPO, then ours with the same recipe, and the ratio of their greedy returns.

    python benchmarks/brax_ant.py [--device cuda] [--physics spring] [--seeds 3] [--first-seed 1] [--preset]
                                  [--total-timesteps N] [--num-evals K] [...settings]

Both learn for 31 x 327,680 steps, unless told otherwise, with 4096 environments, 128 updates on minibatches of 10,240 for
every 327,680 steps, learning rate 3e-4, discount 0.97, and are scored by the mean return of 128 greedy episodes of at most
1000 steps. Seconds are those of training, compilation included; steps per second are ours in the second half of training and
Brax's in its last stretch between two of its K evaluations. Brax compiles in the first stretch and may once more in the
second: for its speed give 5 or more, and a multiple of (K - 1) x 327,680 steps. With --preset a third row is
`tightrope train brax/ant` with its own learning rate and schedule.

What is not the same: Brax collects 80 steps a phase and cuts them into unrolls of 5 before it estimates advantages, anew for
every minibatch; we collect 10 and estimate once. Brax has a small actor (4 x 32) and a large critic (5 x 256), a
tanh-squashed Gaussian whose width depends on the state and whose entropy is bounded (bonus 1e-2; ours is not squashed, and
has none), leaves out truncated steps, scales rewards by 10 and starts every episode of a row in the same state.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import tightrope as tr
from tightrope.algorithms.ppo import ppo

PEER = Path(__file__).parent / "peers" / "brax_ppo.py"
RECIPE: dict[str, Any] = dict(
    num_envs=4096,
    num_steps=10,
    num_minibatches=4,
    update_epochs=4,
    learning_rate=3e-4,
    anneal_lr=False,
    gamma=0.97,
    gae_lambda=0.95,
    clip_coef=0.3,
    ent_coef=0.0,
    vf_coef=0.5,
    max_grad_norm=None,
    norm_obs=True,
    norm_reward=True,
    hidden_sizes=(256, 256),
    activation="silu",
)


def theirs(seed: int, physics: str, steps: int, evals: int) -> dict[str, Any]:
    """In a process of its own, which gives the GPU back."""
    command = [sys.executable, str(PEER), "--seed", str(seed), "--physics", physics]
    command += ["--total-timesteps", str(steps), "--num-evals", str(evals)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(seed: int, physics: str, device: str, settings: dict[str, Any], name: str = "tightrope") -> dict[str, Any]:
    began = time.perf_counter()
    agent = tr.PPO("brax/ant", env_kwargs={"backend": physics}, seed=seed, device=device, **settings)
    half = agent.config.algorithm.phases // 2
    for metrics in ppo(agent.state, agent.config.algorithm):
        if agent.state.phase == half:
            float(metrics.grad_norm)  # waits for the device
            halfway = time.perf_counter()
    float(metrics.grad_norm)
    ended = time.perf_counter()
    seconds = ended - began
    steps_per_s = (agent.state.phase - half) * agent.config.algorithm.batch_size / (ended - halfway)
    score = agent.evaluate(128)
    return {
        "library": name,
        "seed": seed,
        "return": score.mean,
        "std": score.std,
        "length": score.mean_length,
        "seconds": seconds,
        "steps_per_s": steps_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--physics", default="spring")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--preset", action="store_true")
    parser.add_argument("--total-timesteps", type=int, default=31 * 327_680)
    parser.add_argument("--num-evals", type=int, default=3, help="of Brax, the one before it learns included")
    args, rest = parser.parse_known_args()
    names, values = rest[::2], rest[1::2]
    steps = {"total_timesteps": args.total_timesteps}
    settings = RECIPE | steps | {n.removeprefix("--").replace("-", "_"): v for n, v in zip(names, values, strict=True)}
    returns: dict[str, list[float]] = {}
    speeds: dict[str, list[float]] = {}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        peer = theirs(seed, args.physics, args.total_timesteps, args.num_evals)
        results = [peer, ours(seed, args.physics, args.device, settings)]
        if args.preset:
            results.append(ours(seed, args.physics, args.device, steps, "tightrope preset"))
        for result in results:
            print(json.dumps(result), flush=True)
            returns.setdefault(result["library"], []).append(result["return"])
            speeds.setdefault(result["library"], []).append(result["steps_per_s"])
    for what, figures in (("return", returns), ("steps_per_s", speeds)):
        ratios = {f"{name} / brax": mean(values) / mean(figures["brax"]) for name, values in figures.items()}
        print(json.dumps({what: ratios}))


if __name__ == "__main__":
    main()
