"""Environments without a preset, trained with no flags: what the defaults for each kind of environment reach.

    python benchmarks/defaults.py [TASK ...] [--seeds 3] [--first-seed 11] [--jobs 2] [--plain] [NAME=VALUE ...]

Scores are means of 100 greedy episodes. `--plain` trains with the plain defaults of the algorithm instead, for comparison.
NAME=VALUE sets a setting of every run. MinAtar and MiniGrid need `pip install minatar minigrid`; tasks whose package is
missing are skipped by name.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import yaml


class Quiz(gym.Env):
    """Ask something in every step and pay for the right answer, 1 at most. 20 steps, so at best 20."""

    def ask(self) -> Any:
        """The observation that asks; self.answer is what is right."""
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.ask(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward = float((np.asarray(action) == self.answer).mean())
        return self.ask(), reward, self.t >= 20, False, {}


class CopyBits(Quiz):
    """Repeat four bits, which are shown among other things."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (64, 64, 3), np.uint8),
        vector=gym.spaces.Box(-1, 1, (4,), np.float32),
        mode=gym.spaces.Discrete(3),
    )
    action_space = gym.spaces.MultiBinary(4)

    def ask(self) -> dict[str, Any]:
        self.answer = self.np_random.integers(0, 2, 4)
        image = np.full((64, 64, 3), 128, np.uint8)
        vector = (2 * self.answer - 1).astype(np.float32)
        return {"image": image, "vector": vector, "mode": self.np_random.integers(3)}


class ReadImage(CopyBits):
    """The same, but the bits are bright quarters of the picture, and the vector is noise."""

    def ask(self) -> dict[str, Any]:
        obs = super().ask()
        obs["image"] = (
            np.kron(self.answer.reshape(2, 2), np.full((32, 32), 255))[..., None].repeat(3, 2).astype(np.uint8)
        )
        obs["vector"] = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return obs


class BrightSide(Quiz):
    """A picture of real numbers, bright on the left or on the right: choose that side."""

    observation_space = gym.spaces.Box(0.0, 1.0, (84, 84, 3), np.float32)
    action_space = gym.spaces.Discrete(2)

    def ask(self) -> Any:
        self.answer = int(self.np_random.integers(2))
        image = self.np_random.uniform(0, 0.5, (84, 84, 3)).astype(np.float32)
        image[:, 42 * self.answer : 42 * self.answer + 42] += 0.3
        return image


def minatar(game: str) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        from minatar.gym import BaseEnv

        return gym.wrappers.TimeLimit(BaseEnv(game, use_minimal_action_set=True), 5000)

    return make


def minigrid(name: str) -> Callable[[], gym.Env]:
    def make() -> gym.Env:
        import minigrid  # noqa: F401
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(gym.make(f"MiniGrid-{name}-v0"))

    return make


def unknown(env_id: str, **kwargs: Any) -> Callable[[], gym.Env]:
    """An environment that has a preset, as if it had none: a factory is not looked up by its id."""
    return lambda: gym.make(env_id, **kwargs)


class Task(NamedTuple):
    env: Any  # an id, or a factory of environments
    note: str = ""
    settings: dict[str, Any] | None = None


SHORT = {"total_timesteps": 50_000}
TASKS = {
    "Taxi": Task("Taxi-v4", "8 at best"),
    "CliffWalking": Task("CliffWalking-v1", "-13 at best", {"max_episode_steps": 200}),
    "FrozenLake": Task("FrozenLake-v1", "0.74 at best"),
    "FrozenLake8x8": Task("FrozenLake8x8-v1", "about 0.85 at best"),
    "Blackjack": Task("Blackjack-v1", "about -0.04 at best"),
    "MountainCarContinuous": Task("MountainCarContinuous-v0", "solved at 90"),
    "Pusher": Task("Pusher-v5", "solved at 0, about -23 known of PPO"),
    "Breakout (MinAtar)": Task(minatar("breakout")),
    "SpaceInvaders (MinAtar)": Task(minatar("space_invaders")),
    "Asterix (MinAtar)": Task(minatar("asterix")),
    "DoorKey-5x5 (MiniGrid)": Task(minigrid("DoorKey-5x5"), "0.97 at best"),
    "Empty-8x8 (MiniGrid)": Task(minigrid("Empty-8x8"), "0.96 at best"),
    "copy bits": Task(CopyBits, "20 at best, 10 by chance", SHORT),
    "read image": Task(ReadImage, "20 at best, 10 by chance", SHORT),
    "bright side": Task(BrightSide, "20 at best, 10 by chance", SHORT),
    # with a preset of their own, which is left out here
    "CartPole": Task(unknown("CartPole-v1"), "500 at best"),
    "Acrobot": Task(unknown("Acrobot-v1"), "about -80"),
    "BipedalWalker": Task(unknown("BipedalWalker-v3"), "solved at 300"),
    "LunarLander": Task(unknown("LunarLander-v3"), "solved at 200"),
    "LunarLanderContinuous": Task(unknown("LunarLander-v3", continuous=True), "solved at 200"),
    "Pendulum": Task(unknown("Pendulum-v1"), "about -150"),
    "Hopper": Task(unknown("Hopper-v5")),
    "Swimmer": Task(unknown("Swimmer-v5")),
    "HalfCheetah": Task(unknown("HalfCheetah-v5")),
    "Walker2d": Task(unknown("Walker2d-v5")),
}


def one(job: tuple[str, str, int, dict[str, Any]]) -> dict[str, Any]:
    """Train and score one run."""
    import torch

    import tightrope as tr

    name, algo, seed, settings = job
    torch.set_num_threads(1)
    task = TASKS[name]
    wanted = {**(task.settings or {}), **settings}
    try:
        agent = (tr.PPO if algo == "ppo" else tr.VPG)(task.env, seed=seed, threads=1, **wanted)
    except tr.UsageError as error:
        return {"task": name, "seed": seed, "skipped": str(error)}
    began = time.perf_counter()
    agent.train(quiet=True)
    seconds = time.perf_counter() - began
    score = agent.evaluate(100)
    return {
        "task": name, "algo": algo, "seed": seed, "mean": score.mean, "std": score.std, "steps": agent.steps,
        "seconds": round(seconds, 1), "settings": settings,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="TASK or NAME=VALUE")
    parser.add_argument("--algo", choices=("ppo", "vpg"), default="ppo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=11)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, each on one thread")
    parser.add_argument("--plain", action="store_true", help="the plain defaults of the algorithm")
    args = parser.parse_intermixed_args()
    settings = {k: yaml.safe_load(v) for k, _, v in (word.partition("=") for word in args.words if "=" in word)}
    if args.plain:
        settings["defaults"] = "plain"
    names = [word for word in args.words if "=" not in word] or list(TASKS)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs = [(name, args.algo, seed, settings) for name in names for seed in seeds]
    found: dict[str, list[dict[str, Any]]] = {}
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for result in pool.imap_unordered(one, jobs):
            found.setdefault(result["task"], []).append(result)
            print(json.dumps(result), flush=True)
    print("\n| task | greedy mean of 100, each seed | mean | steps | training | |\n|---|---|---|---|---|---|")
    for name in names:
        rows = sorted((r for r in found[name] if "mean" in r), key=lambda r: r["seed"])
        if not rows:
            print(f"| {name} | {found[name][0]['skipped']} | | | | |")
            continue
        each = ", ".join(f"{r['mean']:.4g}" for r in rows)
        mean, seconds = (statistics.fmean(r[key] for r in rows) for key in ("mean", "seconds"))
        print(f"| {name} | {each} | {mean:.4g} | {rows[0]['steps']:,} | {seconds:.0f} s | {TASKS[name].note} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
