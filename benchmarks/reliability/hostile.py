"""Runs that a stranger has forged: nothing in them is executed, nothing large is allocated, each is refused in one line."""

import importlib
import os
import sys
from pathlib import Path

from attacks import Case, attempt, copy_of_good_run
from hostile_cases import GROUPS, PROOF
from hostile_cases import Case as Spoil

FORBIDDEN_EVENTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"}
FORBIDDEN_MODULES = {"antigravity", "this"}
EXECUTED = 98
SECONDS = 30.0  # files of some hundred megabytes are read


def watched() -> None:
    """Leave this process at once if it is about to run what a file brought along."""
    for name in FORBIDDEN_MODULES:
        sys.modules.pop(name, None)
    import_module = importlib.import_module

    def look_first(name: str, package: str | None = None) -> object:
        look("import", (name,))
        return import_module(name, package)

    importlib.import_module = look_first  # type: ignore[assignment]  # it raises no event of its own

    def look(event: str, args: tuple[object, ...]) -> None:
        if event in FORBIDDEN_EVENTS or (event == "import" and str(args[0]) in FORBIDDEN_MODULES):
            os.write(2, f"{event} {args}".encode())
            os._exit(EXECUTED)

    sys.addaudithook(look)


def check_refused(command: str, run: Path) -> None:
    process = attempt(
        command, run, *(["--episodes", "1"] if command == "eval" else []), prepare=watched, seconds=SECONDS
    )
    assert not (run.parent / PROOF).exists(), "something was executed"
    assert process.code == 2, f"{command}: exit code {process.code}: {process.output}"
    assert process.output.count("\n") == 1, f"{command}: not one line: {process.output}"
    assert len(process.output) <= 2000, f"{command}: a line of {len(process.output)} characters"
    assert process.output.removesuffix("\n").isprintable(), f"{command} writes escapes: {process.output!r}"


def refused(spoil: Spoil) -> Case:
    """`eval` and `resume` of a run that was spoiled."""

    def case(path: Path) -> str:
        for command in ("eval", "resume"):
            (path / command).mkdir()
            run = copy_of_good_run(path / command)
            spoil(run)
            if command == "resume" or (run / "checkpoints").exists():
                check_refused(command, run)
        return "refused"

    return case


def cases() -> dict[str, Case]:
    return {f"{group}: {name}": refused(spoil) for group, make in GROUPS.items() for name, spoil in make().items()}
