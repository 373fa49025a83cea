"""Whether the numbers of a phase stayed finite, and where the first one is that did not.

A sum is not finite where a term is not, and one reduction is the cheapest look at a tensor: it does not wait for the device and
can be captured with the phase. The sums travel to the host with the phase's metrics. Finite terms pass unless their sum leaves
float32, which takes 1e30 and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..envs.validate import in_short
from ..types import Discrete, MultiDiscrete, Rollout, Spec
from .distributed import all_gather
from .state import State

PARTS = (
    "observation", "observation", "reward", "value", "loss", "gradient", "parameter", "statistics", "statistics",
)  # fmt: skip
PARAMETER = PARTS.index("parameter")
LOSSES = (
    3  # terms: policy loss, value loss, entropy. Those that follow are diagnostics, which may overflow in a sound run
)


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
            total(rollout.obs, mask),
            total(state.obs, None if mask is None else mask[-1]),
            total(rollout.reward, mask),
            total(rollout.value, mask),  # log-probabilities that are learned from show in the loss
            means[:LOSSES].sum(),
            means[-1],
            state.optimizer.flat.sum(),
            scaler.variance,  # which is not finite where its mean is not
            scaler.variance if normalizer is None else normalizer.variance.sum(),
        ]
    )
    return all_gather(sums)


def total(x: Tensor, mask: Tensor | None) -> Tensor:
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
