"""Everything that makes a run, in one object: what is not here does not survive from one phase to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..models import ActorCritic
from ..types import Env, Rollout
from .accelerate import Execution
from .noise import stream_seed
from .optimize import Optimizer


@dataclass(kw_only=True)
class State:
    """The state of a run between two phases. The rollout is scratch space: each phase overwrites it."""

    env: Env
    policy: ActorCritic
    optimizer: Optimizer
    rollout: Rollout
    obs: Tensor  # (N, ...) what the environments show now
    seed: int
    phase: int = 0
    steps: int = 0
    best_score: float = -math.inf  # of the evaluations so far
    execution: Execution = field(default_factory=Execution)  # how phases are run; no part of what a run is

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor and counter, flat, by dotted name."""
        parts = {
            "policy": {k: v.detach().clone() for k, v in self.policy.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "run": {
                "obs": self.obs.clone(),
                "phase": torch.tensor(self.phase),
                "steps": torch.tensor(self.steps),
                "best_score": torch.tensor(self.best_score, dtype=torch.float64),
            },
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        def part(name: str) -> dict[str, Tensor]:
            return {k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")}

        self.policy.load_state_dict(part("policy"))
        self.optimizer.load_state_dict(part("optimizer"))
        run = part("run")
        self.phase, self.steps = int(run["phase"]), int(run["steps"])
        if self.env.resumable:
            self.env.load_state_dict(part("env"))
            self.obs.copy_(run["obs"])
        else:  # fresh episodes, in streams that the run has not used yet
            self.obs.copy_(self.env.reset(seed=stream_seed(self.seed, "env", self.phase)))
        self.best_score = float(run["best_score"])
