"""CartPole to a held greedy 495: Tightrope against Stable-Baselines3's tuned recipe, in one run, one torch thread each.

    python benchmarks/cartpole_hold.py --sb3-python PATH/TO/VENV/bin/python [--seeds 5]

The peer needs a virtual environment of its own: pip install torch==2.13.0 stable-baselines3 gymnasium.
The two take turns, seed by seed, each in a fresh process.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def tightrope(seed: int, **settings: Any) -> None:
    """Our preset on the clock of hold.py."""
    import torch
    from hold import Held, Hold

    import tightrope as tr
    from tightrope.algorithms.ppo import ppo

    torch.set_num_threads(1)
    agent, hold = tr.PPO("CartPole-v1", seed=seed, device="cpu", **settings), Hold()
    hold.start()
    with contextlib.suppress(Held):
        for _ in ppo(agent.state, agent.config.algorithm):
            hold.check(agent.steps, agent.predict)
        hold.stop()
    hold.report("tightrope", seed, agent.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", type=Path, help="interpreter of a virtual environment with Stable-Baselines3")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        tightrope(args.only)
        return
    commands = {"tightrope": [sys.executable, __file__, "--only"]}
    if args.sb3_python:
        commands["stable-baselines3"] = [str(args.sb3_python), str(HERE / "peers/sb3_cartpole.py"), "--seed"]
    times: dict[str, list[float]] = {name: [] for name in commands}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name, command in commands.items():
            out = subprocess.run([*command, str(seed)], check=True, capture_output=True, text=True).stdout
            row = json.loads(out.splitlines()[-1])
            print(json.dumps(row), flush=True)
            times[name].append(row["seconds_to_hold"] if row["seconds_to_hold"] is not None else float("inf"))
    for name, seconds in times.items():
        print(
            f"{name:18s} seconds to hold: " + " ".join(f"{s:.2f}" for s in seconds),
            f"median {statistics.median(seconds):.2f}",
        )
    if args.sb3_python:
        ratio = statistics.median(times["tightrope"]) / statistics.median(times["stable-baselines3"])
        print(f"ratio of medians, tightrope / stable-baselines3: {ratio:.3f} (1/{1 / ratio:.1f})")


if __name__ == "__main__":
    main()
