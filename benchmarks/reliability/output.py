"""Output that cannot be written: training comes to its end all the same, and an unfinished one never exits with 0."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attacks import Case, Skipped
from disk_full import fill, small_disk, why_no_mount
from runs import rows

Meanwhile = Callable[[int], None]  # told how many phases have begun
PHASES = 400
SMALL = "--num-envs 3 --num-steps 8 --hidden-sizes 8 --num-minibatches 2 --update-epochs 2 --device cpu --threads 1 --seed 7"
SMALL += f" --max-episode-steps 20 --video-every 0 --eval-episodes 1 --total-timesteps {24 * PHASES}"
COUNTED = """
import os, time
import tightrope as tr

class Counted(tr.envs.CartPole):
    def step(self, action, *rest):
        with open(os.environ["STEPS"], "ab") as file:
            file.write(b".")
        return super().step(action, *rest)
"""


def shell(path: Path, run: Path, redirection: str, flags: str = "", meanwhile: Meanwhile = lambda phase: None) -> int:
    """The exit code of a training in a shell, as `train ... REDIRECTION`."""
    (path / "counted.py").write_text(COUNTED)
    steps = path / "steps"
    steps.touch()
    train = f"{sys.executable} -m tightrope train counted:Counted {SMALL} --eval-every 240 --run-dir {run} {flags}"
    environment = {**os.environ, "STEPS": str(steps), "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"}
    script = f"{train} {redirection}; exit ${{PIPESTATUS[0]}}"
    process = subprocess.Popen(
        ["bash", "-c", script], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=path,
        start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 120
    try:
        while process.poll() is None:
            assert time.monotonic() < end, "it hangs"
            meanwhile(steps.stat().st_size // 8)
            time.sleep(0.01)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def check_whole(path: Path, code: int, expected: int) -> str:
    share = (path / "steps").stat().st_size / (8 * PHASES)
    assert share >= 1, f"training ended after {share:.0%} of it, with exit code {code}"
    assert code == expected, f"exit code {code} instead of {expected}"
    return f"trained to the end, exit code {code}"


def redirected(redirection: str) -> Case:
    """The output goes nowhere; the run can be written."""

    def case(path: Path) -> str:
        outcome = check_whole(path, shell(path, path / "run", redirection), 0)
        assert [row["phase"] for row in rows(path / "run")] == list(range(1, PHASES + 1))
        return outcome

    return case


def full_disk(room_again: bool) -> Case:
    """The log is on a full disk; that of the run is full, too, from a moment on: for good, or until half of it is done."""

    def case(path: Path) -> str:
        if (reason := why_no_mount()) is not None:
            raise Skipped(reason)
        with small_disk() as disk, small_disk() as full:
            (full / "log").touch()
            fill(full)

            def meanwhile(phase: int) -> None:
                if phase > PHASES // 2 and room_again:
                    (disk / "ballast").unlink(missing_ok=True)
                elif phase > PHASES // 10:
                    fill(disk)

            code = shell(path, disk / "run", f"> {full}/log 2>&1", "--save-seconds 0", meanwhile)
            outcome = check_whole(path, code, 0 if room_again else 1)
            if room_again:
                assert [row["phase"] for row in rows(disk / "run")] == list(range(1, PHASES + 1))
            return outcome

    return case


def cases() -> dict[str, Case]:
    return {
        "run and log on full disks": full_disk(room_again=False),
        "run and log on full disks, room for the run later": full_disk(room_again=True),
        "2> /dev/full": redirected("2> /dev/full"),
        "> /dev/full 2>&1": redirected("> /dev/full 2>&1"),
        "| head -1": redirected("| head -1"),
        "2>&1 | head -8": redirected("2>&1 | head -8"),
    }
