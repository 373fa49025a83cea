"""Environments of other engines with no flags but their id: the greedy score of each seed, and how training went.

    python benchmarks/engine_scores.py [ENV ...] [--seeds 3] [--first-seed 1] [--backend gymnasium] [--jobs 2]

Trains the preset, then plays 100 greedy episodes in fresh environments. The curve is the mean return of the episodes that
finished in each tenth of training, under the policy as it was then, exploration included.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

ASKED = {"LunarLander-v3": 240.0, "HalfCheetah-v5": 1800.0, "InvertedPendulum-v5": 990.0}


def one(job: tuple[str, int, str, dict[str, str]]) -> dict[str, Any]:
    import tightrope as tr

    env, seed, backend, settings = job
    agent = tr.PPO(env, seed=seed, backend=backend, threads=1, **settings)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        agent.train(run_dir=Path(folder) / "run", quiet=True)
        seconds = time.perf_counter() - began
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    tenths: list[list[float]] = [[] for _ in range(10)]
    for row in rows:
        if "charts/episodic_return" in row:
            tenths[min(9, 10 * (row["step"] - 1) // agent.steps)].append(row["charts/episodic_return"])
    curve = [round(statistics.fmean(part), 1) if part else None for part in tenths]
    score = agent.evaluate(100)
    return {
        "env": env, "seed": seed, "mean": score.mean, "std": score.std, "min": min(score.returns), "steps": agent.steps,
        "seconds": seconds, "curve": curve,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=list(ASKED), metavar="ENV")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--backend", default="gymnasium")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, each on one thread")
    args, rest = parser.parse_known_args()
    settings = {n.removeprefix("--").replace("-", "_"): v for n, v in zip(rest[::2], rest[1::2], strict=True)}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    jobs = [(env, seed, args.backend, settings) for env in args.envs for seed in seeds]
    print("| env | seed | greedy mean of 100 | std | lowest | steps | training | return in each tenth of training |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    scores: dict[str, list[float]] = {env: [] for env in args.envs}
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for r in pool.imap(one, jobs):
            scores[r["env"]].append(r["mean"])
            curve = ", ".join("-" if x is None else f"{x:g}" for x in r["curve"])
            print(
                f"| {r['env']} | {r['seed']} | {r['mean']:.1f} | {r['std']:.1f} | {r['min']:.1f} | {r['steps']:,} | "
                f"{r['seconds']:.0f} s | {curve} |",
                flush=True,
            )
    for env, means in scores.items():
        asked = f" (aim: {ASKED[env]:g})" if env in ASKED else ""
        print(f"{env}: mean over {len(means)} seeds {statistics.fmean(means):.1f}{asked}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
