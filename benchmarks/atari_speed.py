"""Atari: steps per second of training against those of the engine alone, at the same number of environments.

    python benchmarks/atari_speed.py [--device cuda] [--backend ale] [--num-envs 64 128] [--precision fp32 tf32] [--seconds 15]

The engine alone gets random actions and nothing it answers is looked at. Training is `tightrope train` with the Atari preset
but for the number of environments: collection, four passes over four minibatches and metrics. Both take turns.
"""

import argparse
import time
from itertools import islice

import torch
from engines_overlapped import engine_alone, made, timed

import tightrope as tr
from tightrope.algorithms.ppo import ppo


def engine_speed(backend: str, env_id: str, num_envs: int, seconds: float, steps: int = 64) -> float:
    env = made(backend, env_id, num_envs, "cpu", 1)
    go, taken = engine_alone(env, steps), []
    timed(go)
    while sum(taken) < seconds:
        taken.append(timed(go))
    env.close()
    return num_envs * steps * len(taken) / sum(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--backend", default="ale")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--accelerate", nargs="+", default=["auto"])
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    print(
        "| envs | accelerate | precision | engine alone, steps/s | training, steps/s | ratio |\n|---|---|---|---|---|---|"
    )
    for num_envs in args.num_envs:
        engine = engine_speed(args.backend, args.env, num_envs, args.seconds / 3)
        for mode in args.accelerate:
            for precision in args.precision:
                agent = tr.PPO(
                    args.env, backend=args.backend, num_envs=num_envs, num_steps=args.num_steps, device=args.device,
                    precision=precision, accelerate=mode, total_timesteps=10**9, seed=1,
                )  # fmt: skip
                phases = ppo(agent.state, agent.config.algorithm)
                for metrics in islice(phases, 3):  # as written, captured, replayed
                    float(metrics.grad_norm)
                began, steps = time.perf_counter(), agent.steps
                while time.perf_counter() - began < args.seconds:
                    float(next(phases).grad_norm)
                training = (agent.steps - steps) / (time.perf_counter() - began)
                agent.state.env.close()
                row = f"| {num_envs} | {agent.state.execution.mode} | {precision} "
                print(f"{row}| {engine:,.0f} | {training:,.0f} | {training / engine:.2f} |", flush=True)
                del agent, phases
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
