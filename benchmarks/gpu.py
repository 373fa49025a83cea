"""Tightrope on a GPU, CartPole, in every way of executing it: speed, agreement, learning curves, memory, time to solve.

    python benchmarks/gpu.py speed [--sizes 1024x32 8192x32 65536x16] [--precision fp32 tf32] [--modes graph max] [--subclass]
    python benchmarks/gpu.py agreement | curves | memory | classic [--modes eager graph max]
    python benchmarks/gpu.py solve [--seeds 5] [--first-seed 411]

`speed` prints the lines of JSON that the references print, with the recipe and the clock of references/recipe.py; the
others print a Markdown table. `benchmarks/speed.py gpu` runs them side by side with the references. With --device cpu all
of it runs, in the modes there are on a CPU, to try the script out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tightrope as tr
from tightrope.algorithms.ppo import PPOMetrics, ppo

sys.path.insert(0, str(Path(__file__).parent / "references"))

import recipe

WIDE = [  # CartPole where environments cost next to nothing: fifty phases; found on seeds 1 to 28
    "--num-envs", "512", "--num-steps", "32", "--num-minibatches", "8", "--update-epochs", "4", "--learning-rate", "4e-3",
    "--total-timesteps", "819200", "--gamma", "0.99", "--gae-lambda", "0.95", "--clip-coef", "0.2", "--no-anneal-clip",
    "--ent-coef", "0",
]  # fmt: skip
PLAN = 100_000  # phases the learning rate anneals over: more than a measurement takes
SIZE = (1024, 32)  # of the checks that need only one
RECIPE: dict[str, Any] = dict(
    num_minibatches=recipe.MINIBATCHES,
    update_epochs=recipe.EPOCHS,
    hidden_sizes=(recipe.HIDDEN, recipe.HIDDEN),
    gamma=recipe.GAMMA,
    gae_lambda=recipe.LAMBDA,
    clip_coef=recipe.CLIP,
    anneal_clip=False,
    ent_coef=recipe.ENTROPY,
    vf_coef=recipe.VALUE,
    max_grad_norm=recipe.MAX_NORM,
)


class Centered(tr.envs.CartPole):
    """A user's own reward, as in the README: being in the middle pays."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs() / 2.4


def agent(
    size: tuple[int, int], mode: str, device: str, precision: str = "fp32", phases: int = PLAN, **settings: Any
) -> tr.PPO:
    """The recipe of the references, executed in one of our ways."""
    num_envs, num_steps = size
    settings = dict(env="CartPole-v1", learning_rate=recipe.WIDE_RATE, seed=1) | settings
    return tr.PPO(
        settings.pop("env"), num_envs=num_envs, num_steps=num_steps, total_timesteps=phases * num_envs * num_steps,
        device=device, accelerate=mode, precision=precision, **RECIPE, **settings,
    )  # fmt: skip


def phases_of(agent: tr.PPO) -> Iterator[PPOMetrics]:
    return ppo(agent.state, agent.config.algorithm)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def clear() -> None:
    """Before a clock starts: forget what was compiled for other sizes, and have the device itself ready."""
    torch.compiler.reset()
    synchronize()


def speed(
    size: tuple[int, int], mode: str, precision: str, seconds: float, device: str, subclass: bool = False
) -> recipe.Result:
    """Set-up is from construction to the end of the second phase, by which all is captured and compiled."""
    clear()
    began = time.perf_counter()
    it = agent(size, mode, device, precision, env=Centered if subclass else "CartPole-v1")
    loop = phases_of(it)
    for _ in range(2):
        next(loop)
    synchronize()
    setup = time.perf_counter() - began
    per_phase = recipe.steady(lambda: next(loop), synchronize, seconds)
    episodes, _, lengths = torch.stack([next(loop).episodes for _ in range(recipe.LAST)]).sum(0).tolist()
    name = f"tightrope {mode}" + (", own reward" if subclass else "")
    return recipe.Result(
        name, *size, precision, round(setup, 2), round(size[0] * size[1] / per_phase), round(per_phase * 1e3, 3),
        recipe.mean_length(episodes, lengths),
    )  # fmt: skip


def agreement(modes: list[str], device: str, phases: int = 3) -> None:
    """How far apart the parameters are after a few phases of the same seed."""
    parameters: dict[str, Tensor] = {}
    for mode in modes:
        clear()
        it = agent(SIZE, mode, device)
        loop = phases_of(it)
        for _ in range(phases):
            next(loop)
        parameters[mode] = it.state.optimizer.flat.double().cpu()
    base = parameters[modes[0]]
    print(f"| parameters after {phases} phases | largest difference from {modes[0]} | relative |\n|---|---|---|")
    for mode, flat in parameters.items():
        away = flat - base
        print(f"| {mode} | {away.abs().max():.1e} | {away.norm() / base.norm():.1e} |")


def curves(modes: list[str], device: str, seeds: int, phases: int = 30) -> None:
    """Mean length of the episodes that finished in a phase: mean over seeds, and the range."""
    shown = [1, *range(5, phases + 1, 5)]
    print("| mean length in phase | " + " | ".join(map(str, shown)) + " |\n|---" + "|---" * len(shown) + "|")
    for mode in modes:
        runs = torch.stack([curve(mode, device, seed, phases) for seed in range(1, seeds + 1)])  # (seeds, phases)
        cells = [
            f"{column.mean():.0f} ({column.min():.0f} to {column.max():.0f})"
            for column in runs[:, [k - 1 for k in shown]].T
        ]
        print(f"| {mode} | " + " | ".join(cells) + " |", flush=True)


def curve(mode: str, device: str, seed: int, phases: int) -> Tensor:
    clear()
    it = agent(SIZE, mode, device, phases=phases, seed=seed)
    episodes = torch.stack([metrics.episodes.clone() for metrics in phases_of(it)]).cpu()  # (phases, 3)
    return episodes[:, 2] / episodes[:, 0]


def memory(modes: list[str], device: str, early: int = 10, late: int = 1000) -> None:
    """Whether anything is kept from phase to phase."""
    print(f"| MiB in use (reserved) after | {early} phases | {late:,} phases |\n|---|---|---|")
    for mode in modes:
        clear()
        it = agent(SIZE, mode, device)
        cells = []
        for done, _ in enumerate(phases_of(it), start=1):
            if done in (early, late):
                synchronize()
                used, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
                cells.append(f"{used / 2**20:.2f} ({reserved / 2**20:.0f})")
            if done == late:
                break
        print(f"| {mode} | " + " | ".join(cells) + " |", flush=True)


def classic(modes: list[str], device: str) -> None:
    """The classic recipe from start to end, next to the whole-loop JAX program where there is JAX."""
    size = (recipe.CLASSIC_ENVS, recipe.CLASSIC_STEPS)
    phases = recipe.CLASSIC_TOTAL // (size[0] * size[1])
    print("| 4 x 128, 500,000 steps | set-up, s | training, s | mean length at the end |\n|---|---|---|---|")
    for mode in modes:
        clear()
        began = time.perf_counter()
        loop = phases_of(agent(size, mode, device, phases=phases, learning_rate=recipe.CLASSIC_RATE))
        for _ in range(2):
            next(loop)
        synchronize()
        ready = time.perf_counter()
        episodes = [metrics.episodes.clone() for metrics in loop]
        synchronize()
        training = (time.perf_counter() - ready) * phases / len(episodes)  # the first two phases count as steady ones
        number, _, lengths = torch.stack(episodes[-recipe.LAST :]).sum(0).tolist()
        print(f"| tightrope {mode} | {ready - began:.1f} | {training:.2f} | {recipe.mean_length(number, lengths)} |")
    words = [sys.executable, str(Path(__file__).parent / "references" / "jax_loop.py"), "--classic"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"jax_loop was left out: {done.stderr.strip().splitlines()[-1]}")
        return
    row = json.loads(done.stdout.splitlines()[-1])
    training = phases * row["ms_per_phase"] / 1e3
    print(f"| jax_loop | {row['setup_s']:.1f} | {training:.2f} | {row['mean_length']} |")


def solve(device: str, seeds: range, modes: list[str]) -> None:
    """From a shell, as a user runs it: training alone, and everything from the start of the process to its end."""
    columns = ["CartPole-v1", "seed", "set-up, s", "training, s", "whole process, s", "greedy return of 100"]
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for mode in modes:
        rows = []
        for seed in seeds:
            rows.append(solved(device, seed, mode))
            print(f"| {mode} | {seed} | " + " | ".join(f"{x:.2f}" for x in rows[-1]) + " |", flush=True)
        set_up, training, whole, _ = (statistics.median(column) for column in zip(*rows, strict=True))
        held = sum(score >= 495 for *_, score in rows)
        print(
            f"| {mode} | median | {set_up:.2f} | {training:.2f} | {whole:.2f} | {held} of {len(seeds)} at 495 or more |",
            flush=True,
        )


def solved(device: str, seed: int, mode: str) -> tuple[float, float, float, float]:
    """Seconds to the end of the second phase, from there to the end of training, and of the whole process; the score."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "tightrope", "train", "CartPole-v1", "--device", device, "--quiet"]
        command += ["--accelerate", mode, "--seed", str(seed), "--run-dir", str(run_dir), *WIDE]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        whole = time.perf_counter() - began
        times = [json.loads(line)["time"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        return times[1], times[-1] - times[1], whole, tr.load(run_dir).evaluate(100).mean


def main() -> None:
    parser = recipe.arguments(__doc__)
    parser.add_argument("what", choices=("speed", "agreement", "curves", "memory", "classic", "solve"))
    parser.add_argument("--modes", nargs="+", help="ways of execution: eager, compile, graph, max, auto")
    parser.add_argument("--subclass", action="store_true", help="speed: a subclass of CartPole with its own reward")
    parser.add_argument("--seeds", type=int, default=5, help="curves, solve: how many")
    parser.add_argument("--first-seed", type=int, default=411, help="solve: the first of them")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: --device cpu --modes eager tries the script out")
    run(args)


def run(args: argparse.Namespace) -> None:
    if args.what == "speed":
        for num_envs, num_steps, precision in recipe.workloads(args):
            for mode in args.modes or ["graph", "max"]:
                size = (num_envs, num_steps)
                speed(size, mode, precision, args.seconds, args.device, args.subclass).print()
    elif args.what == "solve":
        solve(args.device, range(args.first_seed, args.first_seed + args.seeds), args.modes or ["auto"])
    elif args.what == "curves":
        curves(args.modes or ["eager", "graph", "max"], args.device, args.seeds)
    else:
        {"agreement": agreement, "memory": memory, "classic": classic}[args.what](
            args.modes or ["eager", "graph", "max"], args.device
        )


if __name__ == "__main__":
    main()
