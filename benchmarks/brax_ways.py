"""Brax's ant with the recipe of brax_tasks.py: our speed in each way of execution, and where a phase's time goes.

    python benchmarks/brax_ways.py [--device cuda] [--phases 150] [--modes graph max] [--precision fp32 tf32]

One agent is executed in each way in turn. Steps per second are over `--phases` phases after set-up; collection and learning
are then timed apart, with the device waited for in between, over a few more. Brax's own PPO, next to which brax_tasks.py
measures, multiplies as JAX does, in tf32 on recent NVIDIA GPUs.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from typing import Any

import torch
from brax_tasks import SAME

import tightrope as tr
from tightrope.algorithms import ppo
from tightrope.engine import Runtime, chosen_mode

WARM_UP, APART = 4, 20  # phases


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    synchronize()
    began = time.perf_counter()
    result = function(*args)
    synchronize()
    return result, time.perf_counter() - began


@contextmanager
def clocks() -> Iterator[dict[str, float]]:
    """Seconds that the phases inside spend collecting and learning."""
    seconds = {"collect": 0.0, "learn": 0.0}
    originals = {"collect": Runtime.collect, "learn": Runtime.run}

    def collect(self: Runtime, *args: Any) -> Any:
        result, taken = timed(originals["collect"], self, *args)
        seconds["collect"] += taken
        return result

    def run(self: Runtime, unit: Any, function: Any, *args: Any) -> Any:
        if function.__name__ != "learn":
            return originals["learn"](self, unit, function, *args)
        result, taken = timed(originals["learn"], self, unit, function, *args)
        seconds["learn"] += taken
        return result

    Runtime.collect, Runtime.run = collect, run  # type: ignore[assignment, method-assign]
    try:
        yield seconds
    finally:
        Runtime.collect, Runtime.run = originals["collect"], originals["learn"]  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--phases", type=int, default=150)
    parser.add_argument("--modes", nargs="+", default=["graph", "max"])
    parser.add_argument("--precision", nargs="+", default=["fp32", "tf32"])
    parser.add_argument("--num-envs", type=int, default=SAME["num_envs"])
    args = parser.parse_args()
    settings = SAME | {"num_envs": args.num_envs, "total_timesteps": 10**9}
    agent = tr.PPO("brax/ant", env_kwargs={"backend": "spring"}, seed=1, device=args.device, **settings)
    env, config = agent.state.env, agent.config.algorithm
    print("| mode | precision | set-up, s | steps/s | ms a phase | collecting, ms | learning, ms |\n|" + "---|" * 7)
    for mode, precision in product(args.modes, args.precision):
        agent.state.runtime = Runtime(chosen_mode(mode, env.device), "part", precision, env.device)
        loop = ppo.ppo(agent.state, config)
        _, setup = timed(list, islice(loop, WARM_UP))
        _, steady = timed(list, islice(loop, args.phases))
        with clocks() as seconds:
            list(islice(loop, APART))
        ms = [1e3 * steady / args.phases, *(1e3 * taken / APART for taken in seconds.values())]
        speed = args.phases * config.batch_size / steady
        cells = " | ".join(f"{x:.2f}" for x in ms)
        print(f"| {agent.state.runtime.mode} | {precision} | {setup:.1f} | {speed:,.0f} | {cells} |", flush=True)
    action = torch.zeros(env.num_envs, *env.action.shape, device=env.device)
    for _ in range(WARM_UP):
        env.step(action)
    _, seconds_alone = timed(lambda: [env.step(action) for _ in range(100)])
    print(f"\na step of the environments alone: {10 * seconds_alone:.3f} ms")


if __name__ == "__main__":
    main()
