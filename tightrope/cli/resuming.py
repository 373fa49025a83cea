"""The command resume, and what train and resume share: populations, and the end of a training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from ..agent import Agent
from ..engine import world
from ..engine.distributed import broadcast_from_rank0, join
from ..errors import UsageError, plural, printable
from ..logging import CallbackList, EvaluationLine
from ..population.page import PAGE
from ..population.population import Population
from ..population.record import FILE
from ..population.vary import rejoined
from ..saved import agent_from, begin_anew
from ..training.checkpoint_reader import Checkpoint, has_checkpoints
from ..training.commands import resume_command
from ..training.config import setting_types, unknown_setting
from ..training.lock import locked
from ..training.own_code import is_import_path
from ..training.plan import nothing_to_do
from ..training.reports import scores, write_report
from ..training.run_directory import load_config
from ..training.saving import find_on_all_ranks
from ..training.schedules import change_lines, changes_between
from ..training.scoring import compare_with_sampled, save_score, shown_to
from ..training.trainer import Outcome
from ..training.user_objects import import_memory, named_by_user
from ..types import Settings
from .arguments import read_arguments, show_help, wants_help


def train_to_end(agent: Agent, quiet: bool, run_dir: Path, new_dir: Path | None = None) -> int:
    """Train to the end of the plan, print the outcome, and return the exit code."""
    with agent:
        outcome = agent.train(run_dir=new_dir, quiet=quiet, score_episodes=agent.config.run.eval_episodes)
        return end_of(agent, outcome, run_dir)


def end_of(agent: Agent, outcome: Outcome, run_dir: Path) -> int:
    """Print how training ended, and return the exit code."""
    if outcome.unsaved is not None and agent.run is not None:
        print(f"tightrope: {agent.run.complaint(agent.state)}", file=sys.stderr)
        return 1
    if outcome.score is not None:  # on rank 0
        both = f"{outcome.score}{compare_with_sampled(outcome.score, outcome.last_return)}"
        print(printable(f"{agent.config.env}: greedy return {both}; run in {run_dir}"))
    elif outcome.interrupted is None:
        print(printable(f"{agent.config.env}: not evaluated (eval_episodes 0); run in {run_dir}"))
    if outcome.unscored:
        print(printable(f"stopped during the last evaluation; the trained agent is in {run_dir}"))
    elif outcome.interrupted is not None:
        next_step = (
            "nothing is left to do" if agent.finished else f"`{resume_command(run_dir, agent.config)}` continues"
        )
        print(printable(f"stopped after {agent.steps:,} steps; {next_step}"))
    return 0 if outcome.interrupted is None else 128 + outcome.interrupted


@dataclass(kw_only=True)
class ResumeOptions:
    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    total_timesteps: int | None = None
    """Environment steps in all; unchanged if not given. Schedules follow the new number."""
    env: str | None = None
    """module:Class of your own environment, if the run was trained on one."""
    network: str | None = None
    """module:Class of your own network, if the run has one."""
    memory: str | None = None
    """module:Class of your own memory, if the run has one."""
    wrappers: tuple[str, ...] = ()
    """module:name of each of your own wrappers, if the run has some."""
    functions: tuple[str, ...] = ()
    """name=module:function of each of your own functions, if the run has some."""
    quiet: bool = False
    """Print only the result."""


def resume_main(args: list[str]) -> int:
    """Continue a run from its newest checkpoint, as if it had never stopped.

    Most settings of `tightrope train` may be changed. Example: tightrope resume runs/demo --total-timesteps 400000
    """
    if wants_help(args):
        return show_help("resume", resume_main.__doc__, ResumeOptions)
    if not args or args[0].startswith("-"):
        raise UsageError("resume needs a run directory first, such as `tightrope resume runs/demo`")
    return resume_run(Path(args[0]), args[1:])


def resume_run(run_dir: Path, args: list[str], takes_env: bool = False) -> int:
    """Continue a run with the flags of `resume`. With `takes_env` the name of its environment may stand among them."""
    join()
    if (run_dir / FILE).exists():
        return resume_population(run_dir, args)
    found = checkpoint_to_resume(run_dir)
    config = load_config(run_dir) if found is None else found.config
    types = {**setting_types(config.algo), "algo": str, "env": str, "quiet": bool}
    words, flags = read_arguments(args, types, lambda name: unknown_setting(name, config.algo, types))
    if takes_env and words and "env" not in flags:
        named = words.pop(0)
        flags |= {"env": named} if named != config.env or is_import_path(named) else {}
    if words:
        raise UsageError(f"one argument too many: {words[0]!r}. Give one run, then flags")
    quiet, env = flags.pop("quiet", False), flags.pop("env", None)
    if env is not None and ":" not in env:
        raise UsageError(f"env {env!r} is not module:Class: a run continues on its own environment, {config.env}")
    own = named_by_user(env) if env else None
    import_memory(flags.get("memory"))
    return continue_run(run_dir, found, own, flags.pop("network", None), flags, quiet)


def checkpoint_to_resume(run_dir: Path) -> Checkpoint | None:
    """The newest checkpoint of a run; None if it has none yet. UsageError if another process is training the run."""

    def look() -> bytes:  # on rank 0: a shared file system may show new files to other ranks later
        has_begun = has_checkpoints(run_dir)
        with locked(run_dir):
            return b"yes" if has_begun else b""

    return find_on_all_ranks(run_dir) if broadcast_from_rank0(look) else None


def continue_run(
    run_dir: Path, found: Checkpoint | None, env: Any, network: str | None, settings: Settings, quiet: bool
) -> int:
    """Train a run to the end of its plan, from the checkpoint `found`, or from the beginning if that is None."""
    if found is not None:
        agent = agent_from(found, run_dir, env, network, settings)
    else:
        before, agent = load_config(run_dir).to_flat_dict(), begin_anew(run_dir, env, network, **settings)
        if not quiet:
            print(printable(f"{run_dir} has no checkpoint yet: training starts from the beginning"))
            for line in change_lines(changes_between(before, agent.config.to_flat_dict(), 0)):
                print(line)
    if agent.finished:
        with agent:
            print(nothing_to_do(agent.state, agent.config, agent.run is not None))
            score_if_missing(agent, run_dir, quiet)
        return 0
    return train_to_end(agent, quiet, run_dir)


def score_if_missing(agent: Agent, run_dir: Path, quiet: bool) -> None:
    """Evaluate a completely trained run that was stopped before its score was taken."""
    run = agent.config.run
    if run.eval_episodes and world().is_rank0 and all(score.step != agent.steps for score in scores(run_dir)):
        with EvaluationLine(agent.config.env) as line:
            tick = shown_to(CallbackList([] if quiet else [line]), run.eval_episodes)
            score = agent.evaluate(run.eval_episodes, eval_seconds=run.eval_seconds, tick=tick)
        print(printable(f"{agent.config.env}: greedy return {score}; run in {run_dir}"))
        save_score(run_dir, agent.steps, score)
        write_report([run_dir])


# populations ------------------------------------------------------------------------------------------------------------


def train_population(
    env: str, algo: str, given: Settings, size: int, vary: tuple[str, ...], exploit: bool, rounds: int | None,
    run_dir: Path | None, jobs: int | None, quiet: bool,
) -> int:  # fmt: skip
    """Train a population, or continue the one in `run_dir`, and return the exit code."""
    options: Settings = {"algo": algo, "exploit": exploit, "rounds": rounds}
    return train_all(Population(env, size, rejoined(vary), **options, **given), run_dir, jobs, quiet)


def resume_population(run_dir: Path, args: list[str]) -> int:
    """Continue the population in a directory, with the flags --jobs and --quiet, and those that name its code."""
    types: Settings = {"jobs": int | None, "quiet": bool, "env": str | None, "network": str | None}
    types |= {"memory": str | None, "train_env": str | None, "functions": tuple[str, ...]}

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
        words = resume_command(folder, population.config)
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
