"""The command line: tightrope train | resume | eval | record | report | export | envs | check | probe | bench."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from .agent import AGENTS, Agent, begin_anew, load
from .arguments import read_arguments, show_help, wants_help
from .engine import Accelerate
from .envs import ENVS
from .envs.engines import Backend
from .errors import EnvError, ExportError, NotFinite, UsageError, near_matches
from .runs.build import check_env
from .runs.config import configure, parts_of, read_settings, settings_of, unknown_setting
from .runs.directory import new_run_dir, resume_command
from .runs.evaluate import Evaluation
from .runs.export import check_file
from .runs.given import imported, is_path, named_by_user
from .runs.lock import locked
from .runs.presets import ELSEWHERE, EXPECTED, preset
from .runs.probe import probes_for, run_probe
from .runs.recover import find, has_checkpoints, load_config
from .runs.reports import add_score, write_report
from .runs.train import Outcome
from .types import Box, Settings
from .version import __version__
from .view import finite

USAGE = """\
usage: tightrope COMMAND ...

  train ENV     train an agent           tightrope train CartPole-v1
  resume RUN    go on with a run         tightrope resume runs/demo
  eval RUN      score what was trained   tightrope eval runs/demo --episodes 100
  record RUN    film what was trained    tightrope record runs/demo --out pole.mp4
  report RUN    a page about it, or      tightrope report runs/demo
                about several            tightrope report runs/a runs/b --out both.html
  export RUN    write it as a file       tightrope export runs/demo --onnx policy.onnx
  envs          list the environments    tightrope envs
  check ENV     find a bug in an env     tightrope check my_module:MyEnv
  probe         find a bug in the agent  tightrope probe --algo ppo
  bench ENV     measure its speed        tightrope bench CartPole-v1 --num-envs 64 1024

`tightrope COMMAND --help` says more. Documentation: README.md and docs/.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; a mistake in what was asked for is one line and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(dispatch(args))
    except UsageError as error:
        print(f"tightrope: {error}", file=sys.stderr)
        sys.exit(2)
    except EnvError as error:
        origin: BaseException = error
        while origin.__cause__ is not None:
            origin = origin.__cause__
        if origin is not error and not isinstance(origin, (EOFError, ConnectionError)):
            traceback.print_exception(origin)  # the environment's own, for whoever has to mend it
        print(f"tightrope: {error}", file=sys.stderr)
        sys.exit(1)
    except NotFinite as error:
        print(f"tightrope: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("tightrope: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if args[0] == "--version":
        print(f"tightrope {__version__}")
        return 0
    if args[0] not in COMMANDS:
        raise UsageError(
            f"unknown command {args[0]!r}.{near_matches(args[0], COMMANDS)} Give one of: {', '.join(COMMANDS)}"
        )
    return COMMANDS[args[0]](args[1:])


# train ---------------------------------------------------------------------------------------------------------------


def train(args: list[str]) -> int:
    """Train an agent and leave everything about the run in a directory.

    Settings not given come from the env's preset. Example: tightrope train CartPole-v1 --total-timesteps 200000 --seed 1
    """
    algo = guess(args, "--algo") or "ppo"
    if wants_help(args):
        env = next((a for a in args if preset(a, algo)), "ENV")
        config = configure(env, algo)
        default = train_options(algo)(
            env=env, algorithm=config.algorithm, network=config.network, run=config.run, algo=algo
        )
        return show_help(train_options(algo), "train", train.__doc__, default)
    file = guess(args, "--config")
    layer = read_settings(Path(file)) if file else {}
    algo = guess(args, "--algo") or str(layer.get("algo", "ppo"))
    types = {**settings_of(algo), "algo": str, "run_dir": Path, "config": Path, "quiet": bool}
    words, flags = read_arguments(args, types, lambda name: unknown_setting(name, algo, types))
    if len(words) > 1:
        raise UsageError(f"one word too many: {words[1]!r}. Give one env, then flags")
    env = str(words[0] if words else layer.get("env", ""))
    if not env:
        raise UsageError("train needs an env, such as `tightrope train CartPole-v1`; `tightrope envs` lists them")
    if is_path(env):
        imported(env)
    else:
        check_env(env, str(flags.get("backend", layer.get("backend", "auto"))))
    if str(flags.get("run_dir", "x")) in ("", "."):
        raise UsageError("run_dir is empty: give a directory of the run's own")
    quiet, chosen_dir = flags.pop("quiet", False), flags.pop("run_dir", None)
    flags.pop("config", None)
    config = configure(env, algo, layer, flags)
    if not quiet and not preset(env, algo):
        print(f"note: no preset for {algo} on {env}, so plain defaults; `tightrope train {env} --help` shows them")
    run_dir = new_run_dir(chosen_dir, config)
    if is_path(env):
        agent: Agent = AGENTS[algo](env, **{k: v for k, v in {**layer, **flags}.items() if k not in ("env", "algo")})
    else:
        agent = AGENTS[algo].from_config(config, network=config.network.network)
    return end_of(agent, agent.train(run_dir=run_dir, quiet=quiet), run_dir)


def end_of(agent: Agent, outcome: Outcome, run_dir: Path) -> int:
    """Say how training ended; returns the exit code."""
    if outcome.unsaved is not None and agent.run is not None:
        print(f"tightrope: {agent.run.complaint(agent.state)}", file=sys.stderr)
        return 1
    if outcome.interrupted is not None:
        goes_on = "nothing is left to do" if agent.finished else f"`{resume_command(run_dir, agent.config)}` goes on"
        print(f"stopped after {agent.steps:,} steps; {goes_on}")
        return 128 + outcome.interrupted
    try:
        score = agent.evaluate(100)
        print(f"{agent.config.env}: greedy return {score}; run in {run_dir}")
        show_score(run_dir, agent.steps, score)
    except KeyboardInterrupt:
        print(f"stopped during the last evaluation; the trained agent is in {run_dir}")
        return 130
    return 0


def show_score(run_dir: Path, step: int, score: Evaluation) -> None:
    """Put the last score into the run's report. A disk that does not take it stops nobody."""
    try:
        add_score(run_dir, step, score)
        write_report([run_dir])
    except (OSError, UsageError) as error:
        print(f"warning: the score is not in the report: {error}", file=sys.stderr)


@dataclass(kw_only=True)
class ResumeOptions:
    run: tyro.conf.Positional[Path]
    """Directory of a run."""
    total_timesteps: int | None = None
    """Environment steps in all; what the run was to do if not given. Schedules follow the new number."""
    env: str | None = None
    """module:Class of an environment of one's own that it was trained on."""
    network: str | None = None
    """module:Class of a network of one's own."""
    quiet: bool = False
    """Print only the result."""


def resume(args: list[str]) -> int:
    """Go on with a run from its newest checkpoint, as if it had never stopped.

    Most settings of `tightrope train` may be changed from here on. Example: tightrope resume runs/demo --total-timesteps 400000
    """
    if wants_help(args):
        return show_help(ResumeOptions, "resume", resume.__doc__)
    run_dir = Path(args[0] if args and not args[0].startswith("-") else "")
    if not args or args[0].startswith("-"):
        raise UsageError("resume needs a run directory first, such as `tightrope resume runs/demo`")
    saved = find(run_dir, say=lambda line: None) if has_checkpoints(run_dir) else None  # `load` will say it
    config = load_config(run_dir) if saved is None else saved.config
    with locked(run_dir):
        pass  # whoever trains it now is named before anything is made
    types = {**settings_of(config.algo), "algo": str, "env": str, "quiet": bool}
    words, flags = read_arguments(args[1:], types, lambda name: unknown_setting(name, config.algo, types))
    if words:
        raise UsageError(f"one word too many: {words[0]!r}. Give one run, then flags")
    quiet, env = flags.pop("quiet", False), flags.pop("env", None)
    if env is not None and ":" not in env:
        raise UsageError(f"env {env!r} is not module:Class: a run goes on with what it was trained on, {config.env}")
    given = (named_by_user(env) if env else None, flags.pop("network", None))
    if saved is None:
        agent: Agent = begin_anew(run_dir, *given, **flags)
        if not quiet:
            print(f"{run_dir} has no checkpoint yet: it begins anew")
    else:
        agent = load(run_dir, given[0], "last", given[1], **flags)
    before, after = config.flat(), agent.config.flat()
    for name in flags:
        if not quiet and before[name] != after[name]:
            print(f"{name}: {before[name]} so far, {after[name]} from here on")
    if agent.finished:
        print(agent.nothing_to_do(agent.config))
        return 0
    return end_of(agent, agent.train(quiet=quiet), run_dir)


def train_options(algo: str) -> type[Any]:
    """A flat set of flags from the algorithm's, the network's and the run's settings."""
    algorithm, network, run = parts_of(algo)
    arg, omit = tyro.conf.arg, tyro.conf.OmitArgPrefixes
    help_dir = "Where the run lives; runs/<env>__<algo>__<seed>__<time> if not given."
    options: list[Any] = [
        (
            "env",
            Annotated[
                str,
                tyro.conf.Positional,
                arg(help="Environment to train on; `tightrope envs` lists them.", metavar="ENV"),
            ],
        ),
        ("algorithm", omit[algorithm]),
        ("network", omit[network]),
        ("run", omit[run]),
        ("algo", Annotated[str, arg(help=f"Algorithm: {', '.join(AGENTS)}.")], "ppo"),
        ("run_dir", Annotated[Path | None, arg(help=help_dir)], None),
        ("config", Annotated[Path | None, arg(help="YAML file of settings; flags win over it.")], None),
        ("quiet", Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="Print only the result.")], False),
    ]
    return dataclasses.make_dataclass("Train", options, kw_only=True)


# eval, envs, probe ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class EvalOptions:
    run: tyro.conf.Positional[Path]
    """Directory of a run."""
    env: tuple[str, ...] = ()
    """Environments to score it on, with the same spaces; its own if not given (one of your own as module:Class)."""
    network: str | None = None
    """The network, as module:Class, of a run that was trained with one of your own."""
    episodes: int = 100
    """Greedy episodes, one in each of as many fresh environments."""
    seed: int | None = None
    """Seed of these environments; follows from the run's if not given."""
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None
    """Where to score it; where it was trained if not given."""
    checkpoint: str = "last"
    """Which of the run's checkpoints: last, best, or the name of one."""
    json: bool = False
    """Print one JSON object (one per environment): mean, std, min, max, episodes, lengths, returns."""


def evaluate(args: list[str]) -> int:
    """Score a trained agent greedily. Example: tightrope eval runs/demo --episodes 100 --json"""
    if wants_help(args):
        return show_help(EvalOptions, "eval", evaluate.__doc__)
    words, flags = read_options(EvalOptions, args, "eval")
    if len(words) != 1:
        raise UsageError("eval needs one run directory, such as `tightrope eval runs/demo`")
    options = EvalOptions(run=Path(words[0]), **flags)
    if not options.run.is_dir():
        raise UsageError(f"{options.run} is not a run: there is no such directory")
    device: Settings = {} if options.device is None else {"device": options.device}
    own = next((found for env in options.env if (found := named_by_user(env)) is not None), None)
    agent: Agent = load(options.run, own, options.checkpoint, options.network, **device)
    for env in options.env or (None,):
        result, name = agent.evaluate(options.episodes, env, options.seed), env or agent.config.env
        if options.json:
            print(json.dumps(finite({"env": name, **result.as_dict()}), allow_nan=False))
        else:
            print(f"{name}: {result}")
    return 0


@dataclass(kw_only=True)
class RecordOptions:
    run: tyro.conf.Positional[Path]
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
        return show_help(RecordOptions, "record", record.__doc__)
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
    print(agent.record(options.out, options.episodes, options.seed, **shot))
    return 0


@dataclass(kw_only=True)
class ReportOptions:
    run: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Directories of runs."""
    out: Path | None = None
    """File to write; report.html in the run's directory, or comparison.html here for several runs, if not given."""


def report(args: list[str]) -> int:
    """Write a page about a run, or about several side by side, that opens in any browser without a network.

    Runs that differ only in their seed are one group, shown by their mean.
    Example: tightrope report runs/a runs/b --out both.html
    """
    if wants_help(args):
        return show_help(ReportOptions, "report", report.__doc__)
    words, flags = read_options(ReportOptions, args, "report", words=len(args))
    if not words:
        raise UsageError("report needs a run directory, such as `tightrope report runs/demo`")
    print(write_report([Path(word) for word in words], flags.get("out")))
    return 0


@dataclass(kw_only=True)
class ExportOptions:
    run: tyro.conf.Positional[Path]
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
        return show_help(ExportOptions, "export", export.__doc__)
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
        print(load(options.run, own, options.checkpoint, options.network).export(options.onnx))
    except ExportError as error:
        print(f"tightrope: {error}", file=sys.stderr)
        return 1
    return 0


def envs(args: list[str]) -> int:
    """List the environments that have a preset, the score it reaches and how long that takes. Example: tightrope envs"""
    from rich.console import Console
    from rich.table import Table

    if wants_help(args):
        return show_help(NoOptions, "envs", envs.__doc__)
    read_options(NoOptions, args, "envs", words=0)
    native = Table("on the device", "numbers seen", "action", "steps", "preset reaches", "in", box=None, pad_edge=False)
    for env_id, cls in ENVS.items():
        action = cls.action
        if isinstance(action, Box):
            choices = f"{action.shape[0]} in [{action.low:g}, {action.high:g}]"
        else:
            choices = f"one of {getattr(action, 'n', '')}"
        score, time = EXPECTED.get(env_id, ("", ""))
        native.add_row(env_id, str(cls.observation.shape[0]), choices, str(cls.time_limit or "-"), score, time)
    engines = Table("by an engine", "engine", "needs", "preset reaches", "in", box=None, pad_edge=False)
    for env_id, (backends, extra) in ELSEWHERE.items():
        engines.add_row(env_id, backends, f"tightrope\\[{extra}]", *EXPECTED.get(env_id, ("", "")))
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(native)
    console.print()
    console.print(engines)
    console.print(
        "\nTimes: one core of a small 2-core machine, or as said. Any other Gymnasium id works too, with plain settings."
    )
    return 0


@dataclass(kw_only=True)
class NoOptions:
    pass


@dataclass(kw_only=True)
class CheckOptions:
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """An environment's id, or module:Class of one's own (single or vector)."""
    backend: Backend = "auto"
    """Engine to look at it through; auto chooses as training would."""
    num_envs: int = 4
    """Rows of what can be made with several."""
    steps: int = 4000
    """The most random steps."""
    seed: int = 0
    """Seed of the first episodes."""


def check(args: list[str]) -> int:
    """Find what is wrong with an environment before training on it. Example: tightrope check my_module:MyEnv"""
    if wants_help(args):
        return show_help(CheckOptions, "check", check.__doc__)
    words, flags = read_options(CheckOptions, args, "check")
    if len(words) != 1:
        raise UsageError("check needs one env, such as `tightrope check my_module:MyEnv`")
    options = CheckOptions(target=words[0], **flags)
    for name in ("num_envs", "steps"):
        if getattr(options, name) < 1:
            raise UsageError(f"{name} {getattr(options, name)} is too small: give at least 1")
    from .envs.checker import check as look

    target = imported(options.target) if is_path(options.target) else options.target
    report = look(target, steps=options.steps, num_envs=options.num_envs, seed=options.seed, backend=options.backend)
    print("\n".join(report.lines()))
    return 0 if report.ok else 1


@dataclass(kw_only=True)
class BenchOptions:
    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """Environment to train on: an id, or module:Class of one's own."""
    algo: str = "ppo"
    """Algorithm: ppo or vpg."""
    num_envs: tuple[int, ...] = ()
    """Numbers of environments to measure, one after the other; the preset's if not given."""
    accelerate: tuple[Accelerate, ...] = ("auto",)
    """Ways of execution to measure: auto, eager, compile, graph, max."""
    seconds: float = 2.0
    """How long to measure each."""
    profile: bool = False
    """Write one phase of each as a trace that Perfetto opens."""


@dataclass(kw_only=True)
class ProbeOptions:
    algo: str = "ppo"
    """Algorithm to diagnose: ppo or vpg."""
    seed: int = 1
    """Seed of the diagnosis."""
    show_probs: bool = False
    """Print the values and action probabilities that were learned."""


def probe(args: list[str]) -> int:
    """Train on five tiny environments and say what a failing one means. Example: tightrope probe --algo ppo --show-probs"""
    if wants_help(args):
        return show_help(ProbeOptions, "probe", probe.__doc__)
    options = ProbeOptions(**read_options(ProbeOptions, args, "probe", words=0)[1])
    parts_of(options.algo)
    failures = 0
    for one in probes_for(options.algo):
        finding = run_probe(one, options.algo, options.seed)
        verdict = "ok  " if finding.passed else "FAIL"
        print(f"{verdict} {one.env}  error {finding.error:.1e} (at most {one.tolerance:.0e})")
        if options.show_probs:
            for i, obs in enumerate(one.observations):
                value = (
                    "" if finding.values is None else f"  value {finding.values[i]:+.4f} (must be {one.values[i]:+.4g})"
                )
                shares = ", ".join(f"{p:.4f}" for p in finding.probabilities[i])
                print(f"     obs {obs:+.0f}{value}  probabilities {shares}")
        if not finding.passed:
            failures += 1
            if failures == 1:  # later probes need what the first failing one needs
                print(f"     look at {one.meaning}")
    print("all probes passed" if not failures else f"{failures} failed: mend the first one first")
    return 1 if failures else 0


def bench(args: list[str]) -> int:
    """Measure training's speed and where a phase's time goes. Of --num-envs and --accelerate several may be given.

    Any setting of `tightrope train` works too. Example: tightrope bench CartPole-v1 --num-envs 64 1024 --profile
    """
    if wants_help(args):
        return show_help(BenchOptions, "bench", bench.__doc__)
    algo = guess(args, "--algo") or "ppo"
    own = {name: kind for name, kind in get_type_hints(BenchOptions).items() if name != "env"}
    types = {**settings_of(algo), **own}
    words, flags = read_arguments(args, types, lambda name: unknown_setting(name, algo, types))
    if len(words) != 1:
        raise UsageError("bench needs one env, such as `tightrope bench CartPole-v1`")
    options = BenchOptions(env=words[0], **{name: flags.pop(name) for name in own if name in flags})
    if not 0 < options.seconds <= 3600:
        raise UsageError(f"seconds {options.seconds:g} will not do: give a number above 0 and up to 3600")
    if "total_timesteps" in flags:
        raise UsageError("total_timesteps means nothing here: bench runs for as long as --seconds says. Drop it")
    if not is_path(options.env):
        check_env(options.env, str(flags.get("backend", "auto")))
    from .runs.bench import HEADER
    from .runs.bench import bench as measure

    header = [HEADER]
    for count in options.num_envs or (None,):
        for mode in options.accelerate:
            settings = {**flags, "accelerate": mode, **({} if count is None else {"num_envs": count})}
            name = f"trace-{options.env.replace('/', '-').replace(':', '-')}-{count or 'preset'}-{mode}.json"
            trace = Path(name) if options.profile else None
            line = measure(options.env, algo, settings, options.seconds, trace).line()
            print("\n".join([*header, line]), flush=True)
            header = []
            if trace is not None:
                print(f"one phase is in {trace}: open it at https://ui.perfetto.dev")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "record": record,
    "report": report,
    "export": export,
    "envs": envs,
    "check": check,
    "probe": probe,
    "bench": bench,
}


# arguments -----------------------------------------------------------------------------------------------------------


def read_options(options: type[Any], args: Sequence[str], command: str, words: int = 1) -> tuple[list[str], Settings]:
    """(plain words, flags) of one of the smaller commands."""
    types = {name: kind for name, kind in get_type_hints(options).items() if name not in ("run", "target")}

    def unknown(name: str) -> UsageError:
        flag = f"--{name.replace('_', '-')}"
        return UsageError(
            f"unknown option {flag!r}.{near_matches(name, types)} `tightrope {command} --help` lists them"
        )

    found, flags = read_arguments(args, types, unknown)
    if len(found) > words:
        raise UsageError(f"one word too many: {found[words]!r}. `tightrope {command} --help` says what there is")
    return found, flags


def guess(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag that decides how the others are read."""
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(flag + "="):
            return arg.partition("=")[2]
    return None
