"""How much of an engine's speed is left in collection: environments in groups against all of them at once.

    python benchmarks/engines_overlapped.py [--device cuda] [--num-envs 64 128] [--backends ale envpool]

One game (Breakout) under a Nature CNN, one torch thread unless --threads says otherwise. Steps per second of

    engine      the engine alone: random actions, nothing is looked at, nothing leaves the host
    policy      the policy alone: one observation on the device, over and over, each action read
    1 group     collection, all environments at once
    2 groups    collection by turns: while the policy acts for one half, the other half's emulators work

The four take turns, the median of the repeats is shown. "ideal" is what perfect overlap would give, the slower of engine and
policy; the last column is the gain of groups.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from tightrope.engine import Runtime, chosen_mode, draw_noise, threads
from tightrope.engine.rollout_policy import act
from tightrope.envs import EnvOptions
from tightrope.envs.adapters.groups import Grouped
from tightrope.envs.adapters.host import HostEnv
from tightrope.envs.registry import BACKENDS
from tightrope.models import NetworkConfig, actor_critic
from tightrope.types import Discrete, Rollout


def made(backend: str, env_id: str, num_envs: int, device: str, count: int) -> HostEnv:
    """The environments in `count` groups."""
    engine, size = BACKENDS[backend].adapter, num_envs // count
    members = [engine.from_id(env_id, size, "cpu", EnvOptions()) for _ in range(count)]  # there undivided
    for member in members:
        member.device = torch.device(device)
    return members[0] if count == 1 else Grouped(members)


def engine_alone(env: HostEnv, steps: int) -> Callable[[], None]:
    unit = torch.rand(steps, env.num_envs, *env.action.shape)
    actions = [
        env.decode((each * env.action.n).long() if isinstance(env.action, Discrete) else 2 * each - 1) for each in unit
    ]

    def go() -> None:
        for action in actions:
            env._given = action
            env._send(action)
            env._recv()

    env.reset(seed=0)
    return go


def collection(env: HostEnv, steps: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """One rollout after another, and the policy alone."""
    torch.manual_seed(0)
    policy = actor_critic(env.observation, env.action, NetworkConfig()).to(env.device).eval()
    rollout, obs = Rollout.allocate(steps, env), env.reset(seed=0)
    noise = draw_noise(env, policy.head.noise, steps, (1, 1), 0, 0)

    runtime = Runtime(chosen_mode("auto", env.device), "part", device=env.device)

    def go() -> None:
        with runtime.arithmetic():
            last, _ = runtime.collect(env, policy, rollout, obs, noise)
        obs.copy_(last)
        float(rollout.value.sum())  # waits for a device

    @torch.no_grad()
    def policy_alone() -> None:
        for t in range(steps):
            runtime.run("part", act, policy, obs, noise.action[t])[0].cpu()

    return go, policy_alone


def timed(go: Callable[[], None]) -> float:
    began = time.perf_counter()
    go()
    return time.perf_counter() - began


def compare(backend: str, num_envs: int, args: argparse.Namespace) -> None:
    make = partial(made, backend, args.env, num_envs)
    envs = {count: make(args.device, count) for count in args.groups}
    alone = make("cpu", 1)
    ways = {"engine": engine_alone(alone, args.steps)}
    for count, env in envs.items():
        ways[f"{count} group{'s' if count > 1 else ''}"], ways["policy"] = collection(env, args.steps)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(args.repeats + 1):
        for name, go in ways.items():
            taken = timed(go)
            if repeat > 0:  # the first one warms up
                seconds[name].append(taken)
    speed = {name: num_envs * args.steps / statistics.median(taken) for name, taken in seconds.items()}
    ideal = min(speed["engine"], speed["policy"])
    plain, best = speed["1 group"], max(v for name, v in speed.items() if name.endswith("groups"))
    cells = " | ".join(f"{speed[name]:,.0f}" for name in ways)
    if not args.headed:
        print(
            f"| engine, envs | {' | '.join(ways)} | 1 group / ideal | groups / ideal | gain |\n|{'---|' * (len(ways) + 4)}"
        )
        args.headed = True
    print(
        f"| {backend}, {num_envs} | {cells} | {plain / ideal:.2f} | {best / ideal:.2f} | {best / plain:.2f} |",
        flush=True,
    )
    for env in (*envs.values(), alone):
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ALE/Breakout-v5")
    parser.add_argument("--backends", nargs="+", default=["ale", "envpool"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--groups", nargs="+", type=int, default=[1, 2], help="1 and at least one more")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--steps", type=int, default=64, help="of a rollout")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(namespace=argparse.Namespace(headed=False))
    with threads(args.threads):
        for backend in args.backends:
            for num_envs in args.num_envs:
                compare(backend, num_envs, args)


if __name__ == "__main__":
    main()
