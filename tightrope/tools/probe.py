"""The probes as a diagnosis: train on each, compare with what must come out, and say in words what a failure means."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..algorithms import ALGORITHMS
from ..engine import State, threads
from ..models import Categorical
from ..training.build import build
from ..training.config import config_classes, configure
from ..types import Settings

# With tanh: Probe4 always shows 0, where a ReLU network with zero biases learns by its last bias alone.
SETTINGS: Settings = dict(
    num_envs=256, num_steps=8, total_timesteps=30_000, learning_rate=1e-2, ent_coef=0.0, activation="tanh", device="cpu"
)


@dataclass(frozen=True)
class Probe:
    """What a probe must come to, and where to look when it does not."""

    env: str
    observations: tuple[float, ...]
    values: tuple[float, ...]
    actions: tuple[int, ...] | None  # what the policy must do, per observation
    tolerance: float
    meaning: str


GAMMA = 0.99
PROBES = (
    Probe("Probe1-v0", (0,), (1,), None, 1e-3,
          "the value loss or the optimiser: a constant cannot be learned. Check the loss's sign, that the value has a "
          "gradient, that targets are detached, that every parameter is in the optimiser"),
    Probe("Probe2-v0", (-1, 1), (-1, 1), None, 1e-3,
          "backpropagation through the observation: rows are mixed up or the observation does not reach the critic"),
    Probe("Probe3-v0", (0, 1), (GAMMA, 1), None, 1e-3,
          "time: discounting, bootstrapping or the order of steps. Check successor_values, gae, and what is done at an "
          "episode's end"),
    Probe("Probe4-v0", (0,), (1,), (1,), 2e-3,
          "the policy update: the sign of the surrogate, the advantage, or the log-probability of the action taken"),
    Probe("Probe5-v0", (0, 1), (1, 1), (0, 1), 2e-3,
          "the map from observation to action: actions, advantages and observations are not of the same rows"),
)  # fmt: skip


@dataclass(frozen=True)
class ProbeResult:
    """What training on one probe came to."""

    probe: Probe
    values: list[float] | None  # None where the algorithm has no critic
    probabilities: list[list[float]]

    @property
    def error(self) -> float:
        """The largest distance from what must come out."""
        errors = [0.0]
        if self.values is not None:
            errors += [abs(v - w) for v, w in zip(self.values, self.probe.values, strict=True)]
        if self.probe.actions is not None:
            errors += [1 - p[a] for p, a in zip(self.probabilities, self.probe.actions, strict=True)]
        return max(errors)

    @property
    def passed(self) -> bool:
        return self.error <= self.probe.tolerance


def probes_for(algo: str) -> tuple[Probe, ...]:
    """All five with a critic; those about the policy without one."""
    return PROBES if config_classes(algo)[0]().has_critic else tuple(p for p in PROBES if p.actions is not None)


def run_probe(probe: Probe, algo: str, seed: int) -> ProbeResult:
    """Train on one probe and look at the outcome."""
    config = configure(probe.env, algo, SETTINGS, {"seed": seed, "gamma": GAMMA}, with_preset=False)
    state: State = build(config)
    with threads(1):
        for _ in ALGORITHMS[algo].loop(state, config.algorithm):
            pass
    with torch.no_grad():
        distribution, value = state.policy(torch.tensor(probe.observations, dtype=torch.float32)[:, None])
    assert isinstance(distribution, Categorical)
    values = None if state.policy.critic is None else value.tolist()
    return ProbeResult(probe, values, distribution.probs.tolist())
