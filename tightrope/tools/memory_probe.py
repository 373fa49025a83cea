"""Diagnose memory: train on tasks that ask for a cue shown earlier, and explain a failure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..algorithms import ALGORITHMS
from ..engine import State, threads
from ..models import Categorical
from ..training.build import build
from ..training.config import configure
from ..training.user_objects import import_memory
from ..types import Settings

SETTINGS: Settings = dict(
    num_envs=64, learning_rate=1e-2, ent_coef=0.0, hidden_sizes=(16,), memory_size=16, activation="tanh", device="cpu"
)
OF_ALGORITHM: dict[str, Settings] = {
    "ppo": dict(num_minibatches=4, update_epochs=4),
    "vpg": dict(num_envs=32, ent_coef=0.01, max_grad_norm=0.5),
}
MORE = {"vpg": 6}  # times the steps: it makes one update from each rollout
TOLERANCE = 0.2  # of the probability of the right action, which has just been found


@dataclass(frozen=True)
class MemoryProbe:
    """A task of which each episode shows a cue, -1 or 1, then `between` times nothing, and then asks for the cue."""

    env: str
    between: int
    num_steps: int
    total_timesteps: int
    actions: tuple[int, int]  # the right ones for the two cues
    meaning: str


MEMORY_PROBES = (
    MemoryProbe("Recall10-v0", 9, 22, 40_000, (0, 1),
                "the memory itself: its state does not reach the next step, is cut where no episode ends, or has no gradient. "
                "Check EnvWithMemory, and step and unroll of the memory"),
    MemoryProbe("TMaze-v0", 7, 20, 60_000, (1, 2),
                "memory beside other decisions: rows of a sequence are in the wrong order, or belong to other environments. "
                "Check Sequences and SequenceRollout"),
    MemoryProbe("Recall50-v0", 49, 51, 200_000, (0, 1),
                "long memory: gradients vanish on the way back. Check the gates that keep the state, and time_scales"),
)  # fmt: skip


@dataclass(frozen=True)
class MemoryProbeResult:
    """The result of training on one probe: the probability of the right action for each cue."""

    probe: MemoryProbe
    probabilities: tuple[float, float]

    @property
    def error(self) -> float:
        return 1 - min(self.probabilities)

    @property
    def passed(self) -> bool:
        return self.error <= TOLERANCE


def run_memory_probe(probe: MemoryProbe, algo: str, memory: str, seed: int) -> MemoryProbeResult:
    """Train on one probe and return its result."""
    import_memory(memory)
    total = probe.total_timesteps * MORE.get(algo, 1)
    own: Settings = dict(num_steps=probe.num_steps, total_timesteps=total, memory=memory, seed=seed)
    config = configure(probe.env, algo, SETTINGS, OF_ALGORITHM.get(algo, {}), own, with_preset=False)
    state: State = build(config)
    with threads(1):
        for _ in ALGORITHMS[algo].loop(state, config.algorithm):
            pass
    return MemoryProbeResult(probe, answer_probabilities(state, probe))


@torch.no_grad()
def answer_probabilities(state: State, probe: MemoryProbe) -> tuple[float, float]:
    """The probability of the right action for each cue, at the step that pays for it."""
    policy = state.policy
    layout = policy.memory_rows
    assert layout is not None
    shown = [
        torch.tensor([[-1.0, 0.0], [1.0, 0.0]]),
        *[torch.zeros(2, 2)] * probe.between,
        torch.tensor([[0.0, 1.0]] * 2),
    ]
    rows = layout.start(shown[0])
    for obs in shown[1:]:
        memory = policy.act(rows)[1][:, -layout.state_size :]
        rows = layout.join(obs, torch.zeros(2), memory)
    distribution = policy.distribution(rows)
    assert isinstance(distribution, Categorical)
    first, second = (float(distribution.probs[i, action]) for i, action in enumerate(probe.actions))
    return first, second
