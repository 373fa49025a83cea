"""What a run is going to do, said before it does it."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine import State, choose_threads
from .config import Config

FEW_UPDATES = {"ppo": 100, "vpg": 20}  # below this a plan hardly learns


@dataclass(frozen=True)
class Plan:
    phases: int
    batch: int
    minibatch: int
    updates: int
    steps: int
    parameters: int
    device: str
    threads: int
    warning: str | None

    def lines(self) -> list[str]:
        """The plan in words."""
        where = (
            f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}"
            if self.device == "cpu"
            else self.device
        )
        return [
            f"plan: {self.phases} phases x {self.batch:,} steps = {self.steps:,} steps; "
            f"{self.updates:,} updates on minibatches of {self.minibatch:,}; {self.parameters:,} parameters; {where}",
            *([f"warning: {self.warning}"] if self.warning else []),
        ]


def plan(state: State, config: Config) -> Plan:
    """The plan of a run from where its state stands."""
    algorithm = config.algorithm
    minibatch = algorithm.batch_size // getattr(algorithm, "num_minibatches", getattr(algorithm, "num_batches", 1))
    parameters = sum(p.numel() for p in state.policy.parameters())
    phases = max(algorithm.phases - state.phase, 0)
    updates = phases * algorithm.updates_per_phase
    few = FEW_UPDATES.get(config.algo, 1)
    warning = None
    if state.phase == 0 and updates < few:
        warning = (
            f"only {updates} updates: total_timesteps {algorithm.total_timesteps:,} is short for num_envs "
            f"{algorithm.num_envs} x num_steps {algorithm.num_steps}; raise it, or lower one of them"
        )
    return Plan(
        phases=phases,
        batch=algorithm.batch_size,
        minibatch=minibatch,
        updates=updates,
        steps=phases * algorithm.batch_size,
        parameters=parameters,
        device=str(state.env.device),
        threads=config.run.threads or choose_threads(state.policy, minibatch),
        warning=warning,
    )
