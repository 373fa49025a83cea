"""Run by two ranks: what one of them alone is given, cannot do, or finds. Nothing may hang."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from odd_envs import Sick

import tightrope as tr
from tightrope.engine import distributed
from tightrope.training import run_directory

SMALL: dict[str, Any] = {"num_steps": 16, "total_timesteps": 512, "device": "cpu", "video_every": 0}
world = distributed.world()


def refused(run_dir: Path | None = None, env: Any = "CartPole-v1", **settings: Any) -> str:
    """What training says instead of beginning, or of going on."""
    try:
        tr.PPO(env, **SMALL, **settings).learn(quiet=True, run_dir=run_dir)
    except (tr.UsageError, tr.NotFinite) as error:
        return str(error)
    return "none"


def unsaved(folder: Path) -> str | None:
    """What is said of a disk that is full; only rank 0 writes to it."""

    def full(*args: Any, **rest: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run_directory.save_checkpoint, before = full, run_directory.save_checkpoint
    try:
        agent = tr.PPO("CartPole-v1", num_envs=8, **SMALL, eval_every=128, eval_episodes=2)
        return agent.train(quiet=True, run_dir=folder / "full").unsaved
    finally:
        run_directory.save_checkpoint = before


def stopped_by_callbacks() -> dict[str, Any]:
    """One callback changes a setting on every rank, one stops training on rank 0; then a loop is left on both."""

    class Change(tr.Callback):
        every_rank = True

        def on_phase(self, row: dict[str, Any]) -> None:
            agent.change(learning_rate=2e-3 if row["phase"] == 1 else 1e-3)

    class Stop(tr.Callback):
        calls = 0

        def on_update(self, state: Any) -> None:
            self.calls += 1
            if state.phase == 1:
                raise tr.StopTraining

    agent, stop = tr.PPO("CartPole-v1", num_envs=8, **SMALL), Stop()
    agent.learn(quiet=True, callbacks=[Change(), stop])
    steps = [agent.steps]
    for row in agent.phases():
        steps.append(row["step"])
        if len(steps) == 2:
            break
    return {"steps": steps, "calls": stop.calls, "sum": float(agent.state.optimizer.flat.double().sum())}


def main(path: str) -> dict[str, Any]:
    folder, is_rank0 = Path(path), world.is_rank0
    found: dict[str, Any] = {
        "learning rate": refused(num_envs=8, learning_rate=2e-3 if is_rank0 else 1e-3),
        "eval_every": refused(num_envs=8, eval_every=128 if is_rank0 else 0),
        "run_dir": refused(folder / "one" if is_rank0 else None, num_envs=8),
        "nan": refused(env=Sick(num_envs=4)),
        "is watched": distributed._heartbeat is not None and distributed._heartbeat._farewell is None,
        "unsaved": unsaved(folder),
        "callbacks": stopped_by_callbacks(),
    }
    agent = tr.PPO("CartPole-v1", num_envs=8, **SMALL)
    agent.learn(quiet=True, run_dir=folder / "good")
    agent.save(folder / "saved")
    return {**found, "steps": agent.steps}
