"""A population beside as many runs of `tightrope train`, by processor time.

    python benchmarks/population.py                          # both recipes: about twenty minutes on two idle cores
    python benchmarks/population.py preset --agents 64 --alone 8

Every agent has a seed and settings of its own. Some of the agents, spread evenly, are also trained alone, each by a whole
command (import, set-up, recording, training, score, report), half of them before the population and half after it. The
population is one command too. The table has the processor time of all processes for each agent, their ratio, and the share of a
turn that is phases of training (acting, environments, gradients, optimiser steps), which sharing a program cannot save.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.engine import Runtime
from tightrope.population.turns import Turn, Turns

VARY = {"learning_rate": "2e-3..2e-2,log", "ent_coef": "0..0.01"}
CLASSIC: dict[str, Any] = dict(
    defaults="plain", num_envs=4, num_steps=128, total_timesteps=500_000, num_minibatches=4, update_epochs=4
)
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "preset": ("CartPole-v1, its preset (stops once solved)", {}),
    "classic": ("CartPole-v1, the classic recipe: 4 x 128, 500,000 steps", CLASSIC),
}


def words_of(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def processor_seconds(words: list[str]) -> float:
    """Processor time of a command and of all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "tightrope", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def share_of_phases(settings: dict[str, Any], folder: Path) -> float:
    """The share of processor time that phases of training take in the turn of an agent that is not the first."""
    original, spent = Runtime.run, [0.0]

    def run(self: Runtime, unit: Any, *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return original(self, unit, *arguments)
        finally:
            spent[0] += (time.process_time() - began) * (unit == "phase")

    turns = Turns(lambda own: tr.PPO("CartPole-v1", video_every=0, **{**settings, **own}))
    Runtime.run = run  # type: ignore[method-assign]
    try:
        for number in (0, 1):
            spent[0], began = 0.0, time.process_time()
            turns.take(Turn(number, folder / f"agent{number}", {"seed": number + 1}), lambda _: None, lambda: False)
        return spent[0] / (time.process_time() - began)
    finally:
        Runtime.run = original  # type: ignore[method-assign]


def row(recipe: str, agents: int, alone: int) -> str:
    name, settings = RECIPES[recipe]
    everyone = tr.Population("CartPole-v1", agents, VARY, **settings).agents
    chosen = everyone[:: max(1, agents // alone)][:alone]
    with tempfile.TemporaryDirectory() as place:
        folder, seconds = Path(place), []
        common = ["train", "CartPole-v1", "--quiet", *words_of(settings)]

        def by_itself(number: int) -> None:
            agent = everyone[number]
            own = {"seed": agent.seed, "video_every": 0, **agent.settings}
            seconds.append(processor_seconds([*common, *words_of(own), "--run-dir", str(folder / f"alone{number}")]))

        for agent in chosen[: alone // 2]:
            by_itself(agent.number)
        vary = [f"{setting}={where}" for setting, where in VARY.items()]
        words = [*common, "--population", str(agents), "--vary", *vary, "--run-dir", str(folder / "many")]
        together = processor_seconds(words) / agents
        for agent in chosen[alone // 2 :]:
            by_itself(agent.number)
        share = share_of_phases(settings, folder)
    each = sum(seconds) / len(seconds)
    return f"| {name} | {agents} | {each:.2f} | {together:.2f} | {together / each:.2f} | {share:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="*", choices=[[], *RECIPES], help="all if none is given")
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--alone", type=int, default=8, help="agents that are also trained alone")
    given = parser.parse_args()
    print(f"`{shlex.join(['python', 'benchmarks/population.py', *sys.argv[1:]])}`", end="\n\n")
    print("| recipe | agents | alone, s each | population, s each | ratio | phases |\n|---|---|---|---|---|---|")
    for recipe in given.recipes or RECIPES:
        print(row(recipe, given.agents, given.alone), flush=True)


if __name__ == "__main__":
    main()
