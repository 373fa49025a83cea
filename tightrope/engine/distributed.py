"""Statistics over all ranks. With one process they are the plain computation."""

import math

import numpy as np
import torch
from torch import Tensor

from ..functional import standardize
from . import kernels
from .accelerate import compilable, compiling, kernels_wanted
from .device import reads_are_free
from .kernels import has_device

STD_EPS = 1e-8  # that of `standardize`


def standardized(x: Tensor) -> Tensor:
    """x with mean 0 and standard deviation 1."""
    if kernels_wanted() is not None and has_device(x.device):
        return kernels.standardized(x)
    if reads_are_free(x.device) and not compiling():
        return standardized_on_host(x)
    return plainly_standardized(x)


@np.errstate(all="ignore")  # what is not finite is reported once a phase
def standardized_on_host(x: Tensor) -> Tensor:
    """The same over an array, whose calls cost less."""
    array = x.numpy()
    centred = array - float(np.add.reduce(array, None)) / array.size
    std = math.sqrt(float(np.vdot(centred, centred)) / max(array.size - 1, 1))
    centred /= std + STD_EPS
    return torch.from_numpy(centred)


@compilable()
def plainly_standardized(x: Tensor) -> Tensor:
    return standardize(x, *moments(x))


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
