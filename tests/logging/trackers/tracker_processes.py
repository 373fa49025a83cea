"""Training with a tracker in a process of its own, and a callback for it that tells everyone of a video."""

import os
import subprocess
from pathlib import Path

from forks import PythonProcess

WITH_VIDEO = """
from pathlib import Path
import numpy as np
import tightrope as tr
import tightrope.logging.trackers.tracker
import tightrope.training.trainer
from tightrope.logging import Callback, Video
from tightrope.training.trainer import built_in_callbacks

class OneVideo(Callback):  # of phase 2, known when phase 4 has begun
    def __init__(self, call):
        self.call = call
    def on_update(self, state):
        path = Path("run/videos/phase0002.mp4")
        if state.phase == 2:
            with Video(path) as video:
                for shade in range(0, 250, 50):
                    video.add(np.full((64, 64, 3), shade, dtype=np.uint8))
            self.steps = state.steps
        if state.phase == 3:
            self.call("on_video", path, self.steps)

def with_video(trainer):
    return [OneVideo(trainer.callbacks.call), *built_in_callbacks(trainer)]

tightrope.training.trainer.built_in_callbacks = with_video
tightrope.logging.trackers.tracker.MIN_PHASES_BETWEEN = 1
settings = dict(num_envs=4, num_steps=8, hidden_sizes=(8,), device="cpu", eval_every=64, eval_episodes=2)
"""


def process(words: list[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python with these arguments, without the user's settings of trackers."""
    of_user = [k for k in os.environ if k.startswith(("MLFLOW_", "WANDB_")) or k.lower().endswith("_proxy")]
    variables = {**dict.fromkeys(of_user), "HOME": str(folder), **environment}
    return PythonProcess(*words, variables=variables, cwd=folder).done(240)


def warnings_in(said: str) -> list[str]:
    """Lines that warn, but for one on settings that a resumed run has anyway."""
    return [line for line in said.splitlines() if "warning" in line and "as saved in its settings" not in line]
