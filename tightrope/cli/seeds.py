"""tightrope train --seeds: the same run with several seeds side by side."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..agent import Agent, agent_class
from ..engine import choose_threads
from ..errors import UsageError, plural, printable
from ..tools import seeds as many
from ..training.build import check_env, configured
from ..training.checkpoint import CONFIG
from ..training.config import Config
from ..training.settings import name_of_device
from ..training.user_objects import imported, is_import_path
from ..types import Settings

MOST_JOBS = 1000


def train_seeds(
    args: list[str],
    env: str,
    algo: str,
    given: Settings,
    text: str,
    jobs: int | None,
    run_dir: Path | None,
    quiet: bool,
) -> int:
    """`train` for several seeds side by side, each in a process and a directory of its own; one report of all of them."""
    numbers = many.read_seeds(text)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise UsageError(f"jobs {jobs} is invalid: give a whole number from 1 to {MOST_JOBS:,}")
    if "seed" in given:
        raise UsageError(f"seed {given['seed']} and seeds {text} are both given: drop one of them")
    config, make = maker_of(env, algo, given)
    name = f"{env.replace('/', '-').replace(':', '-')}__{algo}__seeds__{time.strftime('%Y%m%d-%H%M%S')}"
    folder = Path("runs") / name if run_dir is None else run_dir
    if (folder / CONFIG).exists():
        raise UsageError(
            f"run_dir {folder} is a run of one seed: give another directory, in which each seed has its own"
        )
    probe = make({})  # whatever is wrong with the environment is said once
    places = many.slots(name_of_device(probe.state.env.device), config.run.threads, jobs)[: len(numbers)]
    threads = config.run.threads or choose_threads(probe.policy, config.algorithm.minibatch_size, len(places))
    probe.close()
    seeds = [many.Seed(number, folder / f"seed{number:04d}") for number in numbers]
    many.check_same(seeds, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"run_dir {folder} cannot be made: {error.strerror}") from None
    table = None if quiet or not sys.stdout.isatty() else SeedTable(seeds, config.algorithm.total_timesteps)
    say: Callable[[str], None] = (lambda line: None) if quiet else (lambda line: print(printable(line), flush=True))
    each = f"{plural(threads, 'thread')} each"
    say(f"{plural(len(seeds), 'seed')}, {len(places)} at once, {each}, in {folder}")
    words = [*without(args, "--seeds", "--jobs", "--run-dir", "--quiet", "--threads"), "--threads", str(threads)]
    pool = many.SeedPool(seeds, words, places, table.say if table else say, table.show if table else lambda: None)
    with table or contextlib.nullcontext():
        pool.run()
    done = many.compare(seeds, folder)
    if done is not None:
        print(printable(f"{env}: {done[1]}; {done[0]}"))
    if pool.stopped is not None:
        left = sum(seed.code != 0 for seed in seeds)
        print(
            f"stopped with {left} of {plural(len(seeds), 'seed')} unfinished; the same command with --run-dir "
            f"{printable(str(folder))} goes on"
        )
        return 128 + pool.stopped
    failed = [seed for seed in seeds if seed.code != 0]
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


class SeedTable:
    """How each seed is getting on, in a terminal."""

    def __init__(self, seeds: Sequence[many.Seed], total: int) -> None:
        from rich.live import Live

        self.seeds, self.total = seeds, total
        self.live = Live(auto_refresh=False, transient=True)

    def __enter__(self) -> None:
        self.live.start()

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, line: str) -> None:
        self.live.console.print(printable(line), markup=False, highlight=False)

    def show(self) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table("seed", "", "steps", "return", box=None, pad_edge=False)
        for seed in [one for one in self.seeds if one.process is not None and one.code is None]:
            steps, value = seed.progress()
            bar = ProgressBar(self.total, steps, width=30)
            table.add_row(str(seed.seed), bar, f"{steps:,}", "" if value is None else f"{value:.2f}")
        ended = sum(one.code is not None for one in self.seeds)
        table.caption = f"{ended} of {len(self.seeds)} ended"
        self.live.update(table, refresh=True)


def maker_of(env: str, algo: str, given: Settings) -> tuple[Config, Callable[[Settings], Agent]]:
    """(the usual settings, a maker of untrained agents that differ from them in some)."""
    if is_import_path(env):
        own = imported(env)
        first: Agent = agent_class(algo)(env, **given)
        config = first.config
        first.close()
        return config, lambda settings: agent_class(algo)(own, **{**given, **settings})
    check_env(env, str(given.get("backend", "auto")))
    config = configured(env, algo, given)
    return config, lambda settings: agent_class(algo).from_config(
        config.changed(**settings), network=config.network.network
    )
