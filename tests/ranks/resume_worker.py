"""Run by some ranks, for each algorithm: trains to the end, or to the middle, or goes on. Arguments: what to do, and where."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.engine import distributed

what, folder, out = sys.argv[1:]
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 8, "num_steps": 16, "total_timesteps": 1280, "num_minibatches": 2, "target_kl": 0.01},
    "vpg": {"num_envs": 8, "num_steps": 64, "total_timesteps": 8000, "baseline": "critic", "dead_fraction": 0.5},
}
found = {}
for algo, settings in SETTINGS.items():
    path = f"{folder}-{algo}"
    if what == "on":
        agent = tr.load(path)
    else:
        kind = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]
        agent = kind("CartPole-v1", device="cpu", norm_obs=True, eval_every=400, eval_episodes=4, **settings)
    outcome = agent.train(run_dir=path, quiet=True, until=600 if what == "half" else None)
    state = agent.state.state_dict()
    found[algo] = {
        "steps": agent.steps,
        "scores": [[steps, score.mean] for steps, score in outcome.evaluations],
        "weights": agent.state.optimizer.flat.tolist()[:50],
        "sums": {name: float(x.double().sum()) for name, x in state.items() if name != "run.seconds"},
        "obs": agent.state.obs.tolist(),
        "envs": agent.state.env.num_envs,
    }
Path(out, f"{distributed.world().rank}.json").write_text(json.dumps(found))
