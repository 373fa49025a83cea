"""Is EasyCart learned in no more environment steps than CartPole? Steps to the first greedy evaluation with every one of
100 episodes 500 steps long, evaluated after every phase, both under the same preset.

    python benchmarks/easycart.py [--seeds 5]
"""

import argparse
import statistics

import tightrope as tr
from tightrope.algorithms.ppo import ppo


def steps_to_full_length(env: str, seed: int) -> float:
    agent = tr.PPO(env, seed=seed, device="cpu")
    for _ in ppo(agent.state, agent.config.algorithm):
        if min(agent.evaluate(episodes=100, seed=agent.state.phase).lengths) == 500:
            return agent.steps
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    medians = {}
    for env in ("CartPole-v1", "EasyCart-v0"):
        steps = [steps_to_full_length(env, seed) for seed in range(1, args.seeds + 1)]
        medians[env] = statistics.median(steps)
        print(f"{env}: {' '.join(f'{s:,.0f}' for s in steps)}; median {medians[env]:,.0f}", flush=True)
    print(f"ratio of medians, EasyCart / CartPole: {medians['EasyCart-v0'] / medians['CartPole-v1']:.2f}")


if __name__ == "__main__":
    main()
