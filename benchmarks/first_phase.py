"""How long a user waits: from the command to the end of the first phase of W1 to W6, imports and all, on the CPU.

python benchmarks/first_phase.py [W1 ...]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKLOADS = {
    "W1": "CartPole-v1",
    "W2": "CartPole-v1 --num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --total-timesteps 102400",
    "W3": "LunarLander-v3 --num-envs 16 --num-steps 1024 --num-minibatches 256 --update-epochs 4",
    "W4": "HalfCheetah-v5 --num-envs 1 --num-steps 2048 --num-minibatches 32 --update-epochs 10",
    "W5": "HalfCheetah-v5 --num-envs 64 --num-steps 32 --num-minibatches 32 --update-epochs 10",
    "W6": "ALE/Breakout-v5 --num-envs 8 --num-steps 128 --num-minibatches 4 --update-epochs 4",
}


def wait_for_first_phase(arguments: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [
            sys.executable,
            "-m",
            "tightrope",
            "train",
            *arguments.split(),
            "--run-dir",
            str(run),
            "--device",
            "cpu",
        ]
        began = time.perf_counter()
        with subprocess.Popen([*words, "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            metrics = run / "metrics.jsonl"
            while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            process.kill()
        return seconds


if __name__ == "__main__":
    for name in sys.argv[1:] or WORKLOADS:
        print(f"{name}: {wait_for_first_phase(WORKLOADS[name]):.2f} s", flush=True)
