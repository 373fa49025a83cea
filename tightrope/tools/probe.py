"""Diagnose an algorithm: check its equations and one phase, train on each probe environment, and explain a failure. Probes of
memory ask for a cue that was shown earlier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from .. import functional
from ..algorithms import ALGORITHMS
from ..engine import State, threads
from ..exercises.equations import EQUATIONS, check_equation
from ..exercises.one_phase import SETTINGS as PHASES
from ..exercises.phase_check import check_phase
from ..models import Categorical, Hybrid
from ..models.action_mask import append_mask
from ..models.observation_groups import append_privileged
from ..training.build import build
from ..training.config import Config, config_classes, configure
from ..training.user_objects import import_memory
from ..types import Settings

# With tanh: Probe4 always shows 0, where a ReLU network with zero biases learns by its last bias alone.
SETTINGS: Settings = dict(
    num_envs=256, num_steps=8, total_timesteps=30_000, learning_rate=1e-2, ent_coef=0.0, activation="tanh", device="cpu"
)


@dataclass(frozen=True)
class Probe:
    """The known result of a probe, and where to look if training misses it."""

    env: str
    observations: tuple[float, ...]
    values: tuple[float, ...]
    actions: tuple[int, ...] | None  # the right action for each observation
    tolerance: float
    meaning: str
    mask: tuple[tuple[bool, ...], ...] | None = None  # of the actions, per observation
    privileged: tuple[float, ...] | None = None  # what only the critic sees, per observation
    numbers: tuple[float, ...] | None = None  # the right continuous part of a hybrid action for each observation


GAMMA = 0.99
PROBES = (
    Probe("Probe1-v0", (0,), (1,), None, 1e-3,
          "the value loss or the optimizer: a constant cannot be learned. Check the loss's sign, that the value has a "
          "gradient, that targets are detached, that every parameter is in the optimizer"),
    Probe("Probe2-v0", (-1, 1), (-1, 1), None, 1e-3,
          "backpropagation through the observation: rows are mixed up or the observation does not reach the critic"),
    Probe("Probe3-v0", (0, 1), (GAMMA, 1), None, 1e-3,
          "time: discounting, bootstrapping or the order of steps. Check successor_values, gae, and what is done at an "
          "episode's end"),
    Probe("Probe4-v0", (0,), (1,), (1,), 2e-3,
          "the policy update: the sign of the surrogate, the advantage, or the log-probability of the action taken"),
    Probe("Probe5-v0", (0, 1), (1, 1), (0, 1), 2e-3,
          "the map from observation to action: actions, advantages and observations are not of the same rows"),
    Probe("TimeLimitProbe-v0", (0, 1), (GAMMA, 1), None, 1e-3,
          "time limits: a truncated step must bootstrap from V(final_obs), neither from 0 nor from the observation after the "
          "reset. Check successor_values, Runtime.final_values, and that terminated and truncated are kept apart"),
    Probe("MaskProbe-v0", (-1, 1), (-1, 1), (0, 1), 2e-3,
          "action masks: a forbidden action is taken, or the mask of another row or step is used. Check ActionMask and "
          "masked_logits, and what the environment shows after a reset", ((True, False, False), (True, True, False))),
    Probe("PrivilegedProbe-v0", (-1, 1, -1, 1), (-3, -1, 1, 3), None, 2e-3,
          "observation groups: what only the critic sees does not reach it, or comes from another row. Check GroupTrunk, and "
          "what the environment shows besides its observation", privileged=(-1, -1, 1, 1)),
    Probe("HybridProbe-v0", (-1, 1), (1, 1), (0, 1), 0.2,
          "hybrid actions: columns, noise or a log-probability of one part are taken for another's, or a part is left out of "
          "the sum. Check Hybrid and HybridHead, and how the environment splits the row", numbers=(-0.5, 0.5)),
)  # fmt: skip


@dataclass(frozen=True)
class ProbeResult:
    """The result of training on one probe."""

    probe: Probe
    values: list[float] | None  # None if the algorithm has no critic
    probabilities: list[list[float]]
    numbers: list[float] | None = None  # greedy, of hybrid actions

    @property
    def error(self) -> float:
        """The largest deviation from the known result."""
        errors = [0.0]
        if self.values is not None:
            errors += [abs(v - w) for v, w in zip(self.values, self.probe.values, strict=True)]
        if self.probe.actions is not None:
            errors += [1 - p[a] for p, a in zip(self.probabilities, self.probe.actions, strict=True)]
        if self.numbers is not None and self.probe.numbers is not None:
            errors += [abs(x - y) for x, y in zip(self.numbers, self.probe.numbers, strict=True)]
        return max(errors)

    @property
    def passed(self) -> bool:
        return self.error <= self.probe.tolerance


def probes_for(algo: str) -> tuple[Probe, ...]:
    """The probes for an algorithm: all with a critic, only those of the policy without one."""
    return PROBES if config_classes(algo)[0]().has_critic else tuple(p for p in PROBES if p.actions is not None)


def quick_checks(algo: str) -> Iterator[tuple[str, str | None]]:
    """(check, what is wrong) of the checks without training: each equation, and one phase, against their definitions."""
    for name in EQUATIONS:
        if hasattr(functional, name):
            wrong = check_equation(name, getattr(functional, name))
            if wrong is not None:
                yield f"equation {name}", wrong
                return
    yield "equations", None
    if algo in PHASES:
        found = check_phase(algo)
        yield f"one phase of {algo}", None if found is None else found[1]


def trained(config: Config, own: Mapping[str, Callable[..., object]] | None = None) -> State:
    """The state after a whole training on one thread, with `own` functions in place of the algorithm's."""
    state: State = build(config)
    state.functions = state.functions.with_own(own or {})
    with threads(1):
        for _ in ALGORITHMS[config.algo].loop(state, config.algorithm):
            pass
    return state


def run_probe(
    probe: Probe, algo: str, seed: int, own: Mapping[str, Callable[..., object]] | None = None
) -> ProbeResult:
    """Train on one probe and return its result. `own` are functions to train with, by the names of `engine.Functions`."""
    state = trained(configure(probe.env, algo, SETTINGS, {"seed": seed, "gamma": GAMMA}, with_preset=False), own)
    with torch.no_grad():
        # the states of a probe are its observations
        rows = torch.tensor(probe.observations, dtype=torch.float32)[:, None]
        if probe.privileged is not None:
            rows = append_privileged(rows, torch.tensor(probe.privileged)[:, None])
        if probe.mask is not None:
            rows = append_mask(rows, torch.tensor(probe.mask))
        distribution, value = state.policy(rows)
    values, numbers = None if state.policy.critic is None else value.tolist(), None
    if isinstance(distribution, Hybrid):
        numbers = distribution.mode()[:, 1].tolist()
        distribution = distribution.parts[0]
    assert isinstance(distribution, Categorical)
    return ProbeResult(probe, values, distribution.probs.tolist(), numbers)


# memory -----------------------------------------------------------------------------------------------------------------

MEMORY_SETTINGS: Settings = dict(
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
    state = trained(configure(probe.env, algo, MEMORY_SETTINGS, OF_ALGORITHM.get(algo, {}), own, with_preset=False))
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
