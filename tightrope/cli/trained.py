"""tightrope eval, record, report, export: what to do with what was trained."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..agent import Agent
from ..errors import ExportError, UsageError, plain
from ..logging import CallbackList, EvaluationLine, finite
from ..saved import load, load_policy
from ..training.export import check_file
from ..training.policy import Policy
from ..training.reports import write_report
from ..training.scoring import shown_to
from ..training.user_objects import imported, is_path, named_by_user
from ..types import Settings
from .arguments import read_options, show_help, wants_help


@dataclass(kw_only=True)
class EvalOptions:
    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    env: tuple[str, ...] = ()
    """Environments to score it on, with the same spaces; its own if not given (one of your own as module:Class)."""
    network: str | None = None
    """The network, as module:Class, of a run that was trained with one of your own."""
    episodes: int = 100
    """Episodes in fresh environments."""
    stochastic: bool = False
    """Draw actions at random as in training instead of taking the likeliest."""
    eval_seconds: float | None = None
    """Most seconds: the score is then of the episodes finished so far; no limit if not given."""
    eval_envs: int | None = None
    """Environments that play at once, where they are engines on the host; as in the run's settings if not given."""
    seed: int | None = None
    """Seed of these environments; follows from the run's if not given."""
    device: str | None = None
    """Where to score it: auto, cpu, cuda, cuda:1 or mps; where it was trained if not given."""
    checkpoint: str = "last"
    """Which of the run's checkpoints: last, best, or the name of one."""
    json: bool = False
    """Print one JSON object per environment: env, mean, std, min, max and mean_length over the episodes; returns and lengths,
    one entry each; episodes and requested, which differ if time was up; unfinished, cut off; games_cut; favours_short;
    stochastic."""


def evaluate(args: list[str]) -> int:
    """Score a trained agent, greedily unless told otherwise. Example: tightrope eval runs/demo --episodes 100 --json"""
    if wants_help(args):
        return show_help("eval", evaluate.__doc__, EvalOptions)
    words, flags = read_options(EvalOptions, args, "eval")
    if len(words) != 1:
        raise UsageError("eval needs one run directory, such as `tightrope eval runs/demo`")
    options = EvalOptions(run=Path(words[0]), **flags)
    if not options.run.is_dir():
        raise UsageError(f"{options.run} is not a run: there is no such directory")
    changed: Settings = {} if options.device is None else {"device": options.device}
    changed |= {} if options.eval_envs is None else {"eval_envs": options.eval_envs}
    own = next((found for env in options.env if (found := named_by_user(env)) is not None), None)
    agent: Agent = load(options.run, own, options.checkpoint, options.network, **changed)
    how = (not options.stochastic, options.eval_seconds)
    with agent:
        for env in options.env or (None,):
            name = env or agent.config.env
            with EvaluationLine(name) as line:
                tick = shown_to(CallbackList([] if options.json else [line]), options.episodes)
                result = agent.evaluate(options.episodes, env, options.seed, *how, tick=tick)
            if options.json:
                found = {"env": name, **result.as_dict(), "stochastic": options.stochastic}
                print(json.dumps(finite(found), allow_nan=False))
            else:
                print(plain(f"{name}: {'sampled actions, ' if options.stochastic else ''}{result}"))
    return 0


@dataclass(kw_only=True)
class RecordOptions:
    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    out: Path
    """File to write, such as pole.mp4; one of that name is replaced."""
    episodes: int | None = None
    """Episodes; 1, or 16 with --grid, if not given."""
    grid: bool = False
    """Side by side instead of one after the other."""
    every: int | None = None
    """Show every so-many-th step, which makes time go faster; as many as make it real time if not given."""
    fps: int | None = None
    """Frames a second; as many as make it real time, 60 at most, if not given."""
    stochastic: bool = False
    """Draw actions at random as in training instead of taking the likeliest."""
    seed: int | None = None
    """Seed of the environments; follows from the run's if not given."""
    checkpoint: str = "last"
    """Which of the run's checkpoints: last, best, or the name of one."""
    env: str | None = None
    """The environment, as module:Class, of a run that was trained on one of your own."""
    network: str | None = None
    """The network, as module:Class, of a run that was trained with one of your own."""


def record(args: list[str]) -> int:
    """Film a trained agent in a fresh environment, greedily. Example: tightrope record runs/demo --out pole.mp4 --grid"""
    if wants_help(args):
        return show_help("record", record.__doc__, RecordOptions)
    words, flags = read_options(RecordOptions, args, "record")
    if len(words) != 1 or "out" not in flags:
        raise UsageError("record needs a run and a file, such as `tightrope record runs/demo --out pole.mp4`")
    options = RecordOptions(run=Path(words[0]), **flags)
    if not options.run.is_dir():
        raise UsageError(f"{options.run} is not a run: there is no such directory")
    if options.env is not None and not is_path(options.env):
        raise UsageError(f"env {options.env!r} is not module:Class: drop it, if the run was trained on that id")
    own = None if options.env is None else imported(options.env)
    agent: Agent = load(options.run, own, options.checkpoint, options.network)
    shot = {name: getattr(options, name) for name in ("grid", "every", "fps", "stochastic")}
    with agent:
        print(plain(str(agent.record(options.out, options.episodes, options.seed, **shot))))
    return 0


@dataclass(kw_only=True)
class ReportOptions:
    run: Annotated[tuple[Path, ...], "RUN [RUN ...]"]
    """Directories of runs."""
    out: Path | None = None
    """File to write; report.html in the run's directory, or comparison.html here for several runs, if not given."""


def report(args: list[str]) -> int:
    """Write a page about a run, or about several side by side, that opens in any browser without a network.

    Runs that differ only in their seed are one group, shown by their mean.
    Example: tightrope report runs/a runs/b --out both.html
    """
    if wants_help(args):
        return show_help("report", report.__doc__, ReportOptions)
    words, flags = read_options(ReportOptions, args, "report", words=len(args))
    if not words:
        raise UsageError("report needs a run directory, such as `tightrope report runs/demo`")
    print(plain(str(write_report([Path(word) for word in words], flags.get("out")))))
    return 0


@dataclass(kw_only=True)
class ExportOptions:
    run: Annotated[Path, "RUN"]
    """Directory of a run."""
    onnx: Path
    """File to write, such as policy.onnx; one of that name is replaced."""
    checkpoint: str = "last"
    """Which of the run's checkpoints."""
    env: str | None = None
    """The environment, as module:Class, of a run that was trained on one of your own."""
    network: str | None = None
    """The network, as module:Class, of a run that was trained with one of your own."""


def export(args: list[str]) -> int:
    """Write the greedy policy, from raw observation to the env's action, as an ONNX file that is checked against torch.

    Example: tightrope export runs/demo --onnx policy.onnx
    """
    if wants_help(args):
        return show_help("export", export.__doc__, ExportOptions)
    words, flags = read_options(ExportOptions, args, "export")
    if len(words) != 1 or "onnx" not in flags:
        raise UsageError("export needs a run and a file, such as `tightrope export runs/demo --onnx policy.onnx`")
    options = ExportOptions(run=Path(words[0]), **flags)
    if not options.run.is_dir():
        raise UsageError(f"{options.run} is not a run: there is no such directory")
    if options.env is not None and not is_path(options.env):
        raise UsageError(f"env {options.env!r} is not module:Class: drop it, if the run was trained on that id")
    check_file(options.onnx)
    own = None if options.env is None else imported(options.env)
    try:
        trained = to_export(options, own)
        print(plain(str(trained.export(options.onnx))))
        if isinstance(trained, Agent):
            trained.close()
    except ExportError as error:
        print(f"tightrope: {plain(str(error))}", file=sys.stderr)
        return 1
    return 0


def to_export(options: ExportOptions, own: Any) -> Agent | Policy:
    """The agent of a run; where its environment is not here, its policy alone."""
    try:
        return load(options.run, own, options.checkpoint, options.network)
    except UsageError as error:
        if own is not None:
            raise
        try:
            policy = load_policy(options.run, options.checkpoint, options.network)
        except UsageError:
            raise error from None
        print(
            plain(f"note: without the environment, so checked on random observations alone ({error})"), file=sys.stderr
        )
        return policy
