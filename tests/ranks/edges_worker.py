"""Run by two ranks: what one of them is asked for alone, cannot do, or finds. Argument: a folder. Nothing may hang."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import torch

import tightrope as tr
from tightrope.engine import Agreement, distributed
from tightrope.runs import directory

folder, out = map(Path, sys.argv[1:])
SMALL: dict[str, Any] = {"num_envs": 8, "num_steps": 16, "total_timesteps": 512, "device": "cpu", "video_every": 0}
world = distributed.join()
found: dict[str, Any] = {}


def complaint(**settings: Any) -> str:
    try:
        tr.PPO("CartPole-v1", **SMALL | settings).learn(quiet=True, run_dir=settings.pop("where", None))
    except tr.UsageError as error:
        return str(error)
    return "none"


class Sick(tr.envs.CartPole):
    def reward(self, state: torch.Tensor, action: torch.Tensor, next_state: torch.Tensor) -> torch.Tensor:
        late = next_state[:, 2].abs() > 0.1  # not yet in the first steps, which are tried when the agent is made
        return torch.where(late & (world.rank == 1), torch.nan, super().reward(state, action, next_state))


found["learning rate"] = complaint(learning_rate=1e-3 if world.rank else 2e-3)
found["eval_every"] = complaint(eval_every=128 if world.is_rank0 else 0)
agent = tr.PPO("CartPole-v1", **SMALL)
try:
    agent.learn(quiet=True, run_dir=folder / "one" if world.is_rank0 else None)
except tr.UsageError as error:
    found["run_dir"] = str(error)

try:
    tr.PPO(Sick(num_envs=4), **{k: v for k, v in SMALL.items() if k != "num_envs"}).learn(quiet=True)
except tr.NotFinite as error:
    found["nan"] = str(error)
found["is watched"] = distributed._heartbeat is not None and distributed._heartbeat._farewell is None

wishes = Agreement(2)
found["granted"] = [wishes.decide(0, world.is_rank0) for _ in range(6)]
wishes.close()


def full(*args: Any, **rest: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


directory.save_checkpoint, before = full, directory.save_checkpoint
agent = tr.PPO("CartPole-v1", **SMALL, eval_every=128, eval_episodes=2)
found["unsaved"] = agent.train(quiet=True, run_dir=folder / "full").unsaved
directory.save_checkpoint = before
agent = tr.PPO("CartPole-v1", **SMALL)
agent.learn(quiet=True, run_dir=folder / "good")
agent.save(folder / "apart")
found["steps"] = agent.steps
Path(out, f"{world.rank}.json").write_text(json.dumps(found))
