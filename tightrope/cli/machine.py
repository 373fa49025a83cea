"""The commands bench and doctor: what this machine can do."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..engine import Accelerate, distributed
from ..errors import UsageError
from ..training.build import check_env
from ..training.own_code import is_import_path
from ..version import __version__
from .arguments import cli_command, read_with_settings, show_help, wants_help

if TYPE_CHECKING:
    from rich.console import Console

    from ..tools.doctor import Check, CheckResult

MARKS = {"ok": ("ok", "green"), "absent": ("-", "dim"), "warning": ("!", "yellow"), "broken": ("X", "red")}


@dataclass(kw_only=True)
class BenchOptions:
    env: Annotated[str, "ENV"]
    """Environment to train on: an id, or module:Class of your own."""
    algo: str = "ppo"
    """Algorithm: ppo or vpg."""
    num_envs: tuple[int, ...] = ()
    """Numbers of environments to measure, one after the other; the preset's if not given."""
    accelerate: tuple[Accelerate, ...] = ("auto",)
    """Execution modes to measure: auto, eager, compile, graph, max."""
    seconds: float = 2.0
    """Seconds to measure each."""
    profile: bool = False
    """Write a trace of one phase of each, for Perfetto."""


def bench_main(args: list[str]) -> int:
    """Measure the speed of training and the parts of a phase. --num-envs and --accelerate take several values.

    Any setting of `tightrope train` works too. Example: tightrope bench CartPole-v1 --num-envs 64 1024 --profile
    """
    if wants_help(args):
        return show_help("bench", bench_main.__doc__, BenchOptions)
    needs = "bench needs one env, such as `tightrope bench CartPole-v1`"
    options, _, flags = read_with_settings(BenchOptions, args, needs)
    if not 0 < options.seconds <= 3600:
        raise UsageError(f"seconds {options.seconds:g} is invalid: give a number above 0 and up to 3600")
    if "total_timesteps" in flags:
        raise UsageError("total_timesteps has no effect: bench runs for --seconds. Drop it")
    if not is_import_path(options.env):
        check_env(options.env, str(flags.get("backend", "auto")))
    from ..tools.bench import HEADER, measure

    header = [HEADER]
    for count in options.num_envs or (None,):
        for mode in options.accelerate:
            settings = {**flags, "accelerate": mode, **({} if count is None else {"num_envs": count})}
            name = f"trace-{re.sub('[/:]', '-', options.env)}-{count or 'preset'}-{mode}.json"
            trace = Path(name) if options.profile else None
            line = measure(options.env, options.algo, settings, options.seconds, trace).line()
            print("\n".join([*header, line]), flush=True)
            header = []
            if trace is not None:
                print(f"one phase is in {trace}: open it at https://ui.perfetto.dev")
    return 0


@dataclass(kw_only=True)
class DoctorOptions:
    device: str = "auto"
    """Device to test: auto, cpu, cuda, cuda:1 or mps; auto chooses as training would."""
    quick: bool = False
    """Skip the test of compilation, which takes longer than all others together."""
    json: bool = False
    """Print one JSON object instead of lines."""


@cli_command("doctor", DoctorOptions)
def doctor_main(options: DoctorOptions) -> int:
    """Check versions, devices, threads and disk, test what a run needs, and print how to install what is missing.

    Exit code 1 if no run would work. Under torchrun it also measures the communication between ranks:
    torchrun --nproc-per-node 2 -m tightrope doctor. Example: tightrope doctor --quick
    """
    from ..tools.doctor import RANKS, checks, run_check

    several = distributed.is_launched() and int(os.environ["WORLD_SIZE"]) > 1
    if several and os.environ["RANK"] != "0":  # rank 0 reports for all ranks that could join
        failed = [result for result in run_check(RANKS) if result.verdict == "broken" and not result.fix]
        for result in failed:
            print(f"tightrope: rank {os.environ['RANK']}: {result.words}", file=sys.stderr)
        return 1 if failed else 0
    to_do = [*[RANKS] * several, *checks(options.device, options.quick)]
    if options.json:
        found = [result for check in to_do for result in run_check(check)]
        works = all(result.verdict != "broken" for result in found)
        records = [asdict(result) for result in found]
        print(json.dumps({"tightrope": __version__, "works": works, "findings": records}, allow_nan=False))
    else:
        found = print_report(to_do)
    return 1 if any(result.verdict == "broken" for result in found) else 0


def print_report(to_do: Sequence[Check], width: int | None = None) -> list[CheckResult]:
    """Run the checks and print each result at once under the title of its part, then a summary. Lines have colour and wrap in a
    terminal; in a pipe they are plain."""
    from rich.console import Console

    from ..tools.doctor import run_check

    in_terminal = None if sys.stdout.isatty() else False  # FORCE_COLOR must not turn a pipe into a terminal
    console = Console(width=width, force_terminal=in_terminal, markup=False, emoji=False, highlight=False)
    found: list[CheckResult] = []
    for check in to_do:
        with console.status(f"checking {check.name}"):
            new = run_check(check)
        for result in new:
            if not found or result.part != found[-1].part:
                console.print("\n" * bool(found) + result.part, style="bold")
            print_row(console, result, result.words)
            found.append(result)
    wrong = [result for result in found if result.verdict in ("broken", "warning")]
    missing = [result for result in found if result.verdict == "absent" and result.fix]
    broken = [result.name for result in found if result.verdict == "broken"]
    if wrong:
        console.print("\nwhat to look at", style="bold")
    for result in wrong:
        print_row(console, result, f"{result.fix} ({result.words})" if result.fix else result.words)
    if missing:
        console.print("\nwhat could be added", style="bold")
    for result in missing:
        print_row(console, result, result.fix)
    works = "runs work here: tightrope train CartPole-v1"
    console.print(f"\nno run works here: see {', '.join(broken)}" if broken else f"\n{works}", style="bold")
    return found


def print_row(console: Console, result: CheckResult, words: str) -> None:
    from rich.table import Table
    from rich.text import Text

    mark, color = MARKS[result.verdict]
    if not console.is_terminal:  # lines may have any length
        console.print(f"  {mark:<2}  {result.name:<15}  {words}", soft_wrap=True)
        return
    row = Table.grid(padding=(0, 2))
    row.add_column(min_width=4)
    row.add_column(min_width=15, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(Text(f"  {mark}", style=color), result.name, words)
    console.print(row)
