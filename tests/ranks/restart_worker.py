"""Run by two ranks under a torchrun that restarts: a user's program, of which the second rank dies once. Argument: a folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.engine import distributed
from tightrope.runs import train as training

world = distributed.join()
print(f"restarts {world.restarts}", flush=True)
add, phases = training.Log.add, []


def dying(self: Any, state: Any, metrics: Any) -> Any:
    phases.append(state.phase)
    if world.rank == 1 and world.restarts == 0 and state.phase == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(self, state, metrics)


training.Log.add = dying  # type: ignore[method-assign]
agent = tr.PPO("CartPole-v1", num_envs=8, num_steps=16, total_timesteps=1280, device="cpu", save_seconds=0.0)
agent.learn(run_dir=sys.argv[1], quiet=True)
if world.is_rank0:
    Path(sys.argv[1], "program.txt").write_text(f"{phases[0]} {agent.steps}")
