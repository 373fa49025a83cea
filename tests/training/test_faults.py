"""Small counts of the fault injections in benchmarks/reliability, in processes of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tightrope as tr
from tightrope.training.checkpoint_reader import CHECKPOINTS

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "reliability"
SMALL = dict(num_envs=3, num_steps=8, num_minibatches=2, hidden_sizes=(8,), total_timesteps=24 * 6, device="cpu")
posix = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="forks, signals, lists of a process's children")


def script(name: str, *args: str) -> str:
    """What a script prints; it leaves with an error if anything is not as promised."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(SCRIPTS / name), *args]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


SIGNALS = "SIGTERM during a save$|SIGINT during an eval|SIGINT twice|^locks|^two.*(second|workers of)"
HELPERS = "^workers.*(SIGTERM|stopped|killed)"  # signalled, stopped, hung or left alone
FAULTS: dict[str, tuple[list[str], list[str]]] = {
    "a kill at random moments": (
        ["kills.py", "--kills", "4", "--phases", "20", "--fresh", "0", "--operations", "0"], ["4 kills at random moments"]
    ),
    "a kill at every file operation": (  # fewer than 50, and writes of some file are not seen any more
        ["kills.py", "--kills", "0", "--operations", "1"], [r"killed at each of the ([5-9]\d|\d{3,}) file operations"]
    ),
    "runs of a stranger": (["adversary.py", "--only", "^forged", "--every", "25"], [r"\| forged runs \| 15 of 15 \|"]),
    "damage": (["corruption.py", "--cases", "20", "--forged", "40"], ["no traceback"]),
    "disks that fill or go, signals, locks, helper processes": (
        ["adversary.py", "--grace", "1", "--only", f"^disks|{SIGNALS}|{HELPERS}"],
        [r"\| disks \| ", r"\| locks \| 2 of 2 \|", r"\| workers and hung helpers \| 6 of 6 \|"],  # to mount takes rights
    ),
}  # fmt: skip


@posix
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_does_no_harm(fault: str) -> None:
    words, said = FAULTS[fault]
    printed = script(*words)
    assert all(re.search(pattern, printed) for pattern in said), printed


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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no way here to ask what a file descriptor is of")
def test_what_is_renamed_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power failure would find: no name leads to what has not been synced."""
    done: list[str] = []

    def name(path: Any) -> str:
        return Path(path).resolve().relative_to(tmp_path.resolve()).as_posix()

    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda n: (done.append(f"sync {name(f'/proc/self/fd/{n}')}"), fsync(n)))

    def renamed(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        done.append(f"rename {name(f'/proc/self/fd/{src_dir_fd}')}/{old}")
        replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr("os.replace", renamed)
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
