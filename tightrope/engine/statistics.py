"""Statistics over all ranks. With one process they are the plain computation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from .. import functional
from ..functional import standardize
from ..models import ActorCritic
from ..models.normalizer import Moments, moments_of
from ..types import Batch
from .distributed import all_gather, all_reduce_max, all_reduce_sum, world

STD_EPS = 1e-8  # that of `standardize`
Scale = tuple[Tensor, Tensor]  # mean and standard deviation


# of a tensor ---------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")  # what is not finite is reported once a phase
def standardized_on_host(x: Tensor) -> Tensor:
    """x with mean 0 and standard deviation 1, over an array, whose calls cost less."""
    array = x.numpy()
    centred = array - float(np.add.reduce(array, None)) / array.size
    std = math.sqrt(float(np.vdot(centred, centred)) / max(array.size - 1, 1))
    centred /= std + STD_EPS
    return torch.from_numpy(centred)


def standardized(x: Tensor) -> Tensor:
    """x with mean 0 and standard deviation 1."""
    return standardize(x, *moments(x))


def moments(x: Tensor, correction: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, unbiased if not told otherwise (0 for a single number)."""
    if not world().is_distributed:
        std, mean = torch.std_mean(x, correction=min(correction, x.numel() - 1))
        return mean, std
    return with_std(*pooled_moments(x.flatten(), None), correction)


def masked_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation over the entries where the mask is True."""
    if world().is_distributed:
        return with_std(*pooled_moments(x.flatten(), mask.flatten()), correction=1)
    count = mask.sum()
    mean = (x * mask).sum() / count.clamp(min=1)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return mean, variance.sqrt()


def with_std(count: Tensor, mean: Tensor, variance: Tensor, correction: int = 1) -> Scale:
    return mean, (variance * count / (count - correction).clamp(min=1)).sqrt().to(mean.dtype)


def advantage_scales(batch: Batch, count: int, order: Tensor) -> Iterable[Scale | None]:
    """Mean and unbiased standard deviation of the advantages of each minibatch of all ranks, in the order in which they will
    come: one message for a whole phase. Nothing to say where there is one rank, which has them at hand when it needs them."""
    if not world().is_distributed:
        return repeat(None)
    shuffled, sizes = batch.advantage[order], batch.sizes(count)
    if len({*sizes}) == 1:
        variance, mean = torch.var_mean(shuffled.view(-1, sizes[0]), 1, correction=0)
        rows = torch.full_like(mean, sizes[0])
    else:
        pieces = [torch.var_mean(piece, 0, correction=0) for row in shuffled for piece in row.split(sizes)]
        variance, mean = (torch.stack(column) for column in zip(*pieces, strict=True))
        rows = torch.tensor(sizes * len(order), device=mean.device)
    means, stds = with_std(*pooled(all_gather(torch.stack([rows, mean, variance]).double()), mean.dtype))
    return zip(means, stds, strict=True)


def pooled_moments(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and variance of the rows of all ranks, from one message of each."""
    rows, mean, variance = moments_of(x, mask)
    if not world().is_distributed:
        return rows, mean, variance
    own = torch.stack([rows.expand(mean.shape).double(), mean.double(), variance.double()])
    total, centre, spread = pooled(all_gather(own), x.dtype)
    return total.flatten()[0].to(rows.dtype), centre, spread


def pooled(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and variance of several groups together, from theirs (groups, 3, ...), exactly (Chan et al. 1983)."""
    counts, means, variances = table.unbind(1)
    total = counts.sum(0)
    share = counts / total.clamp(min=1)
    centre = (share * means).sum(0)
    spread = (share * (variances + (means - centre).square())).sum(0)
    return total, centre.to(dtype), spread.to(dtype)


def merge(statistics: Moments, x: Tensor, mask: Tensor | None = None) -> None:
    """Add a batch (B, ...), or those of its rows where the mask is True, of every rank."""
    statistics.add(*pooled_moments(x, mask))


def update_statistics(policy: ActorCritic, obs: Tensor, mask: Tensor | None = None) -> None:
    """Merge a rollout's observations (T, N, ...) into the policy's normalizer, once its learning is done."""
    if policy.normalizer is not None:
        merge(policy.normalizer, obs.flatten(0, 1), None if mask is None else mask.flatten())


# of a rollout --------------------------------------------------------------------------------------------------------


def timestep_mean(x: Tensor, alive: Tensor) -> Tensor:
    """Mean over the environments still alive at each time step. (T, 1)"""
    if not world().is_distributed:
        return functional.timestep_mean(x, alive)
    total, count = all_reduce_sum(torch.stack([(x * alive).sum(1), alive.sum(1).to(x.dtype)]))
    return (total / count.clamp(min=1)).unsqueeze(1)


def running_mask(terminated: Tensor, fraction: float | None) -> Tensor:
    """True up to and including the step at which that fraction of all environments has terminated. (T, 1)"""
    if fraction is None or not world().is_distributed:
        return functional.running_mask(terminated, fraction)
    before = functional.deaths_before(terminated)
    return all_reduce_sum(before) < fraction * terminated.shape[1] * world().size


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the entries where the mask is True."""
    if not world().is_distributed:
        return functional.masked_mean(x, mask)
    total, count = all_reduce_sum(torch.stack([torch.where(mask, x, 0.0).sum(), mask.sum().to(x.dtype)]))
    return total / count.clamp(min=1)


def explained_variance(prediction: Tensor, target: Tensor) -> Tensor:
    """How much of the target's variance the prediction explains."""
    if not world().is_distributed:
        return functional.explained_variance(prediction, target)
    _, _, (variance, residual) = pooled_moments(torch.stack([target, target - prediction], -1).flatten(0, -2), None)
    top, bottom = all_reduce_max(torch.stack([target.max(), -target.min()]))
    return torch.where(top > -bottom, 1 - residual / variance, 0.0)
