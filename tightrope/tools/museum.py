"""The bug museum: real mistakes of one line each, and which probe catches them in what words.

Each mutation replaces one line of the source in a second copy of the package, in memory; the package that runs is not touched.
It cannot drift from the code: if the line has changed, the mutation is refused.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from ..errors import UsageError, one_line
from ..exercises.equations import EQUATIONS, check_equation
from .mutations import MUTATIONS, Mutation

PACKAGE = __name__.partition(".")[0]
SHARED = tuple(
    f"{PACKAGE}.{name}" for name in ("errors", "output", "version", "activity", "recording")
)  # as they run here
BARE = (PACKAGE, f"{PACKAGE}.exercises")  # packages whose __init__ gathers what a copy does not need
EQUATION, PHASES = "equations", {"ppo": "one phase of PPO", "vpg": "one phase of VPG"}


# a second copy of the package --------------------------------------------------------------------------------------------


class SecondCopy:
    """Modules of the package under their own names, but outside sys.modules: their imports lead to each other."""

    def __init__(self, module: str = "", old: str = "", new: str = "") -> None:
        """Replace `old`, which must occur once in the file of `module` (without the package's name), by `new`."""
        self.modules: dict[str, ModuleType] = {}
        self.changed, self.old, self.new = f"{PACKAGE}.{module}", old, new

    def load(self, name: str) -> ModuleType:
        """The copy of a module, by its name without the package's."""
        return self._load(f"{PACKAGE}.{name}")

    def _load(self, name: str) -> ModuleType:
        if name.startswith(SHARED):
            return importlib.import_module(name)
        if name in self.modules:
            return self.modules[name]
        parent, _, last = name.rpartition(".")
        if parent:
            self._load(parent)
            if name in self.modules:  # the parent has imported it
                return self.modules[name]
        if name not in BARE:
            importlib.import_module(name)  # dataclasses look for their module in sys.modules
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or spec.loader is None:
            raise ModuleNotFoundError(name)
        module = self.modules[name] = ModuleType(name)
        module.__dict__.update(
            __file__=spec.origin, __spec__=spec, __loader__=spec.loader,
            __package__=name if spec.submodule_search_locations else parent,
            __builtins__={**vars(builtins), "__import__": self._import},
        )  # fmt: skip
        if spec.submodule_search_locations:
            module.__path__ = list(spec.submodule_search_locations)
        if name not in BARE:
            CodeLoader(name, spec.origin, self._code(name, spec.origin)).exec_module(module)
        if parent:
            setattr(self.modules[parent], last, module)
        return module

    def _code(self, name: str, origin: str) -> CodeType:
        if name != self.changed:
            return code_of(origin)
        text = Path(origin).read_text()
        if text.count(self.old) != 1:
            raise UsageError(f"{name} has {self.old!r} {text.count(self.old)} times: give a line that it has once")
        return compile(text.replace(self.old, self.new), origin, "exec", dont_inherit=True)

    def _import(
        self, name: str, namespace: Mapping[str, object] | None = None, local: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (), level: int = 0,
    ) -> ModuleType:  # fmt: skip
        package = str((namespace or {}).get("__package__") or "")
        full = importlib.util.resolve_name("." * level + name, package) if level else name
        if full.partition(".")[0] != PACKAGE:
            return builtins.__import__(name, namespace, local, fromlist, level)
        module = self._load(full)
        for item in fromlist or ():
            folders = [Path(folder) for folder in getattr(module, "__path__", ())]
            if any((folder / f"{item}.py").exists() or (folder / item).is_dir() for folder in folders):
                self._load(f"{full}.{item}")
        return module if fromlist else self._load(PACKAGE)


class CodeLoader(SourceFileLoader):
    """Executes a module with this code instead of that of its file."""

    def __init__(self, name: str, origin: str, code: CodeType) -> None:
        super().__init__(name, origin)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


@functools.cache
def code_of(origin: str) -> CodeType:
    """The code of a file as it is, which all copies share."""
    return compile(Path(origin).read_text(), origin, "exec", dont_inherit=True)


# what catches a mutation -------------------------------------------------------------------------------------------------


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
