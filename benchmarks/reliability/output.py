"""Output that cannot be written: training comes to its end all the same, and an unfinished one never exits with 0."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attacks import Case
from disks import fill, small_disk
from runs import PHASE, check_phases

PHASES = 400
SMALL = "--num-envs 3 --num-steps 8 --hidden-sizes 8 --num-minibatches 2 --update-epochs 2 --device cpu --threads 1 --seed 7"
SMALL += (
    f" --max-episode-steps 20 --video-every 0 --eval-episodes 1 --eval-every 240 --total-timesteps {PHASE * PHASES}"
)
COUNTED = """
import os, time
import tightrope as tr

class Counted(tr.envs.CartPole):
    def step(self, action, *rest):
        with open(os.environ["STEPS"], "ab") as file:
            file.write(b".")
        return super().step(action, *rest)
"""


def check_trains(
    path: Path, run: Path, words: str, code: int = 0, meanwhile: Callable[[int], None] = lambda phase: None
) -> str:
    """Train in a shell, as `train ... WORDS`: it comes to its end with that exit code. `meanwhile` is told the phase."""
    (path / "counted.py").write_text(COUNTED)
    steps = path / "steps"
    steps.touch()
    script = (
        f"{sys.executable} -m tightrope train counted:Counted {SMALL} --run-dir {run} {words}; exit ${{PIPESTATUS[0]}}"
    )
    process = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=path, start_new_session=True,
        env={**os.environ, "STEPS": str(steps), "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"},
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
    share = steps.stat().st_size / (8 * PHASES)
    assert share >= 1, f"training ended after {share:.0%} of it, with exit code {process.wait()}"
    assert process.wait() == code, f"exit code {process.wait()} instead of {code}"
    return f"trained to the end, exit code {code}"


def redirected(redirection: str) -> Case:
    """The output goes nowhere; the run can be written."""

    def case(path: Path) -> str:
        outcome = check_trains(path, path / "run", redirection)
        check_phases(path / "run", PHASES)
        return outcome

    return case


def full_disks(room_again: bool) -> Case:
    """The log is on a full disk; that of the run is full, too, from a moment on: for good, or until half of it is done."""

    def case(path: Path) -> str:
        with small_disk() as disk, small_disk() as full:
            (full / "log").touch()
            fill(full)

            def meanwhile(phase: int) -> None:
                if phase > PHASES // 2 and room_again:
                    (disk / "ballast").unlink(missing_ok=True)
                elif phase > PHASES // 10:
                    fill(disk)

            words = f"--save-seconds 0 > {full}/log 2>&1"
            outcome = check_trains(path, disk / "run", words, 0 if room_again else 1, meanwhile)
            if room_again:
                check_phases(disk / "run", PHASES)
            return outcome

    return case


def cases() -> dict[str, Case]:
    return {
        "run and log on full disks": full_disks(room_again=False),
        "run and log on full disks, room for the run later": full_disks(room_again=True),
        **{words: redirected(words) for words in ("2> /dev/full", "> /dev/full 2>&1", "| head -1", "2>&1 | head -8")},
    }
