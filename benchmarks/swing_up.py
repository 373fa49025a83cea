"""CartDoublePendulum-v0 from its preset: does the trained agent swing both links up and hold them?

    python benchmarks/swing_up.py [--device cuda] [--seeds 3] [--first-seed 1] [--total-timesteps N ...any setting]

Measured over 100 greedy episodes of 500 steps: the share of the last 250 steps in which the tip is above 0.9 (L1 + L2).
"""

import argparse
import time

import torch

import tightrope as tr


@torch.no_grad()
def share_held_up(agent: tr.Agent, episodes: int = 100) -> torch.Tensor:
    """Per episode: the share of its last 250 steps with the tip above 0.9 (L1 + L2); 0 after leaving the rail."""
    env = agent.score_env.spawn(episodes, seed=7)
    obs = env.reset(seed=7)
    lost = torch.zeros(episodes, dtype=torch.bool, device=env.device)
    up = []
    for _ in range(500):
        step = env.step(agent.policy.head.to_env(agent.policy.distribution(obs).mode()))
        lost |= step.terminated
        tip = (step.final_obs[:, 2] + step.final_obs[:, 4]) / 2  # cosines of both angles: height / (L1 + L2)
        up.append((tip > 0.9) & ~lost)
        obs = step.obs
    return torch.stack(up[250:]).float().mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    args, rest = parser.parse_known_args()
    names, values = rest[::2], rest[1::2]
    settings = {n.removeprefix("--").replace("-", "_"): v for n, v in zip(names, values, strict=True)}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        agent = tr.PPO("CartDoublePendulum-v0", seed=seed, device=args.device, **settings)
        began = time.perf_counter()
        agent.learn(quiet=True)
        seconds = time.perf_counter() - began
        held = share_held_up(agent)
        print(
            f"seed {seed}: held up {held.mean():.3f} of the last 250 steps (worst episode {held.min():.3f}), "
            f"greedy {agent.evaluate()}, {agent.steps:,} steps in {seconds:.0f} s on {agent.state.env.device}",
            flush=True,
        )


if __name__ == "__main__":
    main()
