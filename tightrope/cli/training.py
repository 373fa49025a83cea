"""The commands train and resume."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..agent import Agent, agent_class
from ..engine import choose_threads, world
from ..engine.distributed import broadcast_from_rank0, is_launched, join
from ..errors import UsageError, plural, printable
from ..files import Place
from ..logging import CallbackList, EvaluationLine
from ..saved import agent_from, begin_anew
from ..tools.seeds import Seed, SeedLines, SeedPool, check_same, compare, process_variables, read_seeds
from ..training.build import check_env, configured, find_on_all_ranks
from ..training.checkpoint_reader import CONFIG, Checkpoint, has_checkpoints
from ..training.config import Config, configure, setting_types, unknown_setting
from ..training.history import change_lines, changes_between
from ..training.lock import locked
from ..training.memory_settings import import_memory
from ..training.presets import preset
from ..training.reports import scores, write_report
from ..training.resuming import nothing_to_do
from ..training.run_directory import begun_before, load_config, new_run_dir, resume_command
from ..training.scoring import compare_with_sampled, save_score, shown_to
from ..training.settings import name_of_device
from ..training.trainer import Outcome
from ..training.user_objects import imported, is_import_path, named_by_user
from ..types import Settings
from .arguments import peek_flag, read_arguments, read_with_settings, show_help, wants_help

MAX_JOBS = 1000
TRAIN_NEEDS = "train needs an env, such as `tightrope train CartPole-v1`; `tightrope envs` lists them"


@dataclass(kw_only=True)
class TrainOptions:
    env: Annotated[str, "ENV"]
    """Environment to train on; `tightrope envs` lists them."""
    algo: str = "ppo"
    """Algorithm: ppo or vpg."""
    run_dir: Path | None = None
    """Directory of the run; runs/<env>__<algo>__<seed>__<time> if not given."""
    seeds: str | None = None
    """Seeds to train in parallel on the available devices and to compare, such as 1-10 or 1,2,5-7."""
    jobs: int | None = None
    """Number of --seeds trained at once; one per GPU or core if not given."""
    config: Path | None = None
    """YAML file of settings; flags override it."""
    allow_import: tuple[str, ...] = ()
    """Modules that the --config file may import, as in 'network: module:Class'; no other is imported."""
    resume: bool = False
    """Continue the run in run_dir if there is one."""
    quiet: bool = False
    """Print only the result."""


def train_main(args: list[str]) -> int:
    """Train an agent and save the run in a directory.

    Settings not given come from the env's preset or, without one, from the defaults for its kind of env, which the plan names.
    With --defaults plain they are those below. Example: tightrope train CartPole-v1 --total-timesteps 200000 --seed 1
    """
    join()
    if wants_help(args):
        algo = peek_flag(args, "--algo") or "ppo"
        env = next((a for a in args if preset(a, algo)), "ENV")
        config, shown = configure(env, algo), TrainOptions(env=env, algo=algo)
        return show_help("train", train_main.__doc__, shown, config.algorithm, config.network, config.run)
    options, layer, flags = read_with_settings(TrainOptions, args, TRAIN_NEEDS)
    env, algo = options.env, options.algo
    check_train(options, str(flags.get("backend", layer.get("backend", "auto"))))
    given = {name: value for name, value in {**layer, **flags}.items() if name not in ("env", "algo")}
    if options.seeds is not None:
        return train_seeds(args, options, given)
    config = configure(env, algo, layer, flags) if is_import_path(env) else configured(env, algo, layer, flags)
    begun = begun_before(options.run_dir)
    if begun is None and options.resume and options.run_dir is not None:
        begun = there_already(options.run_dir)
    if begun is not None:
        given.pop("network", None)
        own = named_by_user(env) if is_import_path(env) else None
        return continue_run(begun, checkpoint_to_resume(begun), own, config.network.network, given, options.quiet)
    run_dir, kind = new_run_dir(options.run_dir, config), agent_class(algo)
    agent = kind(env, **given) if is_import_path(env) else kind.from_config(config, network=config.network.network)
    return train_to_end(agent, options.quiet, run_dir, run_dir)


def check_train(options: TrainOptions, backend: str) -> None:
    """Check that the environment exists and that the options are compatible."""
    if os.path.isdir(options.env) and has_checkpoints(Path(options.env)):
        raise UsageError(f"env {options.env} is the directory of a run: `tightrope resume {options.env}` continues it")
    if is_import_path(options.env):
        imported(options.env)
    else:
        check_env(options.env, backend)
    if options.run_dir == Path():
        raise UsageError("run_dir is empty: give the name of a directory")
    if options.resume and options.run_dir is None:
        raise UsageError("resume needs a run: give its --run-dir too")
    if options.jobs is not None and options.seeds is None:
        raise UsageError(f"jobs {options.jobs} needs seeds: give them, as in --seeds 1-10, or drop jobs")
    if options.seeds is not None and is_launched():
        raise UsageError(f"seeds {options.seeds} start their own processes: run the command without torchrun")


def train_seeds(args: list[str], options: TrainOptions, given: Settings) -> int:
    """Train several seeds in parallel, each in its own process and directory, and compare them in one report."""
    numbers, jobs, quiet = read_seeds(options.seeds or ""), options.jobs, options.quiet
    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"jobs {jobs} is invalid: give a whole number from 1 to {MAX_JOBS:,}")
    if "seed" in given:
        raise UsageError(f"seed {given['seed']} and seeds {options.seeds} are both given: drop one of them")
    config, make = maker_of(options.env, options.algo, given)
    name = f"{re.sub('[/:]', '-', options.env)}__{options.algo}__seeds__{time.strftime('%Y%m%d-%H%M%S')}"
    folder = options.run_dir or Path("runs") / name
    if (folder / CONFIG).exists():
        raise UsageError(
            f"run_dir {folder} is a run of one seed: give another directory, in which each seed gets its own"
        )
    agent = make({})  # an error of the environment is reported once, not by each seed
    devices = process_variables(name_of_device(agent.state.env.device), config.run.threads, jobs)[: len(numbers)]
    threads = config.run.threads or choose_threads(agent.policy, config.algorithm.minibatch_size, len(devices))
    agent.close()
    seeds = [Seed(number, folder / f"seed{number:04d}") for number in numbers]
    check_same(seeds, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"run_dir {folder} cannot be made: {error.strerror}") from None
    words = [*without(args, "--seeds", "--jobs", "--run-dir", "--quiet", "--threads"), "--threads", str(threads)]
    with SeedLines(seeds, config.algorithm.total_timesteps, quiet) as lines:
        lines.say(
            f"{plural(len(seeds), 'seed')}, {len(devices)} at once, {plural(threads, 'thread')} each, in {folder}"
        )
        pool = SeedPool(seeds, words, devices, lines)
        pool.run()
    done = compare(seeds, folder)
    if done is not None:
        print(printable(f"{options.env}: {done[1]}; {done[0]}"))
    failed = [seed for seed in seeds if seed.code != 0]
    if pool.stopped is not None:
        left = f"{len(failed)} of {plural(len(seeds), 'seed')}"
        print(printable(f"stopped with {left} unfinished; the same command with --run-dir {folder} continues"))
        return 128 + pool.stopped
    for seed in failed:
        print(f"tightrope: seed {seed.seed} failed: {printable(seed.last_words())}", file=sys.stderr)
    return max((seed.code or 0 for seed in failed), default=0) if len(failed) == len(seeds) else int(bool(failed))


def without(args: list[str], *flags: str) -> list[str]:
    """A command line without some flags and their values."""
    kept, rest = [], list(args)
    while rest:
        word = rest.pop(0)
        if word.partition("=")[0] not in flags:
            kept.append(word)
        elif "=" not in word and word != "--quiet" and rest:
            rest.pop(0)
    return kept


def maker_of(env: str, algo: str, given: Settings) -> tuple[Config, Callable[[Settings], Agent]]:
    """(the settings, a function that makes an untrained agent with some of them changed)."""
    kind = agent_class(algo)
    if is_import_path(env):
        own = imported(env)
        with kind(env, **given) as first:
            return first.config, lambda settings: kind(own, **{**given, **settings})
    check_env(env, str(given.get("backend", "auto")))
    config = configured(env, algo, given)
    return config, lambda settings: kind.from_config(config.changed(**settings), network=config.network.network)


def train_to_end(agent: Agent, quiet: bool, run_dir: Path, new_dir: Path | None = None) -> int:
    """Train to the end of the plan, print the outcome, and return the exit code."""
    with agent:
        outcome = agent.train(run_dir=new_dir, quiet=quiet, score_episodes=agent.config.run.eval_episodes)
        return end_of(agent, outcome, run_dir)


def there_already(run_dir: Path) -> Path | None:
    """The directory itself if rank 0 finds a run in it; otherwise None."""
    found = broadcast_from_rank0(lambda: os.fsencode(run_dir) if (Place(run_dir) / CONFIG).exists() else b"")
    return Path(os.fsdecode(found)) if found else None


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
    run_dir = Path(args[0])
    join()
    found = checkpoint_to_resume(run_dir)
    config = load_config(run_dir) if found is None else found.config
    types = {**setting_types(config.algo), "algo": str, "env": str, "quiet": bool}
    words, flags = read_arguments(args[1:], types, lambda name: unknown_setting(name, config.algo, types))
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
