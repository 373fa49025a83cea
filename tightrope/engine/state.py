"""The state of a run: everything that persists from one phase to the next, and its copies for undoing a phase."""

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
from .functions import Functions
from .noise import Noise, Streams, stream_seed
from .optimize import Optimizer
from .runtime import Runtime


@dataclass(kw_only=True)
class State:
    """The state of a run between two phases. Each phase overwrites the rollout, which is not saved."""

    # an algorithm's own fields, (N, ...), that depend on running episodes
    EPISODE_FIELDS: ClassVar[tuple[str, ...]] = ()

    env: Env
    policy: ActorCritic
    optimizer: Optimizer
    rollout: Rollout
    obs: Tensor  # (N, ...) the current observations
    seed: int
    runtime: Runtime  # how phases are executed; not saved
    functions: Functions = field(default_factory=Functions)  # what the algorithm computes with; not saved
    phase: int = 0  # number of completed phases
    steps: int = 0  # environment steps so far, over all environments and ranks
    best_score: float = -math.inf  # best evaluation so far
    solved: bool = False  # whether the task is solved: by stop_when_solved or stop_at_return
    unevaluated: bool = False  # whether the evaluation after the last phase was interrupted and must be repeated
    seconds: float = 0.0  # training time so far, also of earlier processes
    streams: Streams = field(init=False)  # states of the process's random generators, see noise.py
    ent_coef: Tensor = field(init=False)  # filled in place before each phase; losses read it if ent_coef is a schedule

    def __post_init__(self) -> None:
        rank = world().rank
        if self.runtime.compiles_recordings:
            self.functions = self.functions.in_c()
        self.ent_coef = torch.zeros((), device=self.env.device)
        self.streams = Streams(stream_seed(self.seed, "rank", rank=rank) if rank else self.seed, self.env.device)

    def collect(self, obs: Tensor, noise: Noise, dead_fraction: float | None = None) -> int:
        """Fill the rollout, starting at `obs`, and keep the observations after its end. Return the number of steps taken."""
        own, taken = self.functions.collect, self.rollout.reward.shape[0]
        if own is not None:
            with torch.no_grad():
                obs = own(self.env, self.policy, self.rollout, obs, noise)
        else:
            obs, taken = self.runtime.collect(self.env, self.policy, self.rollout, obs, noise, dead_fraction)
        self.obs.copy_(obs)
        return taken

    @classmethod
    def per_rank_prefixes(cls) -> tuple[str, ...]:
        """Return prefixes of the names in `state_dict` whose tensors differ between ranks."""
        return "env.", "streams.", "run.obs", *(f"run.{name}" for name in cls.EPISODE_FIELDS)

    def state_dict(self) -> dict[str, Tensor]:
        """Return every tensor and counter by dotted name."""
        parts = {
            "policy": {k: v.detach().clone() for k, v in self.policy.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "env": self.env.state_dict(),
            "streams": self.streams.state_dict(),
            "run": {
                "obs": self.obs.clone(),
                **{name: getattr(self, name).clone() for name in self.EPISODE_FIELDS},
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
        """Continue from a saved state. Environments that cannot be restored start new episodes.

        With `fresh` all environments do, and entries that differ between ranks are ignored: the number of ranks has changed.
        """

        def part(name: str) -> dict[str, Tensor]:
            return {k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")}

        self.policy.load_state_dict(part("policy"))
        self.optimizer.load_state_dict(part("optimizer"))
        if not fresh:
            self.streams.load_state_dict(part("streams"))
        else:  # streams that this run has not used yet
            phase = int(state["run.phase"])
            self.streams = Streams(stream_seed(self.seed, "streams", phase, world().rank), self.env.device)
        run = part("run")
        self.phase, self.steps = int(run["phase"]), int(run["steps"])
        self.best_score, self.seconds = float(run["best_score"]), float(run["seconds"])
        self.solved = bool(run["solved"])
        self.unevaluated = bool(run.get("unevaluated", False))  # missing in older checkpoints
        if self.env.resumable and not fresh:
            if run["obs"].shape != self.obs.shape:
                raise RuntimeError(f"obs has shape {tuple(run['obs'].shape)}, expected {tuple(self.obs.shape)}")
            self.env.load_state_dict(part("env"))
            for name in ("obs", *self.EPISODE_FIELDS):
                getattr(self, name).copy_(run[name])
        else:  # new episodes, from seeds that the run has not used yet
            self.obs.copy_(self.env.reset(seed=stream_seed(self.seed, "env", self.phase, world().rank)))


class Snapshot:
    """A copy of a run's state before a phase, on its device, for undoing the phase.

    A state's tensors are never replaced, so the list of tensors to copy is made once.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        o = state.optimizer
        tensors = [o.flat, o.first_moment, o.second_moment, o.step_count, o.learning_rate]  # parameters are in o.flat
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
        """Number of completed phases when the snapshot was taken; None before `take`."""
        phase = self.counters.get("phase")
        return None if phase is None else int(phase)

    def take(self) -> None:
        """Copy the current state."""
        self.counters = {name: getattr(self.state, name) for name in self.numbers}
        for live, kept in self.copies:
            torch._foreach_copy_(kept, live)
        env = self.state.env
        if env.resumable:
            self.env = getattr(env, "snapshot", env.state_dict)()

    def restore(self) -> None:
        """Restore the state, bit for bit. An env that cannot be restored stays as it is."""
        for live, kept in self.copies:
            torch._foreach_copy_(live, kept)
        for name, x in self.counters.items():
            setattr(self.state, name, x)
        if self.state.env.resumable:
            self.state.env.load_state_dict(self.env)
