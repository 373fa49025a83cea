"""The functions that an algorithm computes with, as one record: a user's own may replace them, one by one, for one agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper

from torch import Tensor

from ..functional import (
    clipped_surrogate,
    discounted_returns,
    entropy_bonus,
    gae,
    importance_weights,
    policy_gradient,
    timestep_mean,
    value_loss,
)
from ..functional.losses import Equation
from ..types import Batch, Settings
from .across_ranks import sum_over_ranks
from .estimates_in_c import recursion_in_c


def mean_over_ranks(x: Tensor, alive: Tensor) -> Tensor:
    """`timestep_mean` over the environments of all ranks."""
    return timestep_mean(x, alive, sum_over_ranks)


def minibatches(batch: Batch, count: int, order: Tensor) -> Iterable[Batch]:
    """Return `count` disjoint minibatches for each row of `order`, a permutation of the batch's rows."""
    return batch.minibatches(count, order)


@dataclass(frozen=True, kw_only=True)
class Functions:
    """What an algorithm computes with. The setting `replaceable` of its config names those that it uses."""

    discounted_returns: Equation = discounted_returns
    timestep_mean: Equation = mean_over_ranks
    importance_weights: Equation = importance_weights
    policy_gradient: Equation = policy_gradient
    gae: Equation = gae
    clipped_surrogate: Equation = clipped_surrogate
    value_loss: Equation = value_loss
    entropy_bonus: Equation = entropy_bonus
    minibatches: Callable[[Batch, int, Tensor], Iterable[Batch]] = minibatches
    collect: Equation | None = None  # (env, policy, rollout, obs, noise) to the last observations; None: the runtime's
    phase: Callable[..., tuple[object, ...]] | None = None  # (state, config, noise) to metrics; None: the algorithm's

    def in_c(self) -> Functions:
        """The record with C functions for the sums backward in time, which have the same results."""
        here: Settings = {"gae": gae, "discounted_returns": discounted_returns}
        kept = {name: f for name, f in here.items() if getattr(self, name) is f}
        return self.with_own(
            {name: update_wrapper(partial(f, recursion=recursion_in_c), f) for name, f in kept.items()}
        )

    def with_own(self, own: Mapping[str, Callable[..., object]]) -> Functions:
        """The record with these functions in place of others, by name."""
        given: Settings = dict(own)
        return replace(self, **given)
