"""The command sweep: search for good settings."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml

from ..engine.distributed import is_launched
from ..errors import UsageError, check_count, plural, printable
from ..models.networks import sees_images
from ..tools.sweep.space import Space, default_search_space, nearest_point, read_search_space
from ..training.config import Config
from ..types import Settings
from .arguments import read_with_settings, show_help, wants_help
from .training import maker_of

if TYPE_CHECKING:  # these modules need Optuna
    from ..tools.sweep.worker import Objective

MAX_TRIALS_OF_SWEEP = 10_000
MACHINE_SETTINGS = ("device", "accelerate", "threads", "backend", "project", "entity", "tags", "rank_timeout")
SINGLE_RUN_SETTINGS = (
    "eval_every", "stop_at_return", "video_every", "log", "watch", "run_name", "save_seconds", "save_every",
    "keep_checkpoints",
)  # fmt: skip


@dataclass(kw_only=True)
class SweepOptions:
    env: Annotated[str, "ENV"]
    """Environment to train on: an id, or module:Class of your own."""
    trials: int | None = None
    """Number of trials in all, over all processes and restarts."""
    algo: str = "ppo"
    """Algorithm: ppo or vpg."""
    storage: str | None = None
    """Where the study is stored: the path of a journal file (by default in the sweep's directory), sqlite:///FILE, or, for
    several machines, postgresql://USER@HOST/DB or mysql://USER@HOST/DB."""
    search: Path | None = None
    """YAML file with the search space: lines such as 'gamma: [0.95, 0.99]' or
    'learning_rate: {low: 1e-4, high: 1e-2, log: true}'."""
    print_search: bool = False
    """Print the search space as a YAML file for --search, and exit."""
    seeds_per_trial: int = 3
    """Seeds per trial, whose mean is its score; the first of them is --seed."""
    evaluations: int = 8
    """Evaluations of each trial, evenly spaced; after each, a trial below the median of the others is pruned."""
    sweep_dir: Path | None = None
    """Directory of best.yaml and sweep.html; sweeps/<env>__<algo> by default."""
    study: str | None = None
    """The study's name in the storage; by default that of the sweep's directory."""
    config: Path | None = None
    """YAML file of settings that are not searched; flags override it."""
    allow_import: tuple[str, ...] = ()
    """Modules that the --config file may import, as in 'network: module:Class'."""
    quiet: bool = False
    """Print only the result."""


def sweep_main(args: list[str]) -> int:
    """Search for good settings: many trials, each with several seeds, learning from earlier ones.

    The same command again, now or later, here or on other machines, works on the same study.
    Any setting of `tightrope train` can be given too, and is then not searched.
    Example: tightrope sweep CartPole-v1 --trials 30
    """
    if wants_help(args):
        return show_help("sweep", sweep_main.__doc__, SweepOptions)
    if is_launched():
        raise UsageError("sweep shares its trials without torchrun: start the command once for each process")
    needs = "sweep needs an env and a number of trials, such as `tightrope sweep CartPole-v1 --trials 30`"
    options, layer, flags = read_with_settings(SweepOptions, args, needs)
    if options.trials is None and not options.print_search:
        raise UsageError(needs)
    fixed = {k.replace("-", "_"): v for k, v in {**layer, **flags}.items() if k not in ("env", "algo")}
    config, make = maker_of(options.env, options.algo, {**fixed, "stop_at_return": None})  # all trials are equally long
    check_options(options, config, fixed)
    with make({}) as agent:  # a broken environment is reported before anything is written
        images = sees_images(agent.state.env.observation)
    space = default_search_space(config, fixed, images)
    if options.search:
        space = read_search_space(options.search, config, fixed)
    if not space:
        raise UsageError("nothing is left to search: drop a flag, or name settings with --search FILE.yaml")
    if options.print_search:
        lines = {name: dimension.as_yaml() for name, dimension in space.items()}
        print(yaml.safe_dump(lines, sort_keys=False, default_flow_style=None), end="")
        return 0
    if importlib.util.find_spec("optuna") is None:
        raise UsageError('sweep needs optuna, which is not installed: pip install -c constraints.txt -e ".[sweep]"')
    from ..tools.sweep.storage import StorageLost
    from ..tools.sweep.worker import Objective

    seeds = [config.run.seed + i for i in range(options.seeds_per_trial)]
    objective = Objective(make, config.to_flat_dict(), space, seeds, options.evaluations, images)
    try:
        return search(options, config, objective, sorted(fixed))
    except StorageLost as error:
        print(f"tightrope: {printable(str(error))}; start the same command again to continue", file=sys.stderr)
        return 1


def check_options(options: SweepOptions, config: Config, fixed: Settings) -> None:
    for name, most in (("trials", MAX_TRIALS_OF_SWEEP), ("seeds_per_trial", 100), ("evaluations", 100)):
        if (number := getattr(options, name)) is not None:
            check_count(name, number, most)
    for name in SINGLE_RUN_SETTINGS:
        if name in fixed:
            raise UsageError(f"{name} has no effect in a sweep, whose trials keep no directory: drop it")
    if not config.run.eval_episodes:
        raise UsageError("eval_episodes 0 gives a sweep no scores to compare: give at least 1")
    if config.algorithm.phases < options.evaluations:
        raise UsageError(
            f"evaluations {options.evaluations} is more than the {plural(config.algorithm.phases, 'phase')} of a run: lower "
            f"it, or raise total_timesteps {config.algorithm.total_timesteps}"
        )


def search(options: SweepOptions, config: Config, objective: Objective, fixed: list[str]) -> int:
    """Run trials until the study is done, and return the exit code."""
    from ..tools.sweep.outputs import PAGE, SweepOutputs
    from ..tools.sweep.slots import TrialSlots
    from ..tools.sweep.storage import connected, hide_password, open_study
    from ..tools.sweep.worker import TooManyFailures, Worker

    folder = options.sweep_dir or Path("sweeps") / f"{re.sub('[/:]', '-', config.env)}__{config.algo}"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"sweep_dir {folder} is a file: give a directory")
    page, url, count = folder / PAGE, options.storage or str(folder / "study.journal"), options.trials or 0

    def say(line: str) -> None:
        if not options.quiet:
            print(printable(line), flush=True)

    with connected(url) as storage:
        study, new = open_study(storage, options.study or folder.name, identity(options, config, objective.space))
        slots = TrialSlots(study, count, nearest_point(objective.space, config.to_flat_dict()), objective.space)
        outputs = SweepOutputs(folder, objective, slots, config, fixed, hide_password(url))
        size = f"{plural(count, 'trial')} of {plural(len(objective.seeds), 'seed')}"
        size += f" x {config.algorithm.total_timesteps:,} steps"
        start = "new study" if new else "continuing study"
        say(f"{start} {study.study_name!r} in {outputs.storage}: {size} over {', '.join(objective.space)}")
        try:
            signal = Worker(objective, slots, config.run.seed, say, outputs.refresh).work()
        except TooManyFailures as error:
            outputs.write("stopped")
            message = f"tightrope: {error}; {page} has all of them, and the same command continues"
            print(printable(message), file=sys.stderr)
            return 1
        outputs.write("stopped" if signal is not None else "ended")
        if signal is not None:
            print(f"stopped with {slots.done()} of {plural(count, 'trial')} done; the same command continues")
            return 128 + signal
        best = slots.best()
    if best is None:
        print(printable(f"tightrope: none of {count} trials was completed: {page} says why"), file=sys.stderr)
        return 1
    print(printable(f"best: trial {best.number}, score {best.value:.6g}; `{outputs.train_best_command}` trains it"))
    print(printable(str(page)))
    return 0


def identity(options: SweepOptions, config: Config, space: Space) -> Settings:
    """The settings that all processes of a sweep must share: all but the number of trials and those of the machine."""
    return {
        "env": config.env,
        "algo": config.algo,
        "seed": config.run.seed,
        "seeds_per_trial": options.seeds_per_trial,
        "evaluations": options.evaluations,
        "settings": {k: v for k, v in config.to_flat_dict().items() if k not in MACHINE_SETTINGS and k not in space},
        "search": {name: dimension.as_yaml() for name, dimension in space.items()},
    }
