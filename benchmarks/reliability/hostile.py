"""Checkpoints of a stranger: nothing in them is executed, nothing large is allocated, each is refused in one line.

python benchmarks/reliability/hostile.py
python benchmarks/reliability/hostile.py --every 10        # a tenth of the cases
"""

import argparse
import importlib
import os
import shutil
import sys
import time
from pathlib import Path

from hostile_cases import GROUPS, PROOF, VICTIM, Case, victims
from processes import Process, finished, folder, table
from runs import training

MOST_MB = 300  # more than a good checkpoint takes
FORBIDDEN_EVENTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"}
FORBIDDEN_MODULES = {"antigravity", "this"}
EXECUTED = 98


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


def refused(command: str, run: Path, memory: float) -> str | None:
    """What is wrong with the way in which a command refuses a run."""
    process = Process(command, run, *(["--episodes", "1"] if command == "eval" else []), prepare=watched)
    try:
        code = process.wait(30)
    except AssertionError as error:
        return str(error)
    if code == EXECUTED or (run.parent / PROOF).exists():
        return f"executed something: {process.output}"
    if code != 2 or process.output.count("\n") != 1 or len(process.output) > 2000:
        return f"exit code {code}: {process.output[:1500]!r}"
    if not process.output.removesuffix("\n").isprintable():
        return f"does things to the terminal: {process.output!r}"
    if process.peak - memory > MOST_MB:
        return f"took {process.peak - memory:.0f} MB"
    return None


def check_case(name: str, case: Case, good: Path, memory: float) -> list[str]:
    """The complaints about one case."""
    complaints = []
    for command in ("eval", "resume"):
        with folder() as path:
            run = path / "run"
            shutil.copytree(good, run)
            case(run)
            if command == "eval" and not (run / "checkpoints").exists():
                continue
            if (complaint := refused(command, run, memory)) is not None:
                complaints.append(f"{command}, {name}: {complaint}")
    return complaints


def check_victim(name: str, case: Case, good: Path) -> list[str]:
    """A run that can be resumed or not; but what a link in it leads to is not touched."""
    with folder() as path:
        shutil.copytree(good, path / "run")
        (path / VICTIM).write_text("precious\n" * 1000)
        case(path / "run")
        code, output = finished("resume", path / "run", "--total-timesteps", "72")
        if (path / VICTIM).read_text() != "precious\n" * 1000:
            return [f"resume, {name}: what it leads to has been changed"]
        return [] if code in (0, 1, 2) and "Traceback" not in output else [f"resume, {name}: {code} {output}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take only every so many-th case")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    options = parser.parse_args()
    began, complaints, rows = time.perf_counter(), [], []
    with folder() as path:
        good = path / "good"
        code, output = finished(*training("PPO, CartPole", good, 1), "--keep-checkpoints", "1")
        assert code == 0, output
        first = Process("eval", good, "--episodes", "1")
        assert first.wait() == 0, first.output
        for group, make in {**GROUPS, "links to other files": victims}.items():
            cases = [(name, case) for name, case in make().items() if options.only in name][:: options.every]
            for name, case in cases:
                found = check_victim(name, case, good) if make is victims else check_case(name, case, good, first.peak)
                complaints += found
                for complaint in found:
                    print(complaint, file=sys.stderr, flush=True)
            rows.append((group, len(cases)))
    print(
        f"{sum(count for _, count in rows)} runs of a stranger, each through `eval` and `resume`: nothing executed, at most"
    )
    print(
        f"{MOST_MB} MB more than a good one takes, refused in one line with exit code 2: {len(complaints)} exceptions.\n"
    )
    print(table(("kind", "cases"), rows))
    print(f"\n{time.perf_counter() - began:.0f} s")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
