"""The commands envs, check and probe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..envs import ENVS
from ..envs.registry import BackendName
from ..errors import UsageError, check_positive, checked_seed, printable
from ..models import NetworkConfig
from ..tools.museum import MUTATIONS, catches, page
from ..tools.probe import (
    MEMORY_PROBES,
    TOLERANCE,
    Probe,
    ProbeResult,
    probes_for,
    quick_checks,
    run_memory_probe,
    run_probe,
)
from ..training.config import config_classes
from ..training.own_code import Wrapper, functions_of, imported, is_import_path, with_own_code
from ..training.presets import ELSEWHERE, EXPECTED
from ..types import Box
from .arguments import cli_command


@dataclass(kw_only=True)
class NoOptions:
    pass


@cli_command("envs", NoOptions)
def envs_main(options: NoOptions) -> int:
    """List the environments with a preset, the score that it reaches and the time that takes. Example: tightrope envs"""
    from rich.console import Console
    from rich.table import Table

    native = Table("on the device", "numbers seen", "action", "steps", "preset reaches", "in", box=None, pad_edge=False)
    for env_id, cls in ENVS.items():
        action = cls.action
        choices = f"one of {getattr(action, 'n', '')}"
        if isinstance(action, Box):
            choices = f"{action.shape[0]} in [{action.low:g}, {action.high:g}]"
        limit = str(cls.time_limit or "-")
        native.add_row(env_id, str(cls.observation.shape[0]), choices, limit, *EXPECTED.get(env_id, ("", ""))[:2])
    engines = Table("by an engine", "engine", "needs", "preset reaches", "in", box=None, pad_edge=False)
    for env_id, (backends, extra) in ELSEWHERE.items():
        needs = f"tightrope\\[{extra}]" if extra else "tightrope"
        engines.add_row(env_id, backends, needs, *EXPECTED.get(env_id, ("", ""))[:2])
    console = Console(width=None if sys.stdout.isatty() else 140)
    note = "Times: one core of a small 2-core machine or as noted. Other Gymnasium ids work too, with defaults by kind."
    console.print(native, "", engines, f"\n{note}", sep="\n")
    return 0


@dataclass(kw_only=True)
class CheckOptions:
    target: Annotated[str, "ENV"]
    """Id of an environment, or module:Class of your own (single or vector)."""
    backend: BackendName = "auto"
    """Backend to check; auto chooses as training would."""
    num_envs: int = 4
    """Number of environments, if several can be made."""
    steps: int = 4000
    """Maximum number of random steps."""
    seed: int = 0
    """Seed of the first episodes."""
    env_kwargs: dict[str, object] | None = None
    """Arguments for the environment's constructor, as name=value."""
    wrappers: tuple[Wrapper, ...] = ()
    """Functions or classes that wrap the environment of Gymnasium, as module:name, the first one innermost."""


@cli_command("check", CheckOptions, "check needs one env, such as `tightrope check my_module:MyEnv`")
def check_main(options: CheckOptions) -> int:
    """Find mistakes in an environment before training on it. Example: tightrope check my_module:MyEnv"""
    checked_seed(options.seed)
    for name in ("num_envs", "steps"):
        check_positive(name, getattr(options, name))
    from ..envs.checker import check

    target = imported(options.target) if is_import_path(options.target) else options.target
    given = {name: getattr(options, name) for name in ("steps", "num_envs", "seed", "backend", "env_kwargs")}
    report = check(target, wrappers=functions_of(with_own_code({"wrappers": options.wrappers})["wrappers"]), **given)
    print("\n".join(map(printable, report.lines())))
    return 0 if report.ok else 1


@dataclass(kw_only=True)
class ProbeOptions:
    algo: str = "ppo"
    """Algorithm to diagnose: ppo or vpg."""
    seed: int = 1
    """Seed of the diagnosis."""
    memory: str | None = None
    """Also train an agent with this memory on tasks that need one: gru, lstm, mingru, or module:Class of your own."""
    show_probs: bool = False
    """Print the values and action probabilities that were learned."""
    museum: bool = False
    """Show instead which of fifty typical mistakes these checks catch, and in what words. Takes about three minutes."""
    out: Path | None = None
    """Also write the museum as a page in Markdown."""


@cli_command("probe", ProbeOptions)
def probe_main(options: ProbeOptions) -> int:
    """Check the equations and one phase, then train on tiny environments, and explain each failure.

    Example: tightrope probe --algo ppo --show-probs
    """
    config_classes(options.algo)
    checked_seed(options.seed)
    NetworkConfig(memory=options.memory)  # which refuses an unknown one
    if options.out is not None and not options.museum:
        raise UsageError(f"out {options.out} is for the page of the museum: add --museum, or drop it")
    if options.museum:
        return show_museum(options.seed, options.out)
    failures = print_quick_checks(options.algo)
    for one in probes_for(options.algo):
        finding = run_probe(one, options.algo, options.seed)
        print_verdict(one.env, finding.passed, finding.error, one.tolerance)
        if options.show_probs:
            print_what_was_learned(one, finding)
        failures = with_result(finding.passed, one.meaning, failures)
    for task in MEMORY_PROBES if options.memory is not None else ():
        result = run_memory_probe(task, options.algo, options.memory or "", options.seed)
        print_verdict(task.env, result.passed, result.error, TOLERANCE)
        failures = with_result(result.passed, task.meaning, failures)
    print("all probes passed" if not failures else f"{failures} failed: fix the first one first")
    return 1 if failures else 0


def print_verdict(env: str, passed: bool, error: float, tolerance: float) -> None:
    print(f"{'ok  ' if passed else 'FAIL'} {env}  error {error:.1e} (at most {tolerance:.0e})")


def with_result(passed: bool, meaning: str, failures: int) -> int:
    """The number of failures with one more result. The first one is explained: later probes depend on it."""
    if not passed and not failures:
        print(f"     look at {meaning}")
    return failures + (not passed)


def print_what_was_learned(one: Probe, finding: ProbeResult) -> None:
    for i, obs in enumerate(one.observations):
        value = ""
        if finding.values is not None:
            value = f"  value {finding.values[i]:+.4f} (must be {one.values[i]:+.4g})"
        shares = ", ".join(f"{p:.4f}" for p in finding.probabilities[i])
        number = "" if finding.numbers is None else f"  number {finding.numbers[i]:+.4f}"
        print(f"     obs {obs:+.0f}{value}  probabilities {shares}{number}")


def print_quick_checks(algo: str) -> int:
    """Print the checks that need no training, up to the first that fails, and return the number of failures."""
    for name, wrong in quick_checks(algo):
        print(f"{'FAIL' if wrong else 'ok  '} {name}")
        if wrong:
            print(f"     look at {wrong}")
            return 1
    return 0


def show_museum(seed: int, out: Path | None) -> int:
    """Print for each mutation the checks that catch it and the first words, and write the page if `out` names a file."""
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"out {out} is in a directory that does not exist: make it first")
    rows = []
    for mutation in MUTATIONS:
        found = catches(mutation, seed=seed)
        rows.append((mutation, found))
        by = ", ".join(one.check for one in found) or "nothing"
        print(f"{'caught' if found else 'MISSED'} {mutation.mistake}: by {by}", flush=True)
        if found:
            print(f"       {found[0].words}")
    print(f"{sum(bool(found) for _, found in rows)} of {len(rows)} mistakes are caught")
    if out is not None:
        out.write_text(page(rows))
        print(printable(f"written: {out}"))
    return 0
