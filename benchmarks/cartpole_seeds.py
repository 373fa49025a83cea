"""Greedy CartPole over many seeds with no flags: `--algo ppo` (10 seeds) or `--algo vpg` (5 seeds).

python benchmarks/cartpole_seeds.py --algo ppo --seeds 10
"""

import argparse
import time

import tightrope as tr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", choices=["ppo", "vpg"], default="ppo")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    passed = 0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        agent = {"ppo": tr.PPO, "vpg": tr.VPG}[args.algo]("CartPole-v1", seed=seed, device="cpu")
        began = time.perf_counter()
        agent.learn(quiet=True)
        seconds = time.perf_counter() - began
        result = agent.evaluate(episodes=100)
        passed += result.mean >= 495
        print(f"{args.algo} seed {seed}: greedy {result}; {agent.steps:,} steps in {seconds:.1f} s", flush=True)
    print(f"{passed} of {args.seeds} seeds at 495 or more")


if __name__ == "__main__":
    main()
