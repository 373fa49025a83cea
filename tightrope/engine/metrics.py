"""What a phase tells of itself: its metrics, read in one transfer, and whether its numbers stayed finite.

A sum is not finite where a term is not, and one reduction is the cheapest look at a tensor: it does not wait for the device and
can be captured with the phase. The sums travel to the host with the phase's metrics. Finite terms pass unless their sum leaves
float32, which takes 1e30 and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..envs.validate import in_short
from ..types import Discrete, MultiDiscrete, Rollout, Spec
from .distributed import all_gather
from .state import State

RENAMED = {"clip_fraction": "clipfrac"}  # to the tags that fingers and dashboards know
APART = ("terms", "episodes", "steps", "health")  # what is no number of its own
CHARTS = ("learning_rate", "lifespan_mean", "lifespan_std", "lifespan_max", "solved", "reward")


def tag(name: str) -> str:
    """The metric's name in files and charts."""
    return f"{'charts' if name in CHARTS else 'losses'}/{RENAMED.get(name, name)}"


class Reading:
    """A phase's metrics on their way to the host. On a device that takes until the phase has run: ask later."""

    def __init__(self, metrics: Any) -> None:
        named = {**metrics.terms._asdict(), **metrics._asdict()}
        scalars = {tag(name): value for name, value in named.items() if name not in APART}
        self.tags = list(scalars)
        numbers = torch.cat(
            [torch.stack([v.float() for v in scalars.values()]), metrics.health.flatten(), metrics.episodes]
        )
        self.numbers, self.arrival = numbers, None
        if numbers.is_cuda:
            self.numbers = torch.empty(numbers.shape, pin_memory=True).copy_(numbers, non_blocking=True)
            self.arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.arrival.record(torch.cuda.current_stream(numbers.device))

    def wait(self) -> None:
        """Until the phase has run and its numbers are here."""
        if self.arrival is not None:
            with activity.during("reading what a phase has computed", waits=True):
                self.arrival.synchronize()

    @cached_property
    def values(self) -> list[float]:
        """All the numbers: the scalars, the phase's health, and the number, returns and lengths of episodes."""
        self.wait()
        return self.numbers.tolist()

    def unhealthy(self) -> list[str]:
        """What was not finite in the phase, cause before consequence; nothing where all is well."""
        if math.isfinite(sum(self.values[len(self.tags) : -3])):
            return []
        return unhealthy(self.health[self.bad_rank].tolist())

    @property
    def bad_rank(self) -> int:
        """The rank on which the first non-finite number appeared."""
        return first_bad_rank(self.health)

    @property
    def health(self) -> np.ndarray:
        """(ranks, parts)"""
        return np.array(self.values[len(self.tags) : -3]).reshape(-1, len(PARTS))

    @property
    def ranks_agree(self) -> bool:
        """Whether all ranks have the same parameters, to the last digit, as far as their sum tells."""
        return bool((self.health[:, PARAMETER] == self.health[0, PARAMETER]).all())

    def row(self) -> dict[str, float]:
        """Every scalar by its tag. Return and length appear only if an episode finished."""
        row = dict(zip(self.tags, self.values, strict=False))
        episodes, returns, lengths = self.values[-3:]
        row["charts/episodes"] = episodes
        if episodes:
            row["charts/episodic_return"] = returns / episodes
            row["charts/episodic_length"] = lengths / episodes
        return row


# whether numbers stayed finite -----------------------------------------------------------------------------------------

PARTS = (
    "observation", "observation", "reward", "value", "loss", "gradient", "parameter", "statistics", "statistics",
)  # fmt: skip
PARAMETER = PARTS.index("parameter")
# terms that must be finite: policy loss, value loss, entropy. Those that follow are diagnostics and may overflow.
LOSSES = 3


def health(state: State, learned: Tensor, means: Tensor) -> Tensor:
    """One number of each rank for each of PARTS, finite if all of that part was. (ranks, parts)

    `learned` (T, N) marks the steps that were learned from; others do not count. `means` are the phase's losses and further
    terms, averaged over its updates, with the norm of the gradient last.
    """
    policy, rollout = state.policy, state.rollout.first(len(learned))
    mask = None if learned is rollout.real and not rollout.skips else learned
    scaler, normalizer = policy.reward_scaler, policy.normalizer
    sums = torch.stack(
        [
            finite_sum(rollout.obs, mask),
            finite_sum(state.obs, None if mask is None else mask[-1]),
            finite_sum(rollout.reward, mask),
            finite_sum(rollout.value, mask),  # log-probabilities that are learned from show in the loss
            means[:LOSSES].sum(),
            means[-1],
            state.optimizer.flat.sum(),
            scaler.variance,  # which is not finite where its mean is not
            scaler.variance if normalizer is None else normalizer.variance.sum(),
        ]
    )
    return all_gather(sums)


def finite_sum(x: Tensor, mask: Tensor | None) -> Tensor:
    """The sum in float32 of the rows in the mask; 0 for integers, which are always finite."""
    if not x.dtype.is_floating_point:
        return torch.zeros((), device=x.device)
    if mask is not None:
        x = torch.where(over_entries(mask, x), x, 0.0)
    return x.sum() if x.dtype == torch.float32 else x.sum(dtype=torch.float32)


def unhealthy(entries: list[float]) -> list[str]:
    """The parts that were not finite, from the numbers of `health`, in the order in which one leads to the next."""
    if math.isfinite(sum(entries)):
        return []
    return list(dict.fromkeys(part for part, x in zip(PARTS, entries, strict=True) if not math.isfinite(x)))


def first_bad_rank(health: np.ndarray) -> int:
    """The rank (of rows) with the earliest part that is not finite: later parts soon are on all ranks."""
    bad = ~np.isfinite(health)
    return int(np.where(bad.any(1), bad.argmax(1), len(PARTS)).argmin())


@dataclass(frozen=True)
class BadEntry:
    """The first non-finite number that was found."""

    kind: str
    words: str  # what it is, its value and where


def first_bad_entry(rollout: Rollout, last_obs: Tensor, observation: Spec) -> BadEntry | None:
    """The earliest bad number that env and policy exchanged. `last_obs` came after the last step. Choices that are outside the
    space `observation` are bad too."""
    real, end = rollout.real, len(rollout.reward)
    columns = [  # kind, words, tensor, rows that count, step of the first row; in the order in which a step makes them
        ("observation", "env gave observation", rollout.obs, real, 0),
        ("value", "policy gave log-probability", rollout.log_prob, real, 0),
        ("value", "critic gave value", rollout.value, real, 0),
        ("reward", "env gave reward", rollout.reward, real, 0),
        ("observation", "env gave final observation", rollout.final_obs, rollout.truncated, 0),
        ("observation", "env gave observation", last_obs[None], real[-1:], end),
    ]
    found = []
    for order, (kind, words, column, counts, begin) in enumerate(columns):
        spec = observation if kind == "observation" else None
        at = first_index(column, counts, spec)
        if at is not None:
            value = f"{float(column[at]):g}"
            if isinstance(spec, (Discrete, MultiDiscrete)):
                value = f"{int(column[at])}, outside {in_short(spec)},"
            where = location(begin + at[0], *at[1:])
            found.append((begin + at[0], order, BadEntry(kind, f"{words} {value} {where}")))
    return min(found, key=lambda x: x[:2])[2] if found else None


def first_index(x: Tensor, counts: Tensor | None = None, spec: Spec | None = None) -> tuple[int, ...] | None:
    """Where the first entry is that is not finite, or not a choice of `spec`, among the rows that count."""
    if isinstance(spec, (Discrete, MultiDiscrete)):
        bad = (x < 0) | (x >= torch.as_tensor(spec.n, device=x.device))
    elif x.is_floating_point():
        bad = ~torch.isfinite(x)
    else:
        return None
    if counts is not None:
        bad &= over_entries(counts, x)
    return tuple(bad.nonzero()[0].tolist()) if bad.any() else None


def location(step: int, env: int, *entry: int) -> str:
    which = f" (entry {', '.join(map(str, entry))})" if entry else ""
    return f"at env {env}, step {step}{which}"


def over_entries(mask: Tensor, x: Tensor) -> Tensor:
    """A mask over rows, shaped to mask the entries of `x`."""
    return mask.view(*mask.shape, *(1 for _ in x.shape[mask.dim() :]))
