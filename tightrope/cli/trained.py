"""The commands eval, record, play, report and export, for trained agents."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ..agent import Agent
from ..envs import ENVS, choose
from ..errors import ExportError, UsageError, printable
from ..logging import CallbackList, EvaluationLine, finite
from ..play.page import save_game
from ..population.page import PAGE, write_population_page
from ..population.record import read_record
from ..saved import load
from ..training.export import check_file
from ..training.own_code import imported, is_import_path
from ..training.policy import Policy, load_policy
from ..training.reports import write_report
from ..training.run_directory import load_config
from ..training.scoring import shown_to
from ..training.user_objects import import_memory, named_by_user
from ..training.video import Shot
from .arguments import cli_command


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """The options that load trained agents."""

    checkpoint: str = "last"
    """Which of the run's checkpoints: last, best, or the name of one."""
    network: str | None = None
    """The network, as module:Class, of a run that was trained with one of your own."""
    memory: str | None = None
    """The memory, as module:Class, of a run that was trained with one of your own."""
    train_env: str | None = None
    """The training environment, as module:Class, of a run with a train_env of your own."""
    wrappers: tuple[str, ...] = ()
    """The wrappers, as module:name, of a run that was trained with some."""
    env_kwargs: dict[str, object] | None = None
    """Arguments for the environment's constructor, as name=value, instead of all those of the run."""

    def load(self, run: Path, env: Any, **changed: Any) -> Agent:
        """The agent of a run, in an environment of the user's if one is given."""
        import_memory(self.memory)
        given = {
            "wrappers": self.wrappers or None,
            "env_kwargs": self.env_kwargs,
            "train_env": self.train_env,
            **changed,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        return load(run, env, self.checkpoint, self.network, **settings)


@dataclass(frozen=True, kw_only=True)
class EvalOptions(LoadOptions):
    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    env: tuple[str, ...] = ()
    """Environments to score the agent on, with the same spaces (module:Class for your own); the run's if not given."""
    episodes: int = 100
    """Episodes in fresh environments."""
    stochastic: bool = False
    """Sample actions as in training instead of taking the likeliest."""
    eval_seconds: float | None = None
    """Time limit in seconds: the score then covers the episodes finished so far; no limit if not given."""
    eval_envs: int | None = None
    """Number of environments at once, if they run outside torch; the run's setting if not given."""
    seed: int | None = None
    """Seed of these environments; derived from the run's if not given."""
    device: str | None = None
    """Torch device: auto, cpu, cuda, cuda:1 or mps; that of the run if not given."""
    json: bool = False
    """Print one JSON object per environment: env, mean, std, min, max and mean_length over the episodes; returns and lengths,
    one entry each; episodes and requested, which differ if time was up; unfinished, cut off; games_cut; favours_short;
    stochastic."""


@cli_command("eval", EvalOptions, "eval needs one run directory, such as `tightrope eval runs/demo`")
def eval_main(options: EvalOptions) -> int:
    """Score a trained agent with greedy actions. Example: tightrope eval runs/demo --episodes 100 --json"""
    own = next((found for env in options.env if (found := named_by_user(env)) is not None), None)
    how = (not options.stochastic, options.eval_seconds)
    with options.load(options.run, own, device=options.device, eval_envs=options.eval_envs) as agent:
        for env in options.env or (None,):
            name = env or agent.config.env
            with EvaluationLine(name) as line:
                tick = shown_to(CallbackList([] if options.json else [line]), options.episodes)
                result = agent.evaluate(options.episodes, env, options.seed, *how, tick=tick)
            if options.json:
                found = {"env": name, **result.as_dict(), "stochastic": options.stochastic}
                print(json.dumps(finite(found), allow_nan=False))
            else:
                print(printable(f"{name}: {'sampled actions, ' if options.stochastic else ''}{result}"))
    return 0


@dataclass(frozen=True, kw_only=True)
class OneRunOptions(LoadOptions):
    """The options that select one trained agent."""

    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    env: str | None = None
    """The environment, as module:Class, of a run that was trained on one of your own."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions(OneRunOptions, Shot):
    out: Path
    """File to write, such as pole.mp4; an existing file is replaced."""
    seed: int | None = None
    """Seed of the environments; derived from the run's if not given."""


@cli_command(
    "record", RecordOptions, "record needs a run and a file, such as `tightrope record runs/demo --out pole.mp4`"
)
def record_main(options: RecordOptions) -> int:
    """Write a video of a trained agent with greedy actions. Example: tightrope record runs/demo --out pole.mp4 --grid"""
    shot = {field.name: getattr(options, field.name) for field in fields(Shot)}
    with options.load(options.run, own_env(options.env)) as agent:
        print(printable(str(agent.record(options.out, seed=options.seed, **shot))))
    return 0


@dataclass(frozen=True, kw_only=True)
class PlayOptions(LoadOptions):
    run: Annotated[tuple[Path, ...], "RUN [RUN ...]"]
    """Directories of runs, shown side by side."""
    out: Path = Path("play.html")
    """File to write; an existing file is replaced."""
    env: str | None = None
    """The environment, as module:Class, of runs that were trained on one of your own."""
    seed: int | None = None
    """Seed of the episodes; derived from the run's if not given."""


@cli_command("play", PlayOptions, "play needs a run, such as `tightrope play runs/demo --out play.html`")
def play_main(options: PlayOptions) -> int:
    """Write a page on which trained policies play in a browser: push them, act yourself, change the physics.

    It needs no network. The equations of a tensor environment are recorded and checked against torch over 1,000 steps.
    Example: tightrope play runs/a runs/b --out play.html
    """
    own = own_env(options.env)
    runs = list(dict.fromkeys(options.run))
    if missing := [run for run in runs if not run.is_dir()]:
        raise UsageError(f"{missing[0]} is not a run: there is no such directory")
    agents = [options.load(run, own) for run in runs]
    page = agents[0].play(options.out, *agents[1:], seed=options.seed)
    if len(runs) == 1 and options.checkpoint == "last":
        with suppress(OSError):  # the page is written
            save_game(page.games[0], runs[0], agents[0].config.run.seed)
    print(printable(str(page)))
    return 0


def own_env(name: str | None) -> Any:
    """Import the environment that --env names as module:Class."""
    if name is not None and not is_import_path(name):
        raise UsageError(f"env {name!r} is not module:Class: drop it if the run was trained on this id")
    return None if name is None else imported(name)


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    run: Annotated[tuple[Path, ...], "RUN [RUN ...]"]
    """Directories of runs."""
    out: Path | None = None
    """File to write; report.html in the run's directory, or comparison.html here for several runs, if not given."""


@cli_command("report", ReportOptions, "report needs a run directory, such as `tightrope report runs/demo`")
def report_main(options: ReportOptions) -> int:
    """Write a page about a run, or a comparison of several. The page works in any browser without a network.

    The page of one run also plays its policy, as `tightrope play` does, if its environment is one of Tightrope's tensors.
    Runs that differ only in their seed are one group, shown by their mean. The directory of a population gives its page.
    Example: tightrope report runs/a runs/b --out both.html
    """
    if len(options.run) == 1 and (record := read_record(options.run[0])) is not None:
        if options.out is not None:
            raise UsageError(f"out {options.out} is not possible for a population: its page is {PAGE} in its directory")
        print(printable(str(write_population_page(record, options.run[0]))))
        return 0
    if len(options.run) == 1:
        record_game(options.run[0])
    print(printable(str(write_report(list(options.run), options.out))))
    return 0


def record_game(run: Path) -> None:
    """Record the newest policy for the player in its report, if its environment is one of Tightrope's tensors."""
    try:
        config = load_config(run)
        if config.env not in ENVS or choose(config.env, config.run.backend, config.run.adapts_env).backend != "tensor":
            return
        with load(run) as agent:
            save_game(agent.game(agent.config.run.seed), run, agent.config.run.seed)
    except (UsageError, OSError):  # the report is made without it
        return


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OneRunOptions):
    onnx: Path
    """File to write, such as policy.onnx; an existing file is replaced."""


@cli_command(
    "export", ExportOptions, "export needs a run and a file, such as `tightrope export runs/demo --onnx policy.onnx`"
)
def export_main(options: ExportOptions) -> int:
    """Write the greedy policy, from raw observation to the env's action, as an ONNX file that is checked against torch.

    Example: tightrope export runs/demo --onnx policy.onnx
    """
    own = own_env(options.env)
    check_file(options.onnx)
    try:
        with to_export(options, own) as trained:
            print(printable(str(trained.export(options.onnx))))
    except ExportError as error:
        print(f"tightrope: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


def to_export(options: ExportOptions, own: Any) -> Agent | Policy:
    """The agent of a run; only its policy if its environment is not available."""
    try:
        return options.load(options.run, own)
    except UsageError as error:
        if own is not None:
            raise
        try:
            policy = load_policy(options.run, options.checkpoint, options.network)
        except UsageError:
            raise error from None
        line = f"note: the environment is not available, so the check uses random observations only ({error})"
        print(printable(line), file=sys.stderr)
        return policy
