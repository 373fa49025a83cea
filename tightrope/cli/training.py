"""The commands train and clone, which make new runs."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..agent import Agent, agent_class
from ..engine import choose_threads
from ..engine.distributed import broadcast_from_rank0, is_launched, join
from ..errors import UsageError, check_count, plural, printable
from ..files import Place
from ..population.seeds import SeedTurns, train_in_turns
from ..saved import check_arguments
from ..tools.progress_bars import ProgressBars
from ..tools.seeds import Seed, SeedPool, check_same, compare, process_variables, read_seeds
from ..training.build import check_env, configured
from ..training.checkpoint_reader import CONFIG, find, has_checkpoints
from ..training.config import Config, configure, setting_types, unknown_setting
from ..training.demonstrations import is_file
from ..training.own_code import imported, is_import_path
from ..training.presets import preset
from ..training.run_directory import begun_before, new_run_dir
from ..training.settings import name_of_device
from ..training.user_objects import named_by_user
from ..types import Settings
from .arguments import flag_types, peek_flag, read_arguments, read_with_settings, show_help, wants_help
from .resuming import checkpoint_to_resume, continue_run, resume_run, train_population, train_to_end

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
    population: int | None = None
    """Number of agents to train in turns in one program, each with a seed and varied settings of its own."""
    vary: tuple[str, ...] = ()
    """Settings that differ between the agents of a population: learning_rate=1e-4..1e-2,log gamma=0.97,0.99."""
    exploit: bool = False
    """After each round, the worst fifth of a population takes over from the best fifth, with settings near theirs."""
    rounds: int | None = None
    """Rounds of a population, in each of which all agents train equally long; 1, or 10 with --exploit, if not given."""
    jobs: int | None = None
    """Number of processes for --seeds or --population; one per GPU or core if not given."""
    config: Path | None = None
    """YAML file of settings; flags override it."""
    allow_import: tuple[str, ...] = ()
    """Modules that the --config file may import, as in 'network: module:Class'; no other is imported."""
    resume: bool = False
    """Continue the run in run_dir if there is one. --resume RUN without run_dir is `tightrope resume RUN`."""
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
    if (run := run_to_resume(args)) is not None:
        if (seeds := peek_flag(args, "--seeds")) is not None:
            wrong = f"seeds {seeds} are several runs, and --resume {run} continues one: drop one of them"
            raise UsageError(f"{wrong}. The command that began the seeds continues them, with their --run-dir")
        return resume_run(run, without(args, "--resume"), takes_env=True)
    options, layer, flags = read_with_settings(TrainOptions, args, TRAIN_NEEDS)
    env, algo = options.env, options.algo
    check_train(options, str(flags.get("backend", layer.get("backend", "auto"))))
    given = {name: value for name, value in {**layer, **flags}.items() if name not in ("env", "algo")}
    if options.seeds is not None:
        return train_seeds(args, options, given)
    if options.population is not None:
        many = options.population, options.vary, options.exploit, options.rounds
        return train_population(env, algo, given, *many, options.run_dir, options.jobs, options.quiet)
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


def run_to_resume(args: list[str]) -> Path | None:
    """RUN of --resume RUN; None if --resume has no value, or if --run-dir names the run."""
    named = peek_flag(args, "--resume")
    if named is None or named.startswith("--") or named.lower() in ("", "true", "false"):
        return None
    return Path(named) if peek_flag(args, "--run-dir") is None else None


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
    if options.jobs is not None and options.seeds is None and options.population is None:
        raise UsageError(f"jobs {options.jobs} needs seeds: give them, as in --seeds 1-10, or drop jobs")
    if options.seeds is not None and options.population is not None:
        raise UsageError(f"seeds {options.seeds} and population {options.population} are both given: drop one of them")
    for name, shown in (("vary", " ".join(options.vary)), ("exploit", ""), ("rounds", options.rounds)):
        if getattr(options, name) and options.population is None:
            given = " ".join(str(word) for word in (name, shown) if word)
            raise UsageError(f"{given} needs a population: give its size, as in --population 64, or drop {name}")
    if options.seeds is not None and is_launched():
        raise UsageError(f"seeds {options.seeds} start their own processes: run the command without torchrun")


def train_seeds(args: list[str], options: TrainOptions, given: Settings) -> int:
    """Train several seeds in parallel, each in its own directory, and compare them in one report. On the CPU those of tensor
    environments train in turns in one process for each core, others in processes of their own."""
    numbers, jobs, quiet = read_seeds(options.seeds or ""), options.jobs, options.quiet
    if jobs is not None:
        check_count("jobs", jobs, MAX_JOBS)
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
    in_turns = train_in_turns(agent)
    agent.close()
    seeds = [Seed(number, folder / f"seed{number:04d}") for number in numbers]
    check_same(seeds, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"run_dir {folder} cannot be made: {error.strerror}") from None
    words = [*without(args, "--seeds", "--jobs", "--run-dir", "--quiet", "--threads"), "--threads", str(threads)]
    with ProgressBars(config.algorithm.total_timesteps, quiet) as lines:
        where = "in turns, " if in_turns else ""
        at_once = f"{len(devices)} at once, {plural(threads, 'thread')} each"
        lines.say(f"{plural(len(seeds), 'seed')}, {where}{at_once}, in {folder}")
        pool: SeedPool | SeedTurns = SeedPool(seeds, words, devices, lines)
        if in_turns:
            own = options.env if is_import_path(options.env) else None
            pool = SeedTurns(seeds, lambda settings: make({**settings, "threads": threads}), own, len(devices), lines)
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


def there_already(run_dir: Path) -> Path | None:
    """The directory itself if rank 0 finds a run in it; otherwise None."""
    found = broadcast_from_rank0(lambda: os.fsencode(run_dir) if (Place(run_dir) / CONFIG).exists() else b"")
    return Path(os.fsdecode(found)) if found else None


# imitation --------------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class CloneOptions:
    source: Annotated[Path, "RUN"]
    """Run of the teacher, or a .npz or .safetensors file with arrays obs and action."""
    env: str | None = None
    """Environment of the student, with the spaces of the teacher's; the teacher's if not given."""
    algo: str = "ppo"
    """Algorithm that the student will be trained with: ppo or vpg."""
    run_dir: Path | None = None
    """Directory of the student; runs/<env>__<algo>__<seed>__<time> if not given."""
    steps: int = 100_000
    """Steps that the teacher takes."""
    epochs: int = 10
    """Passes over these steps, or over the file."""
    clone_rate: float = 3e-3
    """Step size of Adam while imitating, which decays to 0."""
    quiet: bool = False
    """Do not evaluate the student."""


def clone_main(args: list[str]) -> int:
    """Train a student to act as a teacher does, and save it as a run, from which `train --init-from` starts.

    The teacher may see more: the student sees --actor-obs. The settings of `tightrope train` set the student up. Example:
    tightrope clone runs/teacher --actor-obs camera --run-dir runs/student
    """
    if wants_help(args):
        return show_help("clone", clone_main.__doc__, CloneOptions)
    if not args or args[0].startswith("-"):
        raise UsageError("clone needs a run or a file first, such as `tightrope clone runs/teacher`")
    source, algo = Path(args[0]), peek_flag(args, "--algo") or "ppo"
    own = flag_types(CloneOptions)
    types = {**setting_types(algo), **own}
    words, flags = read_arguments(args[1:], types, lambda name: unknown_setting(name, algo, types))
    if words:
        raise UsageError(f"one argument too many: {words[0]!r}. Give one run or file, then flags")
    options = CloneOptions(source=source, **{name: flags.pop(name) for name in own if name in flags})
    env = options.env or teacher_env(source)
    inherited = {} if options.env or is_file(source) else teacher_settings(source, flags)
    with agent_class(algo)(env, **inherited | flags) as agent:
        run_dir = new_run_dir(options.run_dir, agent.config)
        result = agent.imitate(source, options.steps, options.epochs, options.clone_rate)
        agent.save(run_dir)
        print(printable(f"{env} as {source}: {result}"))
        if not options.quiet and agent.config.run.eval_episodes:
            score = agent.evaluate(agent.config.run.eval_episodes, eval_seconds=agent.config.run.eval_seconds)
            print(printable(f"{env}: greedy return {score}"))
        print(printable(f"saved in {run_dir}; `tightrope resume {run_dir}` trains it further with the same settings"))
    return 0


def teacher_settings(source: Path, flags: Settings) -> Settings:
    """The settings of a teacher's environment, which the student gets unless flags set them."""
    run = find(source).config.run
    if "wrappers" not in flags and run.wrappers:
        names = " ".join(map(str, run.wrappers))
        raise UsageError(f"{source} was trained with wrappers {names}: give them, as in --wrappers {names}")
    if "env_kwargs" not in flags:
        check_arguments(run.env_kwargs)
    return {"env_kwargs": run.env_kwargs, "max_episode_steps": run.max_episode_steps}


def teacher_env(source: Path) -> str:
    """The id of the environment of a teacher's run."""
    if is_file(source):
        raise UsageError(f"{source} is a file and names no environment: give --env, as in --env CartPole-v1")
    env = find(source).config.env
    if is_import_path(env):
        raise UsageError(f"{source} was trained on {env}, which a file may not import: give it, as in --env {env}")
    return env
