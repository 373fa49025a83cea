"""The bug museum: real mistakes of one line each, and which probe catches them in what words.

Each mutation replaces one line of the source in a second copy of the package. It cannot drift from the code: if the line has
changed, the mutation is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import UsageError, one_line
from ..exercises.equations import EQUATIONS, check_equation
from .mutations import MUTATIONS, Mutation
from .second_copy import SecondCopy

EQUATION, PHASES = "equations", {"ppo": "one phase of PPO", "vpg": "one phase of VPG"}


@dataclass(frozen=True)
class Catch:
    """A check that noticed a mutation, and what it said."""

    check: str
    words: str


def catches(mutation: Mutation, probes: bool = True, seed: int = 1) -> Iterator[Catch]:
    """The checks that notice a mutation: equations, a phase of each algorithm, and PPO on the `probes`, which take a second."""
    copy = SecondCopy(mutation.module, mutation.old, mutation.new)
    yield from equation_catches(copy)
    for algo, name in PHASES.items():
        try:
            found = copy.load("exercises.phase_check").check_phase(algo)
        except UsageError:
            raise
        except Exception as error:
            found = "", f"the phase raises {type(error).__name__}: {one_line(error)}"
        if found is not None:
            yield Catch(name, found[1])
    if probes:
        yield from probes_that_fail(copy, seed)


def equation_catches(copy: SecondCopy) -> Iterator[Catch]:
    functional = copy.load("functional")
    for name in EQUATIONS:
        function = getattr(functional, name, None)
        wrong = None if function is None else check_equation(name, function)
        if wrong is not None:
            yield Catch(EQUATION, f"{name}: {wrong}")
            return


def probes_that_fail(copy: SecondCopy, seed: int) -> Iterator[Catch]:
    tools = copy.load("tools.probe")
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
    return [EQUATION, *PHASES.values(), *(probe.env for probe in SecondCopy().load("tools.probe").PROBES)]


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
