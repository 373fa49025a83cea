"""Small counts of the fault injections in benchmarks/reliability, in processes of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.errors import UsageError
from tightrope.runs.checkpoint import CHECKPOINTS
from tightrope.runs.lock import locked

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "reliability"
SMALL = dict(num_envs=3, num_steps=8, num_minibatches=2, hidden_sizes=(8,), total_timesteps=24 * 6, device="cpu")
posix = pytest.mark.skipif(os.name == "nt", reason="forks and signals")


def script(name: str, *args: str) -> str:
    """What a script prints; it leaves with an error if anything is not as promised."""
    memory = Path("/dev/shm")  # a kill leaves the same files there, and they are there sooner
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if memory.is_dir() and os.access(memory, os.W_OK):
        environment["TMPDIR"] = str(memory)
    words = [sys.executable, str(SCRIPTS / name), *args]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@posix
def test_killed_at_random_moments_it_resumes_to_the_same_end() -> None:
    options = "--kills 6 --phases 30 --fresh 0 --operations 0"
    assert "6 kills at random moments" in script("kills.py", *options.split())


@posix
def test_killed_at_every_file_operation_it_resumes_to_the_same_end() -> None:
    said = re.search(
        r"killed at each of the (\d+) file operations", script("kills.py", "--kills", "0", "--operations", "1")
    )
    assert said is not None
    assert int(said[1]) >= 50  # fewer, and writes of some file are not seen any more


@posix
def test_runs_of_a_stranger_are_refused_in_one_line() -> None:
    assert "| forged runs | 13 of 13 |" in script("adversary.py", "--only", "^forged", "--every", "25")


def test_damage_is_found() -> None:
    assert "no traceback" in script("corruption.py", "--cases", "20", "--forged", "40")


@posix
def test_disks_that_fill_or_go_do_not_stop_training() -> None:
    """Those that need the right to mount are left out without it."""
    assert "| disks | " in script("adversary.py", "--only", "^disks")


@posix
def test_signals_and_locks() -> None:
    some = "SIGTERM during a save$|SIGINT during an eval|SIGINT twice|^locks|^two.*(second|workers of)"
    assert "| locks | 2 of 2 |" in script("adversary.py", "--only", some)


@posix
def test_an_attack_that_succeeds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from adversary import Row, tried
    from attacks import Skipped

    def raising(error: Exception) -> Any:
        def case(_: Path) -> None:
            raise error

        return case

    row = Row("links")
    for case in (raising(AssertionError("changed")), raising(OSError("gone")), raising(Skipped("no mount")), str):
        row.add("a case", *tried(case), 1.0)
    assert row.cells()[:2] == ("links", "1 of 3, 1 not tried")


@posix
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no way here to ask for a process's children")
def test_helper_processes_that_are_signalled_stopped_hung_or_left_alone() -> None:
    assert script("helpers.py", "--grace", "1", "--only", "SIGTERM|stopped|killed").count("| yes |") == 6


def test_one_process_does_not_write_twice_either(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UsageError, match="being written by this process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no way here to ask what a file descriptor is of")
def test_what_is_renamed_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power failure would find: no name leads to what has not been synced."""
    done: list[str] = []

    def name(path: Any) -> str:
        return Path(path).resolve().relative_to(tmp_path.resolve()).as_posix()

    fsync, rename, replace = os.fsync, os.rename, os.replace
    monkeypatch.setattr("os.fsync", lambda n: (done.append(f"sync {name(f'/proc/self/fd/{n}')}"), fsync(n)))

    def noted(call: Any) -> Any:
        def renamed(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            done.append(f"rename {name(f'/proc/self/fd/{src_dir_fd}')}/{old}")
            call(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        return renamed

    monkeypatch.setattr("os.rename", noted(rename))
    monkeypatch.setattr("os.replace", noted(replace))
    tr.PPO("CartPole-v1", **SMALL, save_seconds=1e9).learn(run_dir=tmp_path / "run", quiet=True)
    folder, new = "run/checkpoints", "run/checkpoints/.new-0001-steps-144"
    latest, config = f"{folder}/.latest.tmp", "run/.config.yaml.tmp"
    done = [line for line in done if not re.search(r"about\.json|report\.html", line)]  # a run can do without
    done = [re.sub(r"\.[0-9a-f]{16}\.tmp", ".tmp", line) for line in done]
    assert done == [
        "sync .", f"sync {config}", f"rename {config}", "sync run", "sync run/metrics.jsonl",
        f"sync {new}/model.safetensors", f"sync {new}/training.safetensors", f"sync {new}/manifest.json", f"sync {new}",
        f"rename {new}", f"sync {folder}", "sync run", f"sync {latest}", f"rename {latest}", f"sync {folder}",
    ]  # fmt: skip
    assert (tmp_path / "run" / CHECKPOINTS).is_dir()
