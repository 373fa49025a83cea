"""Training speed on small networks and Atari: Tightrope against Stable-Baselines3, the same recipes, in one run.

    python benchmarks/engine_speed.py --sb3-python PATH/TO/VENV/bin/python [--repeats 3] [W2 W3 W4 W5 W6]

W2  CartPole-v1, 4 envs x 128 steps, 4 minibatches x 4 epochs
W3  LunarLander-v3, 16 envs x 1024 steps, minibatches of 64, 4 epochs
W4  HalfCheetah-v5, 1 env x 2048 steps, 32 minibatches x 10 epochs, observations and returns normalised
W5  HalfCheetah-v5, 64 envs x 32 steps, the same batch
W6  Breakout, 8 envs x 128 steps, 4 minibatches x 4 epochs, the convolutional network of 2015

Steps per second of training alone (imports and construction left out), one torch thread each (two on W6), taking turns in
fresh processes; with `--clock cpu`, per second of processor time, for a machine that others use too. On W3 to W5 both run
Gymnasium's environments one after the other in the process; the row "envpool" is ours on that engine, with one thread. On W2
the peer has Gymnasium's CartPole and we have ours, on W6 the peer has ale-py in Gymnasium's wrappers and we have ale-py's
vector engine. The peer needs a virtual environment of its own: pip install torch==2.13.0 stable-baselines3
"gymnasium[box2d,mujoco]" ale-py opencv-python-headless.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHEETAH: dict[str, Any] = dict(update_epochs=10, num_minibatches=32, learning_rate=3e-4, ent_coef=0.0)
NORMALISED: dict[str, Any] = dict(norm_obs=True, norm_reward=True)
LUNAR: dict[str, Any] = dict(
    num_envs=16, num_steps=1024, num_minibatches=256, update_epochs=4, gamma=0.999, gae_lambda=0.98, ent_coef=0.01
)
CARTPOLE: dict[str, Any] = dict(
    num_envs=4, num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4, ent_coef=0.01, clip_vloss=True,
    hidden_sizes=(64, 64), anneal_clip=False,
)  # fmt: skip
BREAKOUT: dict[str, Any] = dict(
    num_envs=8, num_steps=128, num_minibatches=4, update_epochs=4, learning_rate=2.5e-4, clip_coef=0.1, ent_coef=0.01,
    anneal_clip=False,
)  # fmt: skip
ENGINES = {"W2": ["tensor"], "W6": ["ale"]}  # elsewhere Gymnasium and EnvPool
WORKLOADS: dict[str, tuple[str, int, dict[str, Any]]] = {  # env, steps to time, our settings
    "W2": ("CartPole-v1", 60 * 512, CARTPOLE),
    "W3": ("LunarLander-v3", 3 * 16_384, dict(**LUNAR, learning_rate=3e-4, anneal_lr=False)),
    "W4": ("HalfCheetah-v5", 6 * 2048, dict(num_envs=1, num_steps=2048, **CHEETAH, **NORMALISED)),
    "W5": ("HalfCheetah-v5", 12 * 2048, dict(num_envs=64, num_steps=32, **CHEETAH, **NORMALISED)),
    "W6": ("BreakoutNoFrameskip-v4", 3 * 1024, BREAKOUT),
}


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def tightrope(workload: str, seed: int, backend: str, clock: str) -> None:
    """One timing of ours. The schedule is that of a million steps; training stops after the steps to time."""
    import torch

    import tightrope as tr
    from tightrope.algorithms.ppo import ppo

    torch.set_num_threads(2 if workload == "W6" else 1)
    env, steps, settings = WORKLOADS[workload]
    threads = {"env_kwargs": {"num_threads": 1}} if backend == "envpool" else {}
    agent = tr.PPO(env, seed=seed, device="cpu", backend=backend, total_timesteps=1_000_000, **settings, **threads)
    now = CLOCKS[clock]
    began = now()
    for _ in ppo(agent.state, agent.config.algorithm):
        if agent.steps >= steps:
            break
    print(json.dumps({"steps_per_s": agent.steps / (now() - began)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--sb3-python", type=Path, help="interpreter of a virtual environment with Stable-Baselines3")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: steps per second of processor time")
    parser.add_argument("--only", nargs=3, metavar=("WORKLOAD", "SEED", "BACKEND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        tightrope(args.only[0], int(args.only[1]), args.only[2], args.clock)
        return
    ours = [sys.executable, __file__, "--clock", args.clock]
    print("| workload | who | steps/s, each run | median | ratio |\n|---|---|---|---|---|")
    for workload in args.workloads:
        env, steps, _ = WORKLOADS[workload]
        commands: dict[str, list[str]] = {
            f"tightrope, {backend}": [*ours, "--only", workload, "{seed}", backend]
            for backend in ENGINES.get(workload, ["gymnasium", "envpool"])
        }
        if args.sb3_python:
            peer = [str(args.sb3_python), str(HERE / "peers/sb3_engine_speed.py"), workload, "{seed}", str(steps)]
            commands["stable-baselines3"] = [*peer, args.clock]
        speeds: dict[str, list[float]] = {name: [] for name in commands}
        for seed in range(1, args.repeats + 1):
            for name, command in commands.items():
                words = [word.format(seed=seed) for word in command]
                out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                speeds[name].append(json.loads(out.splitlines()[-1])["steps_per_s"])
        base = statistics.median(speeds.get("stable-baselines3", [float("nan")]))
        for name, values in speeds.items():
            middle = statistics.median(values)
            each = ", ".join(f"{value:,.0f}" for value in values)
            print(f"| {workload} {env} | {name} | {each} | {middle:,.0f} | {middle / base:.2f} |", flush=True)


if __name__ == "__main__":
    main()
