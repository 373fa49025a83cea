"""How long a user waits: from the command to the end of the first phase of W1 to W6, imports and all, on the CPU.

python benchmarks/first_phase.py [W1 ...]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads import WORKLOADS

SIZE = ("num_envs", "num_steps", "num_minibatches", "update_epochs")


def wait_for_first_phase(workload: str) -> float:
    env, _, settings = WORKLOADS.get(workload, ("CartPole-v1", 0, {}))  # W1 is the preset
    sizes = [word for name in SIZE if name in settings for word in (f"--{name.replace('_', '-')}", str(settings[name]))]
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        words = [sys.executable, "-m", "tightrope", "train", env, *sizes, "--run-dir", str(metrics.parent)]
        began = time.perf_counter()
        with subprocess.Popen([*words, "--device", "cpu", "--quiet"], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            process.kill()
        return seconds


if __name__ == "__main__":
    for name in sys.argv[1:] or ["W1", *WORKLOADS]:
        print(f"{name}: {wait_for_first_phase(name):.2f} s", flush=True)
