"""Train and continue populations, for the commands train and resume."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from statistics import median

from ..errors import UsageError, plural, printable
from ..population.page import PAGE
from ..population.population import Population
from ..population.vary import rejoined
from ..types import Settings
from .arguments import read_arguments


def train_population(
    env: str, algo: str, given: Settings, size: int, vary: tuple[str, ...], exploit: bool, rounds: int | None,
    run_dir: Path | None, jobs: int | None, quiet: bool,
) -> int:  # fmt: skip
    """Train a population, or continue the one in `run_dir`, and return the exit code."""
    options: Settings = {"algo": algo, "exploit": exploit, "rounds": rounds}
    return train_all(Population(env, size, rejoined(vary), **options, **given), run_dir, jobs, quiet)


def resume_population(run_dir: Path, args: list[str]) -> int:
    """Continue the population in a directory, with the flags --jobs, --quiet and --env."""
    types = {"jobs": int | None, "quiet": bool, "env": str | None, "network": str | None}

    def unknown(name: str) -> UsageError:
        fix = "start a new one with `tightrope train`"
        return UsageError(
            f"{run_dir} is a population, whose setting {name} cannot change: give --jobs or --quiet, or {fix}"
        )

    words, flags = read_arguments(args, types, unknown)
    if words:
        raise UsageError(f"one argument too many: {words[0]!r}. Give one run, then flags")
    jobs, quiet, env = flags.pop("jobs", None), flags.pop("quiet", False), flags.pop("env", None)
    return train_all(Population.load(run_dir, env, **flags), run_dir, jobs, quiet)


def train_all(population: Population, run_dir: Path | None, jobs: int | None, quiet: bool) -> int:
    """Train a population to the end, print its result, and return the exit code."""
    received = population.train(run_dir, jobs, quiet)
    folder, env, agents = population.run_dir or Path(), population.config.env, population.agents
    if received is not None:
        left = sum(not (agent.finished or agent.failed) for agent in agents)
        words = shlex.join(["tightrope", "resume", str(folder), *(["--env", env] if ":" in env else [])])
        print(printable(f"stopped with {left} of {plural(len(agents), 'agent')} unfinished; `{words}` continues"))
        return 128 + received
    scores, failed = [agent.score for agent in population.results if agent.score is not None], failures(population)
    found = "not evaluated (eval_episodes 0)" if not failed else "no agent has a score"
    if scores:
        best = population.results[0]
        found = f"greedy return best {scores[0]:.2f} (agent {best.number}), median {median(scores):.2f}, worst {scores[-1]:.2f}"
    print(printable(f"{env}: {plural(len(agents), 'agent')}: {found}; {folder / PAGE}"))
    if failed:
        print(
            f"tightrope: {plural(len(failed), 'agent')} failed, the first one: {printable(failed[0])}", file=sys.stderr
        )
    return int(len(failed) == len(agents))


def failures(population: Population) -> list[str]:
    return [f"agent {agent.number}: {agent.failed}" for agent in population.agents if agent.failed]
