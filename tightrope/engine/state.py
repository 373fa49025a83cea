"""Everything that makes a run, in one object: what is not here does not survive from one phase to the next."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from ..models import ActorCritic
from ..types import Env, Rollout
from .distributed import world
from .noise import Streams, stream_seed
from .optimize import Optimizer
from .runtime import Runtime


@dataclass(kw_only=True)
class State:
    """The state of a run between two phases. The rollout is scratch space: each phase overwrites it."""

    KEPT: ClassVar[tuple[str, ...]] = ()  # an algorithm's own fields, (N, ...), that belong to the episodes under way

    env: Env
    policy: ActorCritic
    optimizer: Optimizer
    rollout: Rollout
    obs: Tensor  # (N, ...) what the environments show now
    seed: int
    runtime: Runtime  # how phases are executed; no part of what a run is
    phase: int = 0
    steps: int = 0
    best_score: float = -math.inf  # of the evaluations so far
    solved: bool = False  # whether the task is solved: by stop_when_solved or stop_at_return
    unevaluated: bool = False  # whether the evaluation due after the last phase was given up, and is still to be made
    seconds: float = 0.0  # of training so far, in all processes
    streams: Streams = field(init=False)  # the process's random streams, which environments and networks may draw from

    def __post_init__(self) -> None:
        rank = world().rank
        self.streams = Streams(stream_seed(self.seed, "rank", rank=rank) if rank else self.seed, self.env.device)

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """Prefixes of the names of what every rank has its own of."""
        return "env.", "streams.", "run.obs", *(f"run.{name}" for name in cls.KEPT)

    def state_dict(self) -> dict[str, Tensor]:
        """Every tensor and counter, flat, by dotted name."""
        parts = {
            "policy": {k: v.detach().clone() for k, v in self.policy.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "streams": self.streams.state_dict(),
            "run": {
                "obs": self.obs.clone(),
                **{name: getattr(self, name).clone() for name in self.KEPT},
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
            for name in ("obs", *self.KEPT):
                getattr(self, name).copy_(run[name])
        else:  # in streams that the run has not used yet
            self.obs.copy_(self.env.reset(seed=stream_seed(self.seed, "env", self.phase, world().rank)))


class Snapshot:
    """A copy of a run's state before a phase, on its device, to go back to when the phase goes wrong.

    State keeps its addresses, so what to copy is listed once.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        o = state.optimizer
        tensors = [o.flat, o.first_moment, o.second_moment, o.step, o.learning_rate]  # the first has the parameters
        values = {f.name: getattr(state, f.name) for f in fields(state)}
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for x in [*tensors, *state.policy.buffers(), *(x for x in values.values() if isinstance(x, Tensor))]:
            if 0 not in x.stride():  # expanded tensors are never written to
                alike[x.device, x.dtype].append(x)
        self.copies = [(live, [x.clone() for x in live]) for live in alike.values()]
        self.numbers = [name for name, x in values.items() if isinstance(x, (int, float))]
        self.counters: dict[str, int | float] = {}
        self.env: dict[str, Tensor] = {}

    @property
    def phase(self) -> int | None:
        """The number of phases that had ended when it was taken; None before that."""
        phase = self.counters.get("phase")
        return None if phase is None else int(phase)

    def take(self) -> None:
        """Copy the state as it is now."""
        self.counters = {name: getattr(self.state, name) for name in self.numbers}
        for live, kept in self.copies:
            torch._foreach_copy_(kept, live)
        env = self.state.env
        if env.resumable:
            self.env = getattr(env, "snapshot", env.state_dict)()

    def restore(self) -> None:
        """Put the state back, bit for bit. An env that cannot be put back stays where it is."""
        for live, kept in self.copies:
            torch._foreach_copy_(live, kept)
        for name, x in self.counters.items():
            setattr(self.state, name, x)
        if self.state.env.resumable:
            self.state.env.load_state_dict(self.env)
