"""The shape of the package: which way its rooms look, what importing it costs, what the equations depend on."""

import ast
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr

HOUSE = Path(tr.__file__).parent
ROOMS = [
    "version", "output", "errors", "activity", "files", "processes", "rows", "types", "sequences", "recording", "functional",
    "draw", "scene", "models", "envs", "engine", "algorithms", "logging", "training", "exercises", "play", "tools",
    "agent_base", "agent", "saved", "population", "cli",
]  # fmt: skip
MODULES = {
    ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(HOUSE.rglob("*.py"))
}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@functools.cache
def nodes_of(module: str) -> list[ast.AST]:
    return [*ast.walk(tree_of(module))]


def lines_of(module: str) -> list[str]:
    return MODULES[module].read_text().splitlines()


def room_of(module: str) -> str:
    """'training' for tightrope.training.config, '' for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@functools.cache
def imports_of(module: str) -> set[str]:
    """Modules and packages, ours by their full names, that a module imports anywhere in it."""
    return {*imported_by(module)}


def ours(module: str) -> set[str]:
    return {imported for imported in imports_of(module) if imported.partition(".")[0] == "tightrope"}


def imported_by(module: str) -> Iterator[str]:
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parent = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                source = f"{parent}.{source}" if source else parent
            inner = [f"{source}.{alias.name}" for alias in node.names if f"{source}.{alias.name}" in MODULES]
            yield from inner or [source]


def test_every_module_has_its_room() -> None:
    assert {room_of(module) for module in MODULES} - {"", "__main__"} == set(ROOMS)


def test_a_room_looks_only_at_rooms_before_it() -> None:
    place = {room: i for i, room in enumerate(ROOMS)}
    place[""] = place["cli"]  # only the last room looks at the package as a whole
    pairs = [(module, imported) for module in MODULES if room_of(module) in ROOMS for imported in ours(module)]
    assert len(pairs) > len(MODULES)
    assert not [pair for pair in pairs if place[room_of(pair[1])] > place[room_of(pair[0])]]


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {module: {i for i in imports_of(module) if i in MODULES} for module in MODULES}
    for package in [m for m, path in MODULES.items() if path.name == "__init__.py"]:
        graph[package].discard(package)
    for module, imported in graph.items():
        assert module not in imported
        # a module of a package may look at its siblings, never at the package that gathers them
        parent = module.rpartition(".")[0]
        assert parent not in imported or parent == "tightrope", f"{module} imports its own package"
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def in_rooms(*rooms: str) -> list[str]:
    found = [module for module in MODULES if room_of(module) in rooms]
    assert {*map(room_of, found)} == {*rooms}
    return found


def test_the_equations_need_nothing_but_torch() -> None:
    allowed = {"torch", "math", "jaxtyping", "typing", "collections.abc", "dataclasses", "tightrope.types"}
    imported = set().union(*map(imports_of, in_rooms("functional")))
    assert {i for i in imported if not i.startswith("tightrope.functional")} <= allowed


def test_what_shows_a_run_knows_nothing_of_ours() -> None:
    rooms = {room_of(imported) for module in in_rooms("logging") for imported in ours(module)}
    assert rooms <= {"logging", "errors", "files", "output", "processes", "types", "draw", "engine"}


# one place that decides, and pages that are read at a glance --------------------------------------------------------------

PAGES = [m for m in MODULES if room_of(m) == "algorithms" and not m.endswith(("algorithms", ".common"))]
DECIDES = "tightrope.engine.runtime"
CONTEXT_VARIABLES = {"tightrope.draw"}  # the scale of the picture being drawn
GLOBALS = {"tightrope.engine.distributed"}  # the ranks that this process has joined


@pytest.mark.parametrize("module", PAGES)
def test_a_page_is_short_and_looks_at_few_modules(module: str) -> None:
    assert len(lines_of(module)) <= 150
    assert len(ours(module)) <= 4, ours(module)


@pytest.mark.parametrize("module", [*PAGES, "tightrope.algorithms.common"])
def test_a_page_asks_neither_for_the_device_nor_for_ranks(module: str) -> None:
    names = {node.attr for node in nodes_of(module) if isinstance(node, ast.Attribute)}
    assert names.isdisjoint({"type", "is_cuda", "is_distributed", "mode", "precision", "compiles", "on_device"})


def test_no_hidden_state() -> None:
    assert {m for m in MODULES if any(isinstance(node, ast.Global) for node in nodes_of(m))} <= GLOBALS
    assert {m for m in MODULES if "contextvars" in imports_of(m)} <= CONTEXT_VARIABLES


@functools.cache
def calls_in(module: str) -> set[str]:
    return {ast.unparse(node.func) for node in nodes_of(module) if isinstance(node, ast.Call)}


def test_only_the_runtime_decides_how_functions_are_executed() -> None:
    deciding = {"torch.compile", "torch.compiler.is_compiling", "torch.is_autocast_enabled", "Graph"}
    modules = in_rooms("engine", "algorithms", "training", "tools")
    assert {module for module in modules if not calls_in(module).isdisjoint(deciding)} == {DECIDES}


# files and names --------------------------------------------------------------------------------------------------------

LONG = {"tightrope.engine.kernels.learn.actor"}  # one kernel
ANY = dict(  # lines with Any that a room may have: lower a number when there are fewer, never raise it
    cli=16, engine=60, envs=165, logging=32, recording=25, tools=31, training=50, algorithms=7, agent=7, agent_base=5,
    saved=8, errors=2, files=3, functional=2, output=2, processes=2, types=2, draw=2, play=5,
    population=6,
)  # fmt: skip


def test_files_and_functions_are_short() -> None:
    assert not {m: len(lines_of(m)) for m in MODULES if len(lines_of(m)) > 300}
    functions = [(m, node) for m in MODULES for node in nodes_of(m) if isinstance(node, ast.FunctionDef)]
    long = {f"{m}.{node.name}" for m, node in functions if (node.end_lineno or 0) - node.lineno >= 60}
    assert long <= LONG


def test_a_name_stands_for_one_thing() -> None:
    """No public function or class is defined in two modules, but for those that every algorithm has."""
    found: dict[str, list[str]] = {}
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    twice = {name: modules for name, modules in found.items() if len(modules) > 1 and not {*modules} <= {*PAGES}}
    assert not twice, twice


def test_any_becomes_rarer() -> None:
    found: dict[str, int] = {}
    for module in MODULES:
        any_lines = sum(bool(re.search(r"\bAny\b", line)) for line in lines_of(module))
        found[room_of(module)] = found.get(room_of(module), 0) + any_lines
    too_many = {room: count for room, count in found.items() if room and count > ANY.get(room, 0)}
    assert not too_many, too_many


def test_every_module_says_what_it_is() -> None:
    assert {module for module in MODULES if not ast.get_docstring(tree_of(module))} <= {"tightrope.__main__"}


def test_git_ignores_no_source_and_no_test() -> None:
    root = HOUSE.parent
    files = [str(path.relative_to(root)) for folder in (HOUSE, root / "tests") for path in folder.rglob("*.py")]
    try:
        done = subprocess.run(["git", "check-ignore", *files], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("git is not here")
    assert done.stdout.split() == []


# what importing costs ---------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOUSE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


IMPORTING = """
import json, logging, signal, sys, time, torch, warnings

def outside():
    return (torch.get_num_threads(), str(torch.get_default_dtype()), torch.initial_seed(), torch.is_grad_enabled(),
            str(signal.getsignal(signal.SIGINT)), len(warnings.filters), torch.get_rng_state().tolist())

torch.manual_seed(5)
modules, before, start = set(sys.modules), outside(), time.process_time()
from tightrope import PPO, load
seconds = time.process_time() - start
import tightrope
tightrope.envs
found = dict(seconds=seconds, modules=sorted(set(sys.modules) - modules), changed=before != outside())
import tightrope.logging.trackers.mlflow as own
print(json.dumps(found | dict(hidden=own.logging is not logging)))
"""


@functools.cache
def importing(attempt: int = 0) -> dict[str, Any]:
    """What importing the package does in a process that has imported torch."""
    return dict(json.loads(python(IMPORTING)))


def test_importing_does_not_bring_in_what_is_needed_only_now_and_then() -> None:
    heavy = {"gymnasium", "cv2", "av", "rich", "hypothesis", "beartype", "pytest", "torch.distributions"}
    assert not heavy & {*importing()["modules"]}


def test_importing_the_package_alone_does_not_import_torch() -> None:
    code = "import sys, tightrope; tightrope.__version__, tightrope.UsageError, dir(tightrope); print('torch' in sys.modules)"
    assert python(code) == "False"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"], ["--version"], ["trian"], ["evaluate"]])
def test_what_needs_no_command_does_not_import_torch(words: list[str]) -> None:
    code = f"""
import sys
from tightrope.cli import main
sys.stderr = sys.stdout
try:
    main({words})
except SystemExit as stop:
    print(stop.code, 'torch' in sys.modules, 'rich' in sys.modules)
"""
    code_and_imports = python(code).splitlines()[-1]
    assert code_and_imports == f"{2 if words in (['trian'], ['evaluate']) else 0} False False"


def test_importing_adds_at_most_half_a_second_to_torch() -> None:
    assert any(importing(attempt)["seconds"] <= 0.5 for attempt in range(3))


def test_importing_changes_nothing_outside() -> None:
    assert not importing()["changed"]


def test_the_package_called_logging_hides_nothing() -> None:
    assert not importing()["hidden"]


def test_every_public_name_is_there() -> None:
    for package in (tr, tr.functional, tr.models, tr.envs, tr.engine, tr.algorithms, tr.draw):
        for name in package.__all__:
            assert getattr(package, name) is not None
        assert len(package.__all__) == len(set(package.__all__))


def test_nothing_that_trains_prints_but_by_print_line() -> None:
    """A stream that cannot be written must not end training."""
    assert {room_of(module) for module in MODULES if "print" in calls_in(module)} <= {"", "cli", "__main__"}


# what is read is never run ----------------------------------------------------------------------------------------------

FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "torch.load", "torch.save", "np.load", "numpy.load", "np.save", "eval", "exec", "__import__",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.dump",
}  # fmt: skip


def test_no_source_file_can_unpickle() -> None:
    assert not {m for m in MODULES if FORBIDDEN_MODULES & {i.partition(".")[0] for i in imports_of(m)}}
    assert not {m for m in MODULES if FORBIDDEN_CALLS & calls_in(m)}
