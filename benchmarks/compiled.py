"""Recordings as compiled C beside the same recordings as NumPy calls, in one process, phase by phase in turns.

    python benchmarks/compiled.py                # every workload that is installed: about four minutes
    python benchmarks/compiled.py W2 module-vpg  # some of them
    python benchmarks/compiled.py set-up         # the time until the end of the first phase, with an empty and a full cache

Prints a Markdown table of steps per second of processor time of this process, with one thread: medians over the phases.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import workloads
from torch import Tensor, nn

import tightrope as tr
from tightrope.algorithms import ALGORITHMS
from tightrope.engine import Runtime
from tightrope.errors import UsageError

SECONDS = 3.0  # of measured training, for each of the two


class ThreeLayers(nn.Module):
    """A user's network for CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 64)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def workload(name: str) -> Callable[[], Any]:
    env, _, settings = workloads.WORKLOADS[name]
    backend = workloads.BACKENDS.get(name, workloads.USUAL_BACKENDS)[0]
    return lambda: tr.PPO(env, seed=1, device="cpu", backend=backend, total_timesteps=1_000_000, **settings)


def classic(cls: type[tr.Agent], **settings: Any) -> Callable[[], Any]:
    common: dict[str, Any] = dict(seed=1, device="cpu", total_timesteps=1_000_000, eval_every=0, stop_at_return=None)
    return lambda: cls("CartPole-v1", **common | settings)


def pendulum(**settings: Any) -> Callable[[], Any]:
    common: dict[str, Any] = dict(seed=1, device="cpu", num_envs=64, num_steps=64, num_minibatches=4)
    return lambda: tr.PPO("Pendulum-v1", **common | settings)


WORKLOADS: dict[str, tuple[str, Callable[[], Any]]] = {
    **{name: (f"{name} {workloads.WORKLOADS[name][0]}", workload(name)) for name in ("W2", "W3", "W4", "W5")},
    "preset": ("CartPole, its preset: 512 rows, 2 x 32", classic(tr.PPO)),
    "acrobot": (
        "Acrobot, minibatches of 1,024 rows, 2 x 64",
        lambda: tr.PPO(
            "Acrobot-v1", seed=1, num_envs=64, num_steps=64, num_minibatches=4, hidden_sizes=(64, 64), device="cpu"
        ),
    ),
    "wide": ("Pendulum, minibatches of 1,024 rows, 2 x 256", pendulum(hidden_sizes=(256, 256))),
    **{
        name: (f"Pendulum, the same rows, 2 x 64, {name}", pendulum(activation=name))
        for name in ("elu", "silu", "gelu")
    },
    "large": (
        "CartPole, minibatches of 65,536 rows, 2 x 64",
        classic(tr.PPO, num_envs=8192, num_steps=32, num_minibatches=4, hidden_sizes=(64, 64), total_timesteps=2**26),
    ),
    "module": (
        "CartPole, a module of three layers, 4 x 128",
        classic(tr.PPO, **{k: v for k, v in workloads.CARTPOLE.items() if k != "hidden_sizes"}, network=ThreeLayers),
    ),
    "module-vpg": ("the same, VPG", classic(tr.VPG, network=ThreeLayers)),
    "gru": ("CartPole, memory gru", classic(tr.PPO, memory="gru")),
}


def phases(make: Callable[[], Any], compiles: bool) -> Iterator[tuple[int, float]]:
    """Yield the steps and the processor seconds of each phase."""
    agent = make()
    torch.set_num_threads(1)
    agent.state.runtime = Runtime(compiles_recordings=compiles)
    if compiles and not agent.state.runtime.compiles_recordings:
        raise SystemExit(f"recordings are not compiled: {agent.state.runtime.compiler_refusal}")
    steps, began = 0, time.process_time()
    for _ in ALGORITHMS[agent.algo].loop(agent.state, agent.config.algorithm):
        now = time.process_time()
        yield agent.steps - steps, now - began
        steps, began = agent.steps, time.process_time()


def compare(title: str, make: Callable[[], Any]) -> None:
    pair = phases(make, False), phases(make, True)
    for one in pair:  # which makes the recordings
        next(one)
    speeds: tuple[list[float], list[float]] = ([], [])
    spent = 0.0
    while spent < 2 * SECONDS:
        found = [next(one, None) for one in pair]
        if None in found:
            break
        for (steps, seconds), mine in zip(found, speeds, strict=True):  # type: ignore[misc]
            mine.append(steps / seconds)
            spent += seconds
    slow, fast = (statistics.median(x) for x in speeds)
    print(f"| {title} | {slow:,.0f} | {fast:,.0f} | {fast / slow:.2f} |", flush=True)


def set_up() -> None:
    """The processor seconds of the first phase of W2, those of the compiler included."""
    make = WORKLOADS["W2"][1]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for title, compiles in (("NumPy", False), ("C, empty cache", True), ("C, full cache", True)):
            before = sum(os.times()[:4])
            next(phases(make, compiles))
            print(f"| {title} | {sum(os.times()[:4]) - before:.2f} s |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="WORKLOAD", help=f"{', '.join(WORKLOADS)} or set-up")
    chosen = parser.parse_args().what or list(WORKLOADS)
    if "set-up" in chosen:
        set_up()
        return
    print("| workload | NumPy, steps/s | C, steps/s | ratio |\n|---|---|---|---|", flush=True)
    for name in chosen:
        try:
            compare(*WORKLOADS[name])
        except UsageError as error:
            print(f"| {WORKLOADS[name][0]} | left out: {error} | | |", flush=True)


if __name__ == "__main__":
    main()
