"""Running mean and variance as part of the model: saved with it, constant in evaluation, updated once per phase."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP, EPS = 10.0, 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of all data so far, exact for any split into batches (Chan et al. 1983)."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def merge(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch (B, *shape), or only its rows where the mask (B,) is True."""
        self.add(*moments_of(x, mask))

    @torch.no_grad()
    def add(self, rows: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Add `rows` rows with this mean and variance."""
        total = self.count + rows
        share = (rows / total.clamp(min=1)).to(mean.dtype)
        delta = mean - self.mean
        self.variance.copy_((1 - share) * self.variance + share * variance + share * (1 - share) * delta.square())
        self.mean.add_(share * delta)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        return (self.variance + EPS).sqrt()


@torch.no_grad()
def moments_of(x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return number, mean and variance of a batch's rows, or only of those where the mask is True."""
    if mask is None:
        mask = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    counts = mask.view(-1, *(1 for _ in x.shape[1:]))
    rows = mask.sum()
    mean = torch.where(counts, x, 0.0).sum(0) / rows.clamp(min=1)
    variance = torch.where(counts, (x - mean).square(), 0.0).sum(0) / rows.clamp(min=1)
    return rows, mean, variance


class ObservationNormalizer(RunningMoments):
    """Normalises observations to mean 0 and variance 1, clipped to [-10, 10]. [details 28, 29]

    `real` marks the entries to normalise; the others pass unchanged.
    """

    real: Tensor | None

    def __init__(self, real: Tensor) -> None:
        super().__init__(tuple(real.shape))
        self.register_buffer("real", None if real.all() else real, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        normal = (obs - self.mean).div_(self.std).clamp_(-CLIP, CLIP)
        return normal if self.real is None else torch.where(self.real, normal, obs)


class RewardScaler(RunningMoments):
    """Divides rewards by the standard deviation of the discounted return, and clips to [-10, 10]. [details 30, 31]"""

    def forward(self, reward: Tensor) -> Tensor:
        return (reward / self.std).clamp(-CLIP, CLIP)
