"""Statistics over all ranks. With one process they are the plain computation."""

import torch
from torch import Tensor


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation (0 for a single number)."""
    std, mean = torch.std_mean(x, correction=min(1, x.numel() - 1))
    return mean, std


def masked_moments(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The same, over the entries where the mask is True."""
    count = mask.sum()
    mean = (x * mask).sum() / count.clamp(min=1)
    variance = ((x - mean).square() * mask).sum() / (count - 1).clamp(min=1)
    return mean, variance.sqrt()
