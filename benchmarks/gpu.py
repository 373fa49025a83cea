"""Tightrope on a GPU, CartPole, in every way of executing it: speed, agreement, memory, time to solve.

    python benchmarks/gpu.py speed [--sizes 1024x32 8192x32 65536x16] [--precision fp32 tf32] [--modes graph max] [--subclass]
    python benchmarks/gpu.py steps [--sizes 8192x32] [--modes eager graph]
    python benchmarks/gpu.py agreement | memory | classic [--modes eager graph max]
    python benchmarks/gpu.py solve [--seeds 5] [--first-seed 411]

`speed` prints the lines of JSON that the references print, with the recipe and the clock of references/recipe.py;
`benchmarks/speed.py gpu` runs it side by side with them. The others print a Markdown table. `steps` compares whole phases
with and without the kernel of a step of the environments and the orders without a sort. With --device cpu all of it runs, in
the modes there are on a CPU, to try the script out.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tightrope as tr
from tightrope.algorithms.ppo import PPOMetrics, ppo
from tightrope.types import Box, MultiDiscrete

sys.path.insert(0, str(Path(__file__).parent / "references"))

import recipe
from torch_pieces import synchronize

WIDE = [  # CartPole where environments cost next to nothing: fifty phases; found on seeds 1 to 28
    "--num-envs", "512", "--num-steps", "32", "--num-minibatches", "8", "--update-epochs", "4", "--learning-rate", "4e-3",
    "--total-timesteps", "819200", "--gamma", "0.99", "--gae-lambda", "0.95", "--clip-coef", "0.2", "--no-anneal-clip",
    "--ent-coef", "0",
]  # fmt: skip
PLAN = 100_000  # phases the learning rate anneals over: more than a measurement takes
SIZE = (1024, 32)  # of the checks that need only one
RECIPE: dict[str, Any] = dict(
    num_minibatches=recipe.MINIBATCHES, update_epochs=recipe.EPOCHS, hidden_sizes=(recipe.HIDDEN, recipe.HIDDEN),
    gamma=recipe.GAMMA, gae_lambda=recipe.LAMBDA, clip_coef=recipe.CLIP, anneal_clip=False, ent_coef=recipe.ENTROPY,
    vf_coef=recipe.VALUE, max_grad_norm=recipe.MAX_NORM,
)  # fmt: skip


class Centered(tr.envs.CartPole):
    """A user's own reward, as in the README: being in the middle pays."""

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state[:, 0].abs() / 2.4


class Levers(tr.envs.TensorEnv):
    """Several choices: each lever moves one number towards or away from zero."""

    observation, action = Box((4,)), MultiDiscrete((3, 3, 3, 3))
    noise_size, time_limit = 4, 100

    def initial(self, noise: Tensor) -> Tensor:
        return 2 * noise - 1

    def advance(self, state: Tensor, action: Tensor) -> Tensor:
        return (state + 0.1 * (action.to(state.dtype) - 1)).clamp(-2, 2)

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return 1 - next_state.square().mean(1)


def agent(size: tuple[int, int], mode: str, device: str, phases: int = PLAN, **settings: Any) -> tr.PPO:
    """The recipe of the references, executed in one of our ways."""
    num_envs, num_steps = size
    given = RECIPE | dict(env="CartPole-v1", learning_rate=recipe.WIDE_RATE, seed=1) | settings
    steps = phases * num_envs * num_steps
    return tr.PPO(
        given.pop("env"), num_envs=num_envs, num_steps=num_steps, total_timesteps=steps, device=device, accelerate=mode, **given
    )  # fmt: skip


def begun(size: tuple[int, int], mode: str, device: str, **settings: Any) -> tuple[Iterator[PPOMetrics], float]:
    """The phases of an agent after its second, by which all is captured and compiled, and the seconds until then."""
    torch.compiler.reset()  # what was compiled for other sizes
    synchronize()  # the device itself is not a part of set-up
    began = time.perf_counter()
    it = agent(size, mode, device, **settings)
    loop = ppo(it.state, it.config.algorithm)
    next(loop)
    next(loop)
    synchronize()
    return loop, time.perf_counter() - began


def speed(
    size: tuple[int, int], mode: str, precision: str, seconds: float, device: str, subclass: bool
) -> recipe.Result:
    env = Centered if subclass else "CartPole-v1"
    loop, setup = begun(size, mode, device, precision=precision, env=env)
    per_phase = recipe.steady(lambda: next(loop), synchronize, seconds)
    episodes, _, lengths = torch.stack([next(loop).episodes for _ in range(recipe.LAST)]).sum(0).tolist()
    name = f"tightrope {mode}" + (", own reward" if subclass else "")
    return recipe.result(name, size, precision, setup, per_phase, episodes, lengths)


def steps(size: tuple[int, int], modes: list[str], device: str, seconds: float) -> None:
    """Whole phases with and without the kernel of a step of the environments, one after the other in the same process."""
    print(
        f"| {size[0]} x {size[1]} | mode | plain steps and a sort, M steps/s | kernels | ratio |\n|---|---|---|---|---|"
    )
    for env in ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", Centered, Levers):
        name = env if isinstance(env, str) else env.__name__
        for mode in modes:
            rates, refusal = [], None
            for plain in (True, False):
                it = agent(size, mode, device, env=env)
                runtime, loop = it.state.runtime, ppo(it.state, it.config.algorithm)
                if plain:
                    runtime.env_steps.step, runtime.has_orders = None, False
                elif runtime.env_steps.step is None:
                    refusal = runtime.env_steps.refusal or "no device for kernels"
                for _ in range(3):  # plain, capture, replay
                    next(loop)
                synchronize()
                per_phase = recipe.steady(lambda loop=loop: next(loop), synchronize, seconds)
                rates.append(size[0] * size[1] / per_phase / 1e6)
            print(
                f"| {name} | {mode} | {rates[0]:.2f} | {refusal or f'{rates[1]:.2f}'} | {rates[1] / rates[0]:.2f} |",
                flush=True,
            )


def agreement(modes: list[str], device: str, phases: int = 3) -> None:
    """How far apart the parameters are after a few phases of the same seed."""
    base = None
    print(f"| parameters after {phases} phases | largest difference from {modes[0]} | relative |\n|---|---|---|")
    for mode in modes:
        torch.compiler.reset()
        it = agent(SIZE, mode, device)
        for _ in islice(ppo(it.state, it.config.algorithm), phases):
            pass
        flat = it.state.optimizer.flat.double().cpu()
        base = flat if base is None else base
        print(f"| {mode} | {(flat - base).abs().max():.1e} | {(flat - base).norm() / base.norm():.1e} |", flush=True)


def memory(modes: list[str], device: str, early: int = 10, late: int = 1000) -> None:
    """Whether anything is kept from phase to phase."""
    print(f"| MiB in use (reserved) after | {early} phases | {late:,} phases |\n|---|---|---|")
    for mode in modes:
        loop, _ = begun(SIZE, mode, device)
        cells = []
        for phases in (early - 2, late - early):
            for _ in islice(loop, phases):
                pass
            synchronize()
            used, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            cells.append(f"{used / 2**20:.2f} ({reserved / 2**20:.0f})")
        print(f"| {mode} | " + " | ".join(cells) + " |", flush=True)


def classic(modes: list[str], device: str) -> None:
    """The classic recipe from start to end, next to the whole-loop JAX program where there is JAX."""
    size = (recipe.CLASSIC_ENVS, recipe.CLASSIC_STEPS)
    phases = recipe.CLASSIC_TOTAL // (size[0] * size[1])
    print("| 4 x 128, 500,000 steps | set-up, s | training, s | mean length at the end |\n|---|---|---|---|")
    for mode in modes:
        loop, setup = begun(size, mode, device, phases=phases, learning_rate=recipe.CLASSIC_RATE)
        ready = time.perf_counter()
        episodes = [metrics.episodes.clone() for metrics in loop]
        synchronize()
        training = (time.perf_counter() - ready) * phases / len(episodes)  # the first two phases count as steady ones
        number, _, lengths = torch.stack(episodes[-recipe.LAST :]).sum(0).tolist()
        print(f"| tightrope {mode} | {setup:.1f} | {training:.2f} | {recipe.mean_length(number, lengths)} |")
    words = [sys.executable, str(Path(__file__).parent / "references" / "jax_loop.py"), "--classic"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"jax_loop was left out: {done.stderr.strip().splitlines()[-1]}")
        return
    row = json.loads(done.stdout.splitlines()[-1])
    print(f"| jax_loop | {row['setup_s']:.1f} | {phases * row['ms_per_phase'] / 1e3:.2f} | {row['mean_length']} |")


def solve(device: str, seeds: range, modes: list[str]) -> None:
    """From a shell, as a user runs it: training alone, and everything from the start of the process to its end."""
    columns = ["CartPole-v1", "seed", "set-up, s", "training, s", "whole process, s", "greedy return of 100"]
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for mode in modes:
        rows = []
        for seed in seeds:
            rows.append(solved(device, seed, mode))
            print(f"| {mode} | {seed} | " + " | ".join(f"{x:.2f}" for x in rows[-1]) + " |", flush=True)
        medians = " | ".join(f"{statistics.median(column):.2f}" for column in list(zip(*rows, strict=True))[:3])
        held = sum(score >= 495 for *_, score in rows)
        print(f"| {mode} | median | {medians} | {held} of {len(seeds)} at 495 or more |", flush=True)


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
    parser.add_argument("what", choices=("speed", "steps", "agreement", "memory", "classic", "solve"))
    parser.add_argument("--modes", nargs="+", help="ways of execution: eager, compile, graph, max, auto")
    parser.add_argument("--subclass", action="store_true", help="speed: a subclass of CartPole with its own reward")
    parser.add_argument("--seeds", type=int, default=5, help="solve: how many")
    parser.add_argument("--first-seed", type=int, default=411, help="solve: the first of them")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: --device cpu --modes eager tries the script out")
    if args.what == "speed":
        for num_envs, num_steps, precision in recipe.workloads(args):
            for mode in args.modes or ["graph", "max"]:
                speed((num_envs, num_steps), mode, precision, args.seconds, args.device, args.subclass).print()
    elif args.what == "steps":
        for size in dict.fromkeys((num_envs, num_steps) for num_envs, num_steps, _ in recipe.workloads(args)):
            steps(size, args.modes or ["eager", "graph"], args.device, args.seconds)
    elif args.what == "solve":
        solve(args.device, range(args.first_seed, args.first_seed + args.seeds), args.modes or ["auto"])
    else:
        check = {"agreement": agreement, "memory": memory, "classic": classic}[args.what]
        check(args.modes or ["eager", "graph", "max"], args.device)


if __name__ == "__main__":
    main()
