"""Whether a phase stayed finite, as a few sums on the device.

What is not finite makes every sum that it is part of so, and one reduction is the cheapest look at a tensor there is: it waits
for nobody, and can be captured with the phase. The sums travel to the host with the phase's metrics; nobody reads them as
numbers. Finite values pass unless their sum leaves float32, which takes 1e30 and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..envs.validate import in_short
from ..models import ActorCritic
from ..types import Discrete, MultiDiscrete, Rollout, Spec
from .optimize import Optimizer

PARTS = (
    "observation", "observation", "reward", "value", "loss", "gradient", "parameter", "statistics", "statistics",
)  # fmt: skip
PARAMETER = PARTS.index("parameter")
LOSSES = 3  # of the policy, of the critic, entropy; what follows them only describes, and may overflow where learning is sound


class Phased(Protocol):
    """What a phase leaves behind, of a run's state."""

    policy: ActorCritic
    optimizer: Optimizer
    rollout: Rollout
    obs: Tensor


def health(state: Phased, learned: Tensor, means: Tensor) -> Tensor:
    """One number for each of PARTS, finite if all of that part was.

    `learned` (T, N) says which steps were learned from: what others hold is nobody's business. `means` are the phase's losses
    and further terms, with the norm of the gradient last: these are means over its updates, so that one is enough to show.
    """
    policy, rollout = state.policy, state.rollout.first(len(learned))
    mask = None if learned is rollout.real and not rollout.skips else learned
    scaler, normalizer = policy.reward_scaler, policy.normalizer
    return torch.stack(
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


def total(x: Tensor, mask: Tensor | None) -> Tensor:
    """The sum in float32 of the rows in the mask; 0 for whole numbers, which are always finite."""
    if not x.dtype.is_floating_point:
        return torch.zeros((), device=x.device)
    if mask is not None:
        x = torch.where(mask.view(*mask.shape, *(1 for _ in x.shape[mask.dim() :])), x, 0.0)
    return x.sum() if x.dtype == torch.float32 else x.sum(dtype=torch.float32)


def unhealthy(entries: list[float]) -> list[str]:
    """The parts that were not finite, from what `health` said, in the order in which one leads to the next."""
    if math.isfinite(sum(entries)):
        return []
    bad = [part for part, x in zip(PARTS, entries, strict=True) if not math.isfinite(x)]
    return list(dict.fromkeys(bad))


def culprit(ranks: np.ndarray) -> int:
    """The rank on which it began: what is not finite on one soon is on all, but for what came before."""
    bad = ~np.isfinite(ranks)
    return int(np.where(bad.any(1), bad.argmax(1), len(PARTS)).argmin())


# the first bad entry --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Culprit:
    """The first bad tensor."""

    kind: str
    words: str  # what it is, how bad and where


def first_bad_entry(rollout: Rollout, last_obs: Tensor, observation: Spec) -> Culprit | None:
    """The earliest bad entry of what env and policy said to each other. `last_obs` came after the last step; choices that
    `observation` does not have are bad too."""
    found = []
    columns = [  # in the order in which a step makes them
        ("observation", "env gave observation", rollout.obs, rollout.real),
        ("value", "policy gave log-probability", rollout.log_prob, rollout.real),
        ("value", "critic gave value", rollout.value, rollout.real),
        ("reward", "env gave reward", rollout.reward, rollout.real),
        ("observation", "env gave final observation", rollout.final_obs, rollout.truncated),
    ]
    for order, (kind, words, column, counts) in enumerate(columns):
        spec = observation if kind == "observation" else None
        at = first_index(column, counts, spec)
        if at is not None:
            found.append((at[0], order, Culprit(kind, f"{words} {in_words(column[at], spec)} {place(*at)}")))
    if found:
        return min(found, key=lambda x: x[:2])[2]
    at = first_index(last_obs, rollout.real[-1], observation)
    if at is None:
        return None
    value, (env, *entry) = in_words(last_obs[at], observation), at
    return Culprit("observation", f"env gave observation {value} {place(len(rollout.reward), env, *entry)}")


def in_words(value: Tensor, spec: Spec | None) -> str:
    return (
        f"{int(value)}, outside {in_short(spec)},"
        if isinstance(spec, (Discrete, MultiDiscrete))
        else f"{float(value):g}"
    )


def first_index(x: Tensor, counts: Tensor | None = None, spec: Spec | None = None) -> tuple[int, ...] | None:
    """Where the first entry is that is not finite, or not a choice of `spec`, of the rows that count."""
    if isinstance(spec, (Discrete, MultiDiscrete)):
        bad = (x < 0) | (x >= torch.as_tensor(spec.n, device=x.device))
    elif x.is_floating_point():
        bad = ~torch.isfinite(x)
    else:
        return None
    if counts is not None:
        bad &= over(counts, x)
    return tuple(bad.nonzero()[0].tolist()) if bad.any() else None


def place(step: int, env: int, *entry: int) -> str:
    which = f" (entry {', '.join(map(str, entry))})" if entry else ""
    return f"at env {env}, step {step}{which}"


def over(mask: Tensor, x: Tensor) -> Tensor:
    """A mask over rows as one over their entries."""
    return mask.view(*mask.shape, *(1 for _ in x.shape[mask.dim() :]))
