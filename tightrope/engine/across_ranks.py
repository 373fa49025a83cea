"""Computations over all ranks of a run: statistics, long work of rank 0, and a comparison of settings.

A single process computes the same without sending a message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..functional import collected_mask, explained_variance, masked_mean, standardize
from ..models import ActorCritic
from ..models.normalizer import RunningMoments, moments_of
from ..types import Batch
from .distributed import (
    all_gather,
    all_reduce_max,
    all_reduce_sum,
    any_rank,
    broadcast_from_rank0,
    gather_to_rank0,
    world,
)

Scale = tuple[Tensor, Tensor]  # mean, standard deviation


def sum_over_ranks(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return each tensor summed over all ranks, in one message and in the dtype of the first."""
    if not world().is_distributed:
        return parts
    return all_reduce_sum(torch.stack([x.to(parts[0].dtype) for x in parts])).unbind()


def variance(x: Tensor) -> Tensor:
    """Return the population variance over all ranks."""
    return pooled_moments(x.flatten(), None)[2] if world().is_distributed else x.var(correction=0)


@np.errstate(all="ignore")  # the guard reports non-finite numbers once per phase
def standardized_on_host(x: Tensor) -> Tensor:
    """Return x with mean 0 and standard deviation 1. NumPy calls take half the time of torch calls."""
    array = x.numpy()
    mean = float(np.add.reduce(array, None)) / array.size
    centred = array - mean
    std = math.sqrt(float(np.vdot(centred, centred)) / max(array.size - 1, 1))
    return torch.from_numpy(standardize(array, mean, std))


def standardized(x: Tensor) -> Tensor:
    """Return x with mean 0 and standard deviation 1."""
    result: Tensor = standardize(x, *moments(x))
    return result


def moments(x: Tensor, correction: int = 1) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, with Bessel's correction by default (0 for a single number)."""
    if not world().is_distributed:
        std, mean = torch.std_mean(x, correction=min(correction, x.numel() - 1))
        return mean, std
    return with_std(*pooled_moments(x.flatten(), None), correction)


def masked_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (with Bessel's correction) over the entries where the mask is True."""
    if world().is_distributed:
        return with_std(*pooled_moments(x.flatten(), mask.flatten()), correction=1)
    count = mask.sum()
    mean = (x * mask).sum() / count.clamp(min=1)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return mean, variance.sqrt()


def with_std(count: Tensor, mean: Tensor, variance: Tensor, correction: int = 1) -> Scale:
    return mean, (variance * count / (count - correction).clamp(min=1)).sqrt().to(mean.dtype)


def advantage_scales(batch: Batch, count: int, order: Tensor) -> Iterable[Scale | None]:
    """Return for each minibatch of a phase, in order, mean and standard deviation of its advantages over all ranks.

    All of them take one message. A single rank gets None each time and computes them itself.
    """
    if not world().is_distributed:
        return repeat(None)
    shuffled, sizes = batch.advantage[order], batch.sizes(count)
    if len({*sizes}) == 1:
        each = shuffled.flatten(1).view(len(order) * count, -1)
        variance, mean = torch.var_mean(each, 1, correction=0)
        rows = torch.full_like(mean, each.shape[1])
    else:
        pieces = [torch.var_mean(piece, 0, correction=0) for row in shuffled for piece in row.split(sizes)]
        variance, mean = (torch.stack(column) for column in zip(*pieces, strict=True))
        rows = torch.tensor(sizes * len(order), device=mean.device)
    means, stds = with_std(*pooled(all_gather(torch.stack([rows, mean, variance]).double()), mean.dtype))
    return zip(means, stds, strict=True)


def pooled_moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return number, mean and variance of the rows of all ranks, with one message."""
    rows, mean, variance = moments_of(x, mask)
    if not world().is_distributed:
        return rows, mean, variance
    own = torch.stack([rows.expand(mean.shape).double(), mean.double(), variance.double()])
    total, centre, spread = pooled(all_gather(own), x.dtype)
    return total.flatten()[0].to(rows.dtype), centre, spread


def pooled(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Combine number, mean and variance of several groups (groups, 3, ...) exactly (Chan et al. 1983)."""
    counts, means, variances = table.unbind(1)
    total = counts.sum(0)
    share = counts / total.clamp(min=1)
    centre = (share * means).sum(0)
    spread = (share * (variances + (means - centre).square())).sum(0)
    return total, centre.to(dtype), spread.to(dtype)


def merge(statistics: RunningMoments, x: Tensor, mask: Tensor | None = None) -> None:
    """Add the batches (B, ...) of all ranks, or only their rows where the mask is True."""
    statistics.add(*pooled_moments(x, mask))


def update_statistics(policy: ActorCritic, obs: Tensor, mask: Tensor | None = None) -> None:
    """Merge a rollout's observations (T, N, ...) into the policy's normalizer. Call it after learning from the rollout."""
    if policy.normalizer is not None:
        merge(policy.normalizer, policy.observed(obs.flatten(0, 1)), None if mask is None else mask.flatten())


# agreement between ranks ------------------------------------------------------------------------------------------------


def broadcast_after_work(work: Callable[[Callable[[], float]], bytes], value: Callable[[], float]) -> bytes:
    """Call `work` on rank 0 only, where it may take long, and return its result on all ranks.

    `work` is given a function that returns the maximum of `value` over all ranks; the other ranks take part while they wait.
    """
    if not world().is_distributed:
        return work(value)

    def exchange(works: bool) -> tuple[float, float]:
        works_still, most = all_reduce_max(torch.tensor([works, value()], dtype=torch.float64)).tolist()
        return works_still, most

    def make() -> bytes:
        try:
            return work(lambda: exchange(True)[1])
        finally:
            exchange(False)

    while not world().is_rank0 and exchange(False)[0]:
        pass
    return broadcast_from_rank0(make)


def check_same_settings(settings: Mapping[str, object]) -> None:
    """Raise UsageError if ranks have different settings: they would deadlock or diverge."""
    if not world().is_distributed:
        return
    each = [json.loads(words) for words in gather_to_rank0(json.dumps(settings, sort_keys=True, default=str).encode())]

    def make() -> bytes:
        for rank, theirs in enumerate(each):
            for name, value in each[0].items():
                if theirs.get(name) != value:
                    raise UsageError(
                        f"{name} is {value!r} on rank 0 and {theirs.get(name)!r} on rank {rank}: give all ranks the same"
                    )
        return b""

    broadcast_from_rank0(make)


class Statistics:
    """Statistics over all ranks, for a runtime. A single process sends no message."""

    all_reduce_sum = staticmethod(all_reduce_sum)
    all_reduce_max = staticmethod(all_reduce_max)
    any_rank = staticmethod(any_rank)
    moments = staticmethod(moments)
    masked_moments = staticmethod(masked_moments)
    masked_mean = staticmethod(partial(masked_mean, add=sum_over_ranks))
    explained_variance = staticmethod(partial(explained_variance, variance=variance, largest=all_reduce_max))
    advantage_scales = staticmethod(advantage_scales)
    merge = staticmethod(merge)
    update_statistics = staticmethod(update_statistics)

    @staticmethod
    def collected_mask(terminated: Tensor, fraction: float | None) -> Tensor:
        """Mark the steps up to the one at which that fraction of all ranks' environments has terminated. (T, 1)"""
        ranks = world().size if world().is_distributed else 1
        return collected_mask(terminated, fraction, sum_over_ranks, ranks)
