"""The command line: tightrope train | eval | envs | probe."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from . import __version__
from .agent import AGENTS, Agent, load
from .envs import ENVS
from .errors import UsageError, near_matches
from .runs.build import check_env
from .runs.config import Config, coerce, configure, parts_of, read_settings, settings_of, unknown_setting
from .runs.probe import probes_for, run_probe
from .runs.train import new_run_dir
from .types import Discrete

USAGE = """\
usage: tightrope COMMAND ...

  train ENV     train an agent           tightrope train CartPole-v1
  eval RUN      score what was trained   tightrope eval runs/demo --episodes 100
  envs          list the environments    tightrope envs
  probe         find a bug in the agent  tightrope probe --algo ppo

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
    env, algo = positional(args), flag(args, "algo") or "ppo"
    if env is not None:
        check_env(env)
    file = flag(args, "config")
    layers = [read_settings(Path(file))] if file else []
    algo = str(layers[0].get("algo", algo)) if layers and flag(args, "algo") is None else algo
    if env is None and layers and isinstance(layers[0].get("env"), str):
        env = layers[0]["env"]
        check_env(env)
        args = [env, *args]
    if env is None and not {"-h", "--help"} & set(args):
        for arg in args:
            refuse_unknown(arg, algo)
        raise UsageError("train needs an env, such as `tightrope train CartPole-v1`; `tightrope envs` lists them")
    default = configure(env or "ENV", algo, *layers)
    args = tidy(args, algo)
    parsed = parse(train_options(algo), args, "train", train.__doc__, algo=algo, defaults=default)
    config = Config(env=parsed.env, algo=algo, algorithm=parsed.algorithm, network=parsed.network, run=parsed.run)
    config = configure(config.env, algo, config.flat(), with_preset=False)
    run_dir = new_run_dir(parsed.run_dir, config)
    agent = AGENTS[algo].from_config(config)
    outcome = agent.train(run_dir=run_dir, quiet=parsed.quiet)
    if outcome.interrupted is not None:
        print(f"stopped after {agent.steps:,} steps; what was learned is in {run_dir}")
        return 128 + outcome.interrupted
    print(f"{config.env}: greedy return {agent.evaluate(100)}; run in {run_dir}")
    return 0


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
    """Environments to score it on, with the same spaces; its own if not given."""
    episodes: int = 100
    """Greedy episodes, one in each of as many fresh environments."""
    seed: int | None = None
    """Seed of these environments; follows from the run's if not given."""
    checkpoint: Literal["last", "best"] = "last"
    """Which of the run's checkpoints."""
    json: bool = False
    """Print one JSON object (one per environment): mean, std, min, max, episodes, lengths, returns."""


def evaluate(args: list[str]) -> int:
    """Score a trained agent greedily. Example: tightrope eval runs/demo --episodes 100 --json"""
    options: EvalOptions = parse(EvalOptions, args, "eval", evaluate.__doc__)
    if not options.run.is_dir():
        raise UsageError(f"{options.run} is not a run: there is no such directory")
    agent: Agent = load(options.run, checkpoint=options.checkpoint)
    for env in options.env or (agent.config.env,):
        result = agent.evaluate(options.episodes, env, options.seed)
        if options.json:
            print(json.dumps({"env": env, **result.as_dict()}))
        else:
            print(f"{env}: {result}")
    return 0


def envs(args: list[str]) -> int:
    """List the environments and their spaces. Example: tightrope envs"""
    from rich.console import Console
    from rich.table import Table

    parse(NoOptions, args, "envs", envs.__doc__)
    table = Table("env", "numbers seen", "action", "steps", "solved at", box=None, pad_edge=False)
    for env_id, cls in ENVS.items():
        action = cls.action
        if isinstance(action, Discrete):
            choices = f"one of {action.n}"
        else:
            choices = f"{action.shape[0]} in [{action.low:g}, {action.high:g}]"
        solved = "" if cls.solved_at is None else f"{cls.solved_at:g}"
        table.add_row(env_id, str(cls.observation.shape[0]), choices, str(cls.time_limit or "-"), solved)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


@dataclass(kw_only=True)
class NoOptions:
    pass


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
    options: ProbeOptions = parse(ProbeOptions, args, "probe", probe.__doc__)
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


COMMANDS: dict[str, Callable[[list[str]], int]] = {"train": train, "eval": evaluate, "envs": envs, "probe": probe}


NUMBERS = (int, float, int | None, float | None)

# parsing -------------------------------------------------------------------------------------------------------------


def positional(args: Sequence[str]) -> str | None:
    """The env among the arguments: a known id anywhere, or else the first word."""
    known = next((a for a in args if a in ENVS), None)
    return known or (args[0] if args and not args[0].startswith("-") else None)


def tidy(args: Sequence[str], algo: str) -> list[str]:
    """The arguments with numbers checked, and written as Python writes them: `--total-timesteps 1e6` is a whole number."""
    annotations, tidied = settings_of(algo), list(args)
    for i, arg in enumerate(args):
        name, equals, value = arg.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not arg.startswith("--") or annotations.get(name) not in NUMBERS:
            continue
        if equals:
            tidied[i] = f"{arg.partition('=')[0]}={number(name, value, annotations[name])}"
        elif i + 1 < len(args):
            tidied[i + 1] = number(name, args[i + 1], annotations[name])
    return tidied


def number(name: str, text: str, annotation: Any) -> str:
    return str(coerce(name, None if text == "None" else text, annotation))


def flag(args: Sequence[str], name: str) -> str | None:
    """The value of `--name VALUE` or `--name=VALUE`, before the real parsing."""
    for i, arg in enumerate(args):
        if arg == f"--{name}" and i + 1 < len(args):
            return args[i + 1]
        if arg.startswith(f"--{name}="):
            return arg.partition("=")[2]
    return None


def parse(
    options: type[Any], args: list[str], command: str, doc: str | None, algo: str = "", defaults: Config | None = None
) -> Any:
    """The command's options from its arguments; whatever is wrong with them becomes one line."""
    default = None
    if defaults is not None:
        parts = {"algorithm": defaults.algorithm, "network": defaults.network, "run": defaults.run}
        default = options(env=tyro.MISSING, **parts, algo=algo)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            parsed, unknown = tyro.cli(
                options, args=args, prog=f"tightrope {command}", description=doc, return_unknown_args=True,
                **({} if default is None else {"default": default}),
            )  # fmt: skip
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{one_line(errors.getvalue())} (see tightrope {command} --help)") from None
    if unknown:
        first = unknown[0]
        if not first.startswith("-"):
            raise UsageError(f"one argument too many: {first!r} (see tightrope {command} --help)")
        name = first.lstrip("-").partition("=")[0].replace("-", "_")
        if algo:
            refuse_unknown(first, algo)
        names = [f.name for f in dataclasses.fields(options)]
        raise UsageError(f"unknown option {first!r}.{near_matches(name, names)} (see tightrope {command} --help)")
    return parsed


def refuse_unknown(arg: str, algo: str) -> None:
    """An error if the argument is a flag that `train` does not have."""
    name = arg.lstrip("-").partition("=")[0].replace("-", "_")
    known = [*settings_of(algo), "run_dir", "config", "quiet", "algo"]
    if arg.startswith("--") and name.removeprefix("no_") not in known:
        raise unknown_setting(name, algo, known)


def one_line(box: str) -> str:
    """The words inside the box that tyro draws around an error, without its pointer to --help."""
    words = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.splitlines()]
    words = [w for w in words if w and not re.match(r"(For full helptext|Parsing error|Required options)", w)]
    line = re.sub(r"\s+", " ", " ".join(words)).partition(" Argument helptext:")[0]
    return re.sub(r"^(Value error|Invalid choice) ", "", line) or "the arguments could not be read"
