"""Run by one rank on a GPU that sends all its messages: the captured phase has to be the one that sends nothing."""

from __future__ import annotations

from typing import Any

import torch

import tightrope as tr
from tightrope.engine import distributed

agents: dict[str, type[tr.Agent]] = {"ppo": tr.PPO, "vpg": tr.VPG}
SIZES: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 64, "num_steps": 16, "total_timesteps": 64 * 16 * 4, "norm_obs": True, "norm_reward": True},
    "vpg": {"num_envs": 64, "num_steps": 32, "total_timesteps": 64 * 32 * 4, "baseline": "timestep"},
}


def weights(algo: str, mode: str) -> tuple[torch.Tensor, str | None]:
    agent = agents[algo]("CartPole-v1", device="cuda", accelerate=mode, seed=451, **SIZES[algo])
    agent.learn(quiet=True)
    return agent.state.optimizer.flat.double().cpu(), agent.state.runtime.unit


def main() -> dict[str, Any]:
    found = {}
    for algo in SIZES:
        for mode in ("eager", "graph", "max") if algo == "ppo" else ("eager", "graph"):
            sending, unit = weights(algo, mode)
            with distributed.local_only():
                silent, _ = weights(algo, mode)
            found[f"{algo} {mode}"] = {"apart": float((sending - silent).norm() / silent.norm()), "unit": unit}
    return found
