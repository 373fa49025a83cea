"""Environments with no flags but their id: the score of each seed by that environment's own measure.

    python benchmarks/scores.py [ENV ...] [--seeds 3] [--first-seed 1] [--algo vpg] [--device cpu] [--any-setting VALUE ...]

Each measure is taken over 100 greedy episodes in fresh environments. The table says what was aimed at and what came out.
`--lines SUITE --recipe NAME` adds a line for each run to results/SUITE.jsonl, which `suite.py table SUITE` reads.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import yaml

import tightrope as tr
from tightrope.envs import DanceCart

Measure = Callable[[tr.Agent], tuple[bool, str]]  # whether the aim is reached, and what came out


@torch.no_grad()
def greedy_states(agent: tr.Agent, episodes: int = 100, steps: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """States (T, N, S) of greedy episodes, and whether each had ended before its time by then (T + 1, N)."""
    env = agent.score_env.spawn(episodes, seed=7)
    obs = env.reset(seed=7)
    states, ended = [], [torch.zeros(episodes, dtype=torch.bool, device=env.device)]
    for _ in range(steps):
        states.append(env.state.clone())
        step = env.step(agent.policy.head.to_env(agent.policy.distribution(obs).mode()))
        ended.append(ended[-1] | step.terminated)
        obs = step.obs
    return torch.stack(states), torch.stack(ended)


def mean_return(target: float) -> Measure:
    def measure(agent: tr.Agent) -> tuple[bool, str]:
        result = agent.evaluate()
        return (
            result.mean >= target,
            f"return {result.mean:.1f}, lowest {min(result.returns):.1f} (at least {target:g})",
        )

    return measure


def full_length(agent: tr.Agent) -> tuple[bool, str]:
    lengths = agent.evaluate().lengths
    return min(lengths) == 500, f"mean length {statistics.fmean(lengths):.1f}, shortest {min(lengths)} (500)"


def flag_every_time(agent: tr.Agent) -> tuple[bool, str]:
    result = agent.evaluate()
    reached = sum(length < 200 for length in result.lengths)
    return reached == 100, f"flag reached in {reached} of 100, return {result.mean:.1f} (100 of 100)"


def spins(agent: tr.Agent) -> tuple[bool, str]:
    states, ended = greedy_states(agent)
    speed = states[..., 3].abs().mean(0)
    furthest = states[..., 0].abs().amax(0)
    ok = bool((speed > 8).all() and (furthest < 1).all() and not ended[-1].any())
    return ok, (
        f"{speed.mean():.1f} rad/s (slowest episode {speed.min():.1f}), never further than {furthest.max():.2f} m "
        "from the centre (above 8 rad/s within 1 m)"
    )


def dances(agent: tr.Agent) -> tuple[bool, str]:
    """In step: the cart is on average within a quarter of the sway of where the beat wants it, and the pole stays up."""
    states, ended = greedy_states(agent)
    off = (states[..., 0] - DanceCart.sway * states[..., 4].sin()).abs().mean(0)
    ok = bool((off < DanceCart.sway / 4).all() and not ended[-1].any())
    return ok, (
        f"{off.mean():.3f} m off the beat (worst episode {off.max():.3f}), {int(ended[-1].sum())} of 100 fell "
        f"(under {DanceCart.sway / 4:g} m, none)"
    )


def swings_up(agent: tr.Agent) -> tuple[bool, str]:
    """The share of the last 250 steps with the tip above 0.9 (L1 + L2); 0 after leaving the rail."""
    states, ended = greedy_states(agent)
    up = (states[..., 2].cos() + states[..., 3].cos()) / 2 > 0.9
    held = (up & ~ended[:-1])[250:].float().mean(0)
    words = (
        f"held up {held.mean():.3f} of the last 250 steps, worst episode {held.min():.3f}, greedy {agent.evaluate()}"
    )
    return bool(held.mean() > 0.9), f"{words} (0.9)"


MEASURES: dict[str, Measure] = {
    "CartPole-v1": mean_return(495),
    "EasyCart-v0": full_length,
    "Pendulum-v1": mean_return(-200),
    "Acrobot-v1": mean_return(-90),
    "MountainCar-v0": flag_every_time,
    "SpinCart-v0": spins,
    "DanceCart-v0": dances,
}
SLOW = {
    "CartDoublePendulum-v0": swings_up,
    "LunarLander-v3": mean_return(240),
    "HalfCheetah-v5": mean_return(1800),
    "InvertedPendulum-v5": mean_return(990),
}


def add_line(suite: str, recipe: str, agent: tr.Agent, settings: dict[str, object], seconds: float) -> None:
    """Add the greedy score of a run, with the settings that were given, to the results of a suite."""
    from suite import SUITES, results_of

    returns = agent.evaluate().returns
    greedy = {"mean": statistics.fmean(returns), "min": min(returns), "episodes": len(returns)}
    line = {
        "recipe": recipe, "task": agent.config.env, "algo": agent.algo, "seed": agent.config.run.seed, "greedy": greedy,
        "steps": agent.steps, "seconds": round(seconds, 2), "settings": settings,
    }  # fmt: skip
    with results_of(SUITES / f"{suite}.yaml").open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", default=list(MEASURES), metavar="ENV")
    parser.add_argument("--algo", choices=["ppo", "vpg"], default="ppo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--lines", metavar="SUITE", help="add a line for each run to results/SUITE.jsonl")
    parser.add_argument("--recipe", default="preset", help="the name of these settings in those lines")
    args, rest = parser.parse_known_args()
    given = zip(rest[::2], rest[1::2], strict=True)
    settings = {name.removeprefix("--").replace("-", "_"): yaml.safe_load(value) for name, value in given}
    chosen = dict(settings)
    settings |= {"device": args.device, "backend": args.backend, "threads": args.threads}
    failed = 0
    print("| env | seed | result (aim) | steps | training |\n|---|---|---|---|---|")
    for env in args.envs:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            kind = tr.PPO if args.algo == "ppo" else tr.VPG
            agent = kind(env, seed=seed, **settings)
            began = time.perf_counter()
            agent.learn(quiet=True)
            seconds = time.perf_counter() - began
            if args.lines:
                add_line(args.lines, args.recipe, agent, chosen, seconds)
            ok, words = {**MEASURES, **SLOW}[env](agent)
            failed += not ok
            row = f"| {env} | {seed} | {'' if ok else 'MISSED: '}{words} | {agent.steps:,} | {seconds:.1f} s |"
            print(row, flush=True)
    print(f"{failed} of {len(args.envs) * args.seeds} runs missed their aim")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
