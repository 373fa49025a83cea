"""The metrics of a phase, read in one transfer, and the check that its numbers are finite.

The check sums each tensor: a sum is not finite if an entry is not. A sum does not wait for the device, can be captured in a
CUDA graph, and reaches the host together with the metrics. Finite entries pass unless their sum overflows float32, which takes
entries of 1e30 and more.
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
from ..functional.losses import Terms, terms_to_check
from ..types import Discrete, MultiDiscrete, Rollout, Spec
from .distributed import all_gather
from .state import State

RENAMED = {"clip_fraction": "clipfrac"}  # field name to the tag that other libraries use
APART = ("terms", "episodes", "steps", "health")  # fields that are not a scalar metric
CHARTS = ("learning_rate", "lifespan_mean", "lifespan_std", "lifespan_max", "solved", "reward")


def tag(name: str) -> str:
    """Return the metric's tag in files and charts."""
    return f"{'charts' if name in CHARTS else 'losses'}/{RENAMED.get(name, name)}"


class Reading:
    """A phase's metrics, copied to the host. On a device the copy arrives after the phase has run."""

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
        """Wait until the phase has run and its numbers have arrived."""
        if self.arrival is not None:
            with activity.during("reading what a phase has computed", waits=True):
                self.arrival.synchronize()

    @cached_property
    def values(self) -> list[float]:
        """All numbers: scalars, health, then number, returns and lengths of episodes."""
        self.wait()
        return self.numbers.tolist()

    def unhealthy(self) -> list[str]:
        """Return the PARTS that were not finite in the phase, causes before consequences."""
        if math.isfinite(sum(self.values[len(self.tags) : -3])):
            return []
        return unhealthy(self.health[self.bad_rank].tolist())

    @property
    def bad_rank(self) -> int:
        """Rank on which the first non-finite number appeared."""
        return first_bad_rank(self.health)

    @property
    def health(self) -> np.ndarray:
        """(ranks, parts)"""
        return self.per_rank[:, 1:]

    @cached_property
    def per_rank(self) -> np.ndarray:
        """(ranks, 1 + parts): the number of steps that were learned from, then the parts."""
        return np.array(self.values[len(self.tags) : -3]).reshape(-1, 1 + len(PARTS))

    @property
    def ranks_agree(self) -> bool:
        """Whether the sum of the parameters is exactly the same on all ranks."""
        return bool((self.health[:, PARAMETER] == self.health[0, PARAMETER]).all())

    def row(self) -> dict[str, float]:
        """Return every scalar by its tag. Episodic return and length appear only if an episode finished, the mean value only
        if there is a critic (otherwise all values are 0)."""
        row = dict(zip(self.tags, self.values, strict=False))
        learned, values = self.per_rank[:, 0].sum(), self.health[:, VALUE].sum()
        if learned and values:
            row["losses/value_mean"] = float(values / learned)
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
PARAMETER, VALUE = PARTS.index("parameter"), PARTS.index("value")


def health(state: State, learned: Tensor, terms: Terms, grad_norm: Tensor) -> Tensor:
    """Return, for each rank, the number of steps that were learned from, and one number for each entry of PARTS, which is
    finite if all numbers of that part are. (ranks, 1 + parts)

    `learned` (T, N) marks the steps that were learned from; others are ignored. `terms` are the loss's terms and `grad_norm`
    the norm of the gradient, both averaged over the phase's updates.
    """
    policy, rollout = state.policy, state.rollout.first(len(learned))
    mask = None if learned is rollout.valid and not rollout.skips else learned
    scaler, normalizer = policy.reward_scaler, policy.normalizer
    sums = torch.stack(
        [
            learned.sum().float(),
            finite_sum(rollout.obs, mask),
            finite_sum(state.obs, None if mask is None else mask[-1]),
            finite_sum(rollout.reward, mask),
            finite_sum(rollout.value, mask),  # log-probabilities show in the loss
            torch.stack([*terms_to_check(terms).values()]).sum(),
            grad_norm,
            state.optimizer.flat.sum(),
            scaler.variance,  # not finite if the mean is not
            scaler.variance if normalizer is None else normalizer.variance.sum(),
        ]
    )
    return all_gather(sums)


def finite_sum(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the float32 sum over the rows in the mask, and 0 for integers, which are always finite."""
    if not x.dtype.is_floating_point:
        return torch.zeros((), device=x.device)
    if mask is not None:
        x = torch.where(over_entries(mask, x), x, 0.0)
    return x.sum() if x.dtype == torch.float32 else x.sum(dtype=torch.float32)


def unhealthy(entries: list[float]) -> list[str]:
    """Return the parts of one row of `health` that are not finite, causes before consequences."""
    if math.isfinite(sum(entries)):
        return []
    return list(dict.fromkeys(part for part, x in zip(PARTS, entries, strict=True) if not math.isfinite(x)))


def first_bad_rank(health: np.ndarray) -> int:
    """Return the rank with the earliest non-finite part. Later parts are soon non-finite on all ranks."""
    bad = ~np.isfinite(health)
    return int(np.where(bad.any(1), bad.argmax(1), len(PARTS)).argmin())


@dataclass(frozen=True)
class BadEntry:
    """A number that is not finite, or not a valid choice."""

    kind: str
    words: str  # source, value and position


def first_bad_entry(rollout: Rollout, last_obs: Tensor, observation: Spec) -> BadEntry | None:
    """Return the earliest bad number in a rollout and in `last_obs`, the observation after its last step. An observation is
    also bad if it is a choice outside the space `observation`."""
    valid, end = rollout.valid, len(rollout.reward)
    columns = [  # kind, words, tensor, mask, step of the first row; in the order within a step
        ("observation", "env gave observation", rollout.obs, valid, 0),
        ("value", "policy gave log-probability", rollout.log_prob, valid, 0),
        ("value", "critic gave value", rollout.value, valid, 0),
        ("reward", "env gave reward", rollout.reward, valid, 0),
        ("observation", "env gave final observation", rollout.final_obs, rollout.truncated, 0),
        ("observation", "env gave observation", last_obs[None], valid[-1:], end),
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
    """Return the index of the first bad entry among the rows in the mask `counts`: not finite, or not a choice of `spec`."""
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
    """Reshape a mask over rows so that it broadcasts over the entries of `x`."""
    return mask.view(*mask.shape, *(1 for _ in x.shape[mask.dim() :]))
