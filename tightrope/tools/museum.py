"""The bug museum: real mistakes of one line each, and which probe catches them in what words.

Each mutation replaces one line in a second copy of the package; the package that runs is not touched. It cannot drift from the
code: if the line has changed, the mutation is refused.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from ..errors import UsageError, one_line
from ..exercises.equations import EQUATIONS, check_equation
from .mutations import MUTATIONS, Mutation
from .probe import PROBES

PACKAGE = __name__.partition(".")[0]
SHARED = tuple(
    f"{PACKAGE}.{name}" for name in ("errors", "output", "version", "activity", "recording")
)  # by all copies
EQUATION, PHASES = "equations", {"ppo": "one phase of PPO", "vpg": "one phase of VPG"}
Load = Callable[[str], ModuleType]


@contextmanager
def second_copy(mutation: Mutation | None = None) -> Iterator[Load]:
    """Inside, imports of the package lead to a copy of it, with the mutation if there is one. Yields a function that imports a
    module of the copy by its name without the package's."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, PACKAGE)
        shutil.copytree(Path(__file__).parents[1], copy)  # with the compiled files
        if mutation is not None:
            mutate(copy.joinpath(*mutation.module.split(".")).with_suffix(".py"), mutation)
        ours = take_modules()
        sys.path.insert(0, folder)
        sys.meta_path.insert(0, PathFinder)  # before import hooks, which may know the package that runs
        try:
            yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
        finally:
            sys.path.remove(folder)
            sys.meta_path.remove(PathFinder)  # the first of them
            take_modules()
            sys.modules.update(ours)


def mutate(file: Path, mutation: Mutation) -> None:
    text = file.read_text()
    if (count := text.count(mutation.old)) != 1:
        raise UsageError(f"{mutation.module} has {mutation.old!r} {count} times: give a line that it has once")
    file.write_text(text.replace(mutation.old, mutation.new))


def take_modules() -> dict[str, ModuleType]:
    """Take the package out of sys.modules, except what all copies share, so that it is imported anew."""
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names if not name.startswith(SHARED)}


@dataclass(frozen=True)
class Catch:
    """A check that noticed a mutation, and what it said."""

    check: str
    words: str


def catches(mutation: Mutation, probes: bool = True, seed: int = 1) -> list[Catch]:
    """The checks that notice a mutation: equations, a phase of each algorithm, and PPO on the `probes`, which take a second."""
    with second_copy(mutation) as load:
        found = [*equation_catches(load), *phase_catches(load)]
        return [*found, *probes_that_fail(load, seed)] if probes else found


def phase_catches(load: Load) -> Iterator[Catch]:
    for algo, name in PHASES.items():
        try:
            found = load("exercises.phase_check").check_phase(algo)
        except UsageError:
            raise
        except Exception as error:
            found = "", f"the phase raises {type(error).__name__}: {one_line(error)}"
        if found is not None:
            yield Catch(name, found[1])


def equation_catches(load: Load) -> Iterator[Catch]:
    functional = load("functional")
    for name in EQUATIONS:
        function = getattr(functional, name, None)
        wrong = None if function is None else check_equation(name, function)
        if wrong is not None:
            yield Catch(EQUATION, f"{name}: {wrong}")
            return


def probes_that_fail(load: Load, seed: int) -> Iterator[Catch]:
    tools = load("tools.probe")
    for probe in tools.PROBES:
        try:
            result = tools.run_probe(probe, "ppo", seed)
        except Exception as error:
            yield Catch(probe.env, f"training raises {type(error).__name__}: {one_line(error)}")
            continue
        if not result.passed:
            yield Catch(probe.env, probe.meaning)


def check_columns() -> list[str]:
    """The names of all checks, in the order in which they run."""
    return [EQUATION, *PHASES.values(), *(probe.env for probe in PROBES)]


def page(rows: list[tuple[Mutation, list[Catch]]]) -> str:
    """The museum as a page of the documentation."""
    names = check_columns()
    short = [name.removesuffix("-v0").replace("one phase of ", "phase ") for name in names]
    caught = sum(bool(found) for _, found in rows)
    lines = [
        "# The bug museum", "",
        f"{len(rows)} mistakes of one line each, put into the real source one at a time. {caught} are caught. A cross marks a\n"
        f"check of "
        "`tightrope probe` that notices the mistake: learning on the probe environments often succeeds in spite of it, so the\n"
        "equations and one phase are compared with their definitions as well. This page is made by\n"
        "`tightrope probe --museum --out docs/museum.md`.", "",
        f"| mistake | {' | '.join(short)} |", "|---|" + "---|" * len(names),
    ]  # fmt: skip
    for mutation, found in rows:
        marks = ["x" if any(one.check == name for one in found) else "" for name in names]
        lines.append(f"| {mutation.mistake} | {' | '.join(marks)} |")
    lines += ["", "## In what words", ""]
    for mutation, found in rows:
        lines += [f"**{mutation.mistake}** in `{mutation.module.replace('.', '/')}.py`", "", "```diff"]
        lines += [f"- {line}" for line in mutation.old.strip().splitlines()]
        lines += [f"+ {line}" for line in mutation.new.strip().splitlines()] + ["```", ""]
        lines += [f"- {one.check}: {one.words}" for one in found[:3]] or ["- nothing notices it"]
        lines += [""]
    return "\n".join(lines)


__all__ = ["MUTATIONS", "Catch", "Mutation", "catches", "check_columns", "page"]
