"""Atari: steps per second of training against those of the engine alone, at the same number of environments.

    python benchmarks/atari_speed.py [--device cuda] [--backend ale] [--num-envs 64 128] [--precision fp32 tf32] [--seconds 15]

The engine alone gets random actions and nothing it answers is looked at. Training is `tightrope train` with the Atari preset
but for the number of environments: collection, four passes over four minibatches and metrics. Both clocks start after three
rollouts' worth of steps: at first all games are young and none ends, and an engine that need not reset any is much
quicker. Ways of execution and precisions take turns on one agent, for it takes a fifth of a second to make a game.
"""

import argparse
import time
from itertools import islice, product

import torch

import tightrope as tr
from tightrope.algorithms.ppo import ppo
from tightrope.engine import Accelerate, Precision, Runtime, chosen_mode
from tightrope.envs import EnvOptions
from tightrope.envs.registry import BACKENDS

WARM_UP = 3  # rollouts: as written, captured, replayed


def engine_speed(backend: str, env_id: str, num_envs: int, seconds: float, steps: int) -> float:
    """Steps per second of the engine alone: random actions, nothing is looked at."""
    env = BACKENDS[backend].module.from_id(env_id, num_envs, "cpu", EnvOptions())
    actions = [env.decode(torch.randint(env.action.n, (num_envs,))) for _ in range(steps)]
    env.reset(seed=0)
    taken = []
    while len(taken) < WARM_UP or sum(taken[WARM_UP:]) < seconds:
        began = time.perf_counter()
        for action in actions:
            env._given = action
            env._send(action)
            env._recv()
        taken.append(time.perf_counter() - began)
    env.close()
    return num_envs * steps * len(taken[WARM_UP:]) / sum(taken[WARM_UP:])


def training_speed(agent: tr.PPO, mode: Accelerate, precision: Precision, seconds: float) -> float:
    """Steps per second of the agent's training from where it is, executed in this way."""
    device = agent.state.env.device
    agent.state.runtime = Runtime(chosen_mode(mode, device), "part", precision, device)
    phases = ppo(agent.state, agent.config.algorithm)
    for metrics in islice(phases, WARM_UP):
        float(metrics.grad_norm)
    began, steps = time.perf_counter(), agent.steps
    while time.perf_counter() - began < seconds:
        float(next(phases).grad_norm)
    return (agent.steps - steps) / (time.perf_counter() - began)


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
        "| envs | accelerate | precision | engine alone, steps/s | training, steps/s | ratio |\n|" + "---|" * 6,
        flush=True,
    )
    for num_envs in args.num_envs:
        engine = engine_speed(args.backend, args.env, num_envs, args.seconds, args.num_steps)
        agent = tr.PPO(
            args.env, backend=args.backend, num_envs=num_envs, num_steps=args.num_steps, device=args.device,
            total_timesteps=10**9, seed=1,
        )  # fmt: skip
        for mode, precision in product(args.accelerate, args.precision):
            training = training_speed(agent, mode, precision, args.seconds)
            row = f"| {num_envs} | {agent.state.runtime.mode} | {precision} "
            print(f"{row}| {engine:,.0f} | {training:,.0f} | {training / engine:.2f} |", flush=True)
        agent.state.env.close()


if __name__ == "__main__":
    main()
