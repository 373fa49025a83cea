"""Run by some ranks, for each algorithm: trains to the end, or to the middle, or resumes."""

from __future__ import annotations

from typing import Any

import tightrope as tr

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16, "total_timesteps": 576, "num_minibatches": 2, "target_kl": 0.01},
    "vpg": {"num_steps": 32, "total_timesteps": 1200, "baseline": "critic", "dead_fraction": 0.5},
}
HALF = 288  # steps


def main(what: str, folder: str) -> dict[str, Any]:
    return {algo: trained(what, f"{folder}-{algo}", algo) for algo in SETTINGS}


def trained(what: str, path: str, algo: str) -> dict[str, Any]:
    if what == "resume":
        agent = tr.load(path)
    else:
        kind = {"ppo": tr.PPO, "vpg": tr.VPG}[algo]
        settings = {"num_envs": 6, "device": "cpu", "norm_obs": True, "eval_every": 192, "eval_episodes": 4}
        agent = kind("CartPole-v1", **settings, **SETTINGS[algo])
    outcome = agent.train(run_dir=path, quiet=True, until=HALF if what == "half" else None)
    state = agent.state.state_dict()
    return {
        "steps": agent.steps,
        "scores": [[steps, score.mean] for steps, score in outcome.evaluations],
        "weights": agent.state.optimizer.flat.tolist()[:50],
        "sums": {name: float(x.double().sum()) for name, x in state.items() if name != "run.seconds"},
        "obs": agent.state.obs.tolist(),
        "envs": agent.state.env.num_envs,
    }
