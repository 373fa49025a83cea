"""tightrope sweep: a search for good settings."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_type_hints

import tyro
import yaml

from ..agent import Agent
from ..arguments import read_arguments, show_help, wants_help
from ..engine.distributed import is_launched
from ..errors import UsageError, plain, plural
from ..models.networks import sees_images
from ..runs.config import Config, settings_of, unknown_setting
from ..runs.given import check_allowed
from ..runs.settings_file import read_settings
from ..runs.sweep.space import Space, check_space, default_space, read_space, usual_point
from ..types import Settings
from .options import guess
from .seeds import maker_of

if TYPE_CHECKING:  # they need Optuna
    from optuna.storages import BaseStorage

    from ..runs.sweep.trial import Task

MOST_TRIALS = 10_000
OF_MACHINES = ("device", "accelerate", "threads", "backend", "project", "entity", "tags", "rank_timeout")
OF_SINGLE_RUNS = (
    "eval_every", "stop_at_return", "video_every", "log", "watch", "run_name", "save_seconds", "save_every",
    "keep_checkpoints",
)  # fmt: skip


@dataclass(kw_only=True)
class SweepOptions:
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Environment to train on: an id, or module:Class of one's own."""
    trials: int
    """Trials in all, over every process that takes part and every time it is started."""
    algo: str = "ppo"
    """Algorithm: ppo or vpg."""
    storage: str | None = None
    """Where the study is: the path of a journal file (in the sweep's directory, if not given), sqlite:///FILE, or, for several
    machines, postgresql://USER@HOST/DB or mysql://USER@HOST/DB."""
    search: Path | None = None
    """YAML file of what to search, and nothing else: lines such as 'gamma: [0.95, 0.99]' or
    'learning_rate: {low: 1e-4, high: 1e-2, log: true}'."""
    print_search: bool = False
    """Print what would be searched, as such a file, and do nothing else."""
    seeds_per_trial: int = 3
    """Seeds whose mean score is a trial's; the first of them is --seed."""
    evaluations: int = 8
    """Evaluations of each trial, evenly over its steps; after each, one that is behind the others is given up."""
    sweep_dir: Path | None = None
    """Where best.yaml and sweep.html go; sweeps/<env>__<algo> if not given."""
    study: str | None = None
    """The study's name in the storage; like the sweep's directory if not given."""
    config: Path | None = None
    """YAML file of settings that are not searched; flags win over it."""
    allow_import: tuple[str, ...] = ()
    """Modules whose code that file may name, as in 'network: module:Class'. No other is imported."""
    quiet: bool = False
    """Print only the result."""


def sweep(args: list[str]) -> int:
    """Search for good settings: many trials, each with several seeds, learning from those before it.

    Start it again, or more of it at the same time, on other machines too, and all of them go on with the same study.
    Any setting of `tightrope train` works too, and is then not searched.
    Example: tightrope sweep CartPole-v1 --trials 30
    """
    if wants_help(args):
        return show_help(SweepOptions, "sweep", sweep.__doc__)
    if is_launched():
        raise UsageError("sweep shares its trials by itself: start it once or more often, without torchrun")
    options, flags = read_sweep(args)
    layer = read_settings(options.config) if options.config else {}
    check_allowed(options.config, layer, {**flags, "env": options.env}, options.allow_import)
    given = {k.replace("-", "_"): v for k, v in {**layer, **flags}.items() if k not in ("env", "algo")}
    config, make = maker_of(options.env, options.algo, given)
    check_sweep(options, config, given)
    space, images = searched(options, config, make, given)
    if options.print_search:
        lines = {name: where.data() for name, where in space.items()}
        print(yaml.safe_dump(lines, sort_keys=False, default_flow_style=None), end="")
        return 0
    if importlib.util.find_spec("optuna") is None:
        raise UsageError('sweep needs optuna, which is not installed: pip install -c constraints.txt -e ".[sweep]"')
    return search(options, config, make, space, images, sorted(given))


def read_sweep(args: list[str]) -> tuple[SweepOptions, Settings]:
    """(what is the sweep's own, settings of its trials)."""
    file = guess(args, "--config")
    algo = guess(args, "--algo") or str((read_settings(Path(file)) if file else {}).get("algo", "ppo"))
    own = {name: kind for name, kind in get_type_hints(SweepOptions).items() if name != "env"}
    types = {**settings_of(algo), **own}
    words, flags = read_arguments(args, types, lambda name: unknown_setting(name, algo, types))
    if len(words) > 1:
        raise UsageError(f"one word too many: {words[1]!r}. Give one env, then flags")
    if not words or ("trials" not in flags and not flags.get("print_search")):
        raise UsageError("sweep needs an env and a number of trials, such as `tightrope sweep CartPole-v1 --trials 30`")
    ours = {name: flags.pop(name) for name in own if name in flags}
    return SweepOptions(**{"env": words[0], "trials": 1, **ours, "algo": algo}), flags


def check_sweep(options: SweepOptions, config: Config, given: Settings) -> None:
    """Refuse what no sweep can be made of, before anything is made."""
    for name, most in (("trials", MOST_TRIALS), ("seeds_per_trial", 100), ("evaluations", 100)):
        if not 1 <= (number := getattr(options, name)) <= most:
            raise UsageError(f"{name} {number} will not do: give a whole number from 1 to {most:,}")
    for name in OF_SINGLE_RUNS:
        if name in given:
            raise UsageError(f"{name} means nothing here: trials keep no directory. Drop it")
    if not config.run.eval_episodes:
        raise UsageError("eval_episodes 0 leaves a sweep nothing to compare: give at least 1")
    if config.algorithm.phases < options.evaluations:
        raise UsageError(
            f"evaluations {options.evaluations} is more than the {plural(config.algorithm.phases, 'phase')} of a run: lower "
            f"it, or raise total_timesteps {config.algorithm.total_timesteps}"
        )


def searched(
    options: SweepOptions, config: Config, make: Callable[[Settings], Agent], given: Settings
) -> tuple[Space, bool]:
    """What is to be searched, as the file says, or around the usual settings; and whether observations are images."""
    probe = make({})  # whatever is wrong with the environment is said now
    images = sees_images(probe.state.env.observation)
    probe.close()
    if options.search is None:
        space = default_space(config, given, images)
    else:
        space = read_space(options.search, config, given)
        check_space(space, config)
    if not space:
        raise UsageError("nothing is left to search: drop a flag, or name settings with --search FILE.yaml")
    return space, images


def search(
    options: SweepOptions,
    config: Config,
    make: Callable[[Settings], Agent],
    space: Space,
    images: bool,
    given: list[str],
) -> int:
    """Take part in the study until it is done; returns the exit code."""
    from ..runs.sweep.storage import StorageLost, connected
    from ..runs.sweep.trial import Task

    folder = options.sweep_dir or Path("sweeps") / f"{config.env.replace('/', '-').replace(':', '-')}__{config.algo}"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"sweep_dir {folder} is a file: give a directory")
    seeds = [config.run.seed + i for i in range(options.seeds_per_trial)]
    task = Task(config.algo, make, config.flat(), space, seeds, options.evaluations, images)
    url = options.storage or str(folder / "study.journal")
    try:
        with connected(url) as storage:
            return take_part(options, config, task, given, folder, url, storage)
    except StorageLost as error:
        print(f"tightrope: {plain(str(error))}; the same command goes on, once it is there again", file=sys.stderr)
        return 1


def take_part(
    options: SweepOptions, config: Config, task: Task, given: list[str], folder: Path, url: str, storage: BaseStorage
) -> int:
    from ..runs.sweep.outcome import PAGE, Leaving
    from ..runs.sweep.places import Places
    from ..runs.sweep.storage import masked
    from ..runs.sweep.study import Failing, Worker, open_study

    say: Callable[[str], None] = (lambda line: None) if options.quiet else (lambda line: print(plain(line), flush=True))
    study, new = open_study(storage, options.study or folder.name, terms(options, config, task.space))
    point, types = usual_point(task.space, task.usual), settings_of(config.algo)
    places = Places(study, options.trials, point, space=task.space, types=types)
    leaving = Leaving(folder, study, task, places, config, given, masked(url))
    size = f"{plural(options.trials, 'trial')} of {plural(len(task.seeds), 'seed')}"
    size += f" x {config.algorithm.total_timesteps:,} steps"
    begins = "new study" if new else "going on with study"
    say(f"{begins} {study.study_name!r} in {masked(url)}: {size} over {', '.join(task.space)}")
    try:
        stopped = Worker(study, task, places, config.run.seed, say, leaving.now_and_then).work(new)
    except Failing as error:
        leaving.write("stopped")
        print(plain(f"tightrope: {error}; {folder / PAGE} has them all, and the same command goes on"), file=sys.stderr)
        return 1
    leaving.write("stopped" if stopped is not None else "ended")
    if stopped is not None:
        print(f"stopped with {places.done()} of {plural(options.trials, 'trial')} done; the same command goes on")
        return 128 + stopped
    ours = places.best()
    if ours is None:
        print(
            plain(f"tightrope: no trial of {options.trials} came to its end: {folder / PAGE} says why"), file=sys.stderr
        )
        return 1
    print(plain(f"best: trial {ours.number}, score {ours.value:.6g}; `{leaving.command}` trains it"))
    print(plain(str(folder / PAGE)))
    return 0


def terms(options: SweepOptions, config: Config, space: Space) -> Settings:
    """What must be the same for all who take part; not what a machine decides, nor how many trials there are to be."""
    return {
        "env": config.env,
        "algo": config.algo,
        "seed": config.run.seed,
        "seeds_per_trial": options.seeds_per_trial,
        "evaluations": options.evaluations,
        "settings": {k: v for k, v in config.flat().items() if k not in OF_MACHINES and k not in space},
        "search": {setting: where.data() for setting, where in space.items()},
    }
