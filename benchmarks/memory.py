"""What memory reaches and costs: CartPole and Pendulum without their velocities, and the time of a step with and without.

    python benchmarks/memory.py                  # everything: about ten minutes on two cores
    python benchmarks/memory.py cost             # only the time of a step
    python benchmarks/memory.py scores --seeds 5 # only the scores
    python benchmarks/memory.py sb3              # RecurrentPPO of sb3-contrib on CartPole, if it is installed

Times are processor seconds of this process, with one thread, so that other programs disturb them little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import tightrope as tr
from tightrope.algorithms import ALGORITHMS

TASKS = {"CartPoleNoVelocity-v0": ("gru", "lstm", "mingru", None), "PendulumNoVelocity-v0": ("gru", None)}
PHASES, WARM_UP = 40, 5


def scores(seeds: int) -> None:
    """Greedy returns of the presets, over 100 episodes, for each seed."""
    for task, memories in TASKS.items():
        for memory in memories:
            found, seconds = [], []
            for seed in range(1, seeds + 1):
                began = time.process_time()
                agent = tr.PPO(task, memory=memory, seed=seed, device="cpu", threads=1).learn(quiet=True)
                seconds.append(time.process_time() - began)
                found.append(round(agent.evaluate(100).mean, 1))
            print(f"{task} memory {memory}: {found}, {statistics.median(seconds):.0f} s a seed", flush=True)


def phase_seconds(**settings: Any) -> float:
    """Processor seconds of a phase of PPO on CartPole with its preset: the fastest, which other programs disturb least."""
    rows = 1024
    agent = tr.PPO(
        "CartPole-v1", total_timesteps=rows * PHASES, eval_every=0, stop_at_return=None, device="cpu", **settings
    )
    torch.set_num_threads(1)
    times, began = [], time.process_time()
    for _ in ALGORITHMS["ppo"].loop(agent.state, agent.config.algorithm):
        now = time.process_time()
        times.append(now - began)
        began = now
    return min(times[WARM_UP:])


def cost() -> None:
    """The time of a step against a multilayer perceptron of the same hidden layers."""
    rows = 1024
    for sizes in ((32, 32), (64, 64)):
        for share in (False, True):
            common: dict[str, Any] = dict(hidden_sizes=sizes, share_trunk=share)
            plain = phase_seconds(**common)
            words = f"hidden_sizes {list(sizes)}, {'shared' if share else 'separate'} trunks"
            print(f"{words}: {1e6 * plain / rows:.1f} us a step", flush=True)
            for memory in ("gru", "mingru", "lstm"):
                own = phase_seconds(memory=memory, **common)
                print(f"  memory {memory} of 64: {1e6 * own / rows:.1f} us, {own / plain:.1f} times", flush=True)


def sb3() -> None:
    """RecurrentPPO and our PPO with an LSTM, at the settings of RecurrentPPO: steps per processor second."""
    try:
        from sb3_contrib import RecurrentPPO
        from stable_baselines3.common.env_util import make_vec_env
    except ImportError:
        print("sb3-contrib is not installed: pip install sb3-contrib")
        return
    torch.set_num_threads(1)
    envs, steps, total = 8, 128, 8 * 128 * 40
    model = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("CartPole-v1", n_envs=envs), n_steps=steps, batch_size=256, n_epochs=4, device="cpu",
        policy_kwargs=dict(lstm_hidden_size=64),
    )  # fmt: skip
    began = time.process_time()
    model.learn(total)
    print(f"RecurrentPPO, LSTM of 64: {total / (time.process_time() - began):,.0f} steps a second")
    agent = tr.PPO(
        "CartPole-v1", memory="lstm", num_envs=envs, num_steps=steps, num_minibatches=4, update_epochs=4, total_timesteps=total,
        defaults="plain", device="cpu", threads=1, eval_every=0,
    )  # fmt: skip
    began = time.process_time()
    agent.learn(quiet=True)
    print(f"tightrope, LSTM of 64:    {total / (time.process_time() - began):,.0f} steps a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("scores", "cost", "sb3"))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if given.what in (None, "cost"):
        cost()
    if given.what in (None, "scores"):
        scores(given.seeds)
    if given.what in (None, "sb3"):
        sb3()


if __name__ == "__main__":
    main()
