"""Everything that makes a run, in one object: what is not here does not survive from one phase to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from ..models import ActorCritic
from ..types import Env, Rollout
from .accelerate import Execution
from .distributed import world
from .noise import stream_seed
from .optimize import Optimizer
from .streams import Streams


@dataclass(kw_only=True)
class State:
    """The state of a run between two phases. The rollout is scratch space: each phase overwrites it."""

    OWN: ClassVar[tuple[str, ...]] = ("env.", "streams.", "run.obs")  # what is each rank's own, of several

    env: Env
    policy: ActorCritic
    optimizer: Optimizer
    rollout: Rollout
    obs: Tensor  # (N, ...) what the environments show now
    seed: int
    phase: int = 0
    steps: int = 0
    best_score: float = -math.inf  # of the evaluations so far
    solved: bool = False  # whether the last phase left nothing to be learned
    unevaluated: bool = False  # whether the evaluation due after the last phase was given up, and is still to be made
    seconds: float = 0.0  # of training so far, in all processes
    streams: Streams = field(init=False)  # the process's random streams, for whom it may concern
    execution: Execution = field(default_factory=Execution)  # how phases are run; no part of what a run is

    def __post_init__(self) -> None:
        rank = world().rank
        self.streams = Streams(stream_seed(self.seed, "rank", rank=rank) if rank else self.seed, self.env.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor and counter, flat, by dotted name."""
        parts = {
            "policy": {k: v.detach().clone() for k, v in self.policy.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "streams": self.streams.state_dict(),
            "run": {
                "obs": self.obs.clone(),
                "phase": torch.tensor(self.phase),
                "steps": torch.tensor(self.steps),
                "best_score": torch.tensor(self.best_score, dtype=torch.float64),
                "solved": torch.tensor(self.solved),
                "unevaluated": torch.tensor(self.unevaluated),
                "seconds": torch.tensor(self.seconds, dtype=torch.float64),
            },
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor], fresh: bool = False) -> None:
        """Go on from a saved state. Environments that cannot give theirs back start fresh episodes, and so do all if `fresh`:
        what is each rank's own is then not looked for, since it is that of another number of ranks."""

        def part(name: str) -> dict[str, Tensor]:
            return {k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")}

        self.policy.load_state_dict(part("policy"))
        self.optimizer.load_state_dict(part("optimizer"))
        if not fresh:
            self.streams.load_state_dict(part("streams"))
        else:  # such as this run has not drawn from yet
            phase = int(state["run.phase"])
            self.streams = Streams(stream_seed(self.seed, "streams", phase, world().rank), self.env.device)
        run = part("run")
        self.phase, self.steps = int(run["phase"]), int(run["steps"])
        self.best_score, self.seconds = float(run["best_score"]), float(run["seconds"])
        self.solved = bool(run["solved"])
        self.unevaluated = bool(run.get("unevaluated", False))  # which older checkpoints do not have
        if self.env.resumable and not fresh:
            if run["obs"].shape != self.obs.shape:
                raise RuntimeError(f"obs has shape {tuple(run['obs'].shape)}, expected {tuple(self.obs.shape)}")
            self.env.load_state_dict(part("env"))
            self.obs.copy_(run["obs"])
        else:  # in streams that the run has not used yet
            self.obs.copy_(self.env.reset(seed=stream_seed(self.seed, "env", self.phase, world().rank)))
