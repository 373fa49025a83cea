"""Stateless distributions over actions. Sampling is a deterministic function of noise drawn elsewhere, so the same
noise gives the same actions in eager, compiled and captured code. Tested against torch.distributions.

Every quantity is summed over action dimensions: log_prob, entropy and kl have the batch's shape. `entropy` takes the actions
taken, which matter only to `Hybrid` (models/hybrid.py): there some parts are not used by every action.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)
FEW = 8  # actions: up to this number `sample` adds probabilities without a scan
RULED_OUT = -1e9  # a finite logit whose probability is exactly 0, so that 0 log 0 is 0


def masked_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits (..., n) that give forbidden options probability 0, exactly. They are NaN if a mask allows nothing, which the
    guard of training reports; nothing is read on the host."""
    allowed = mask > 0.5
    return logits.masked_fill(~allowed, RULED_OUT) + 0.0 / allowed.float().sum(-1, keepdim=True)


class Categorical(NamedTuple):
    """One of n actions, from unnormalised log-probabilities."""

    logits: Tensor  # (..., n)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return the noise for `sample`: one uniform number per action."""
        return torch.rand(shape, generator=generator, device=generator.device)

    def sample(self, noise: Tensor) -> Tensor:
        """Sample by inversion: return the first action whose cumulative probability exceeds the noise."""
        probs = self.logits.softmax(-1)
        if probs.shape[-1] <= FEW:  # the same sums without cumsum, which is slow on a GPU
            *below, total = itertools.accumulate(probs.unbind(-1))
            threshold = noise * total  # rounding can make the total differ from 1
            return sum((c <= threshold for c in below), torch.zeros_like(noise, dtype=torch.int64))
        cumulative = probs.cumsum(-1)
        threshold = (noise * cumulative[..., -1]).unsqueeze(-1)
        action = (cumulative[..., :-1] <= threshold).sum(-1)
        # sums of a parallel scan may differ where a probability is 0: such an action is never taken
        possible = probs.gather(-1, action.unsqueeze(-1)).squeeze(-1) > 0
        return torch.where(possible, action, probs.argmax(-1))

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, action: Tensor | None = None) -> Tensor:
        log_prob = self.logits.log_softmax(-1)
        return -(log_prob.exp() * log_prob).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other)."""
        log_prob = self.logits.log_softmax(-1)
        return (log_prob.exp() * (log_prob - other.logits.log_softmax(-1))).sum(-1)

    @property
    def probs(self) -> Tensor:
        return self.logits.softmax(-1)


class MultiCategorical(Categorical):
    """K independent categorical choices, logits (..., K, most), `most` being the largest number of options. Logits of missing
    options are RULED_OUT. The noise is one uniform number per choice."""

    def log_prob(self, action: Tensor) -> Tensor:
        return super().log_prob(action).sum(-1)

    def entropy(self, action: Tensor | None = None) -> Tensor:
        return super().entropy().sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other)."""
        return super().kl(other).sum(-1)


class Gaussian(NamedTuple):
    """Independent normals, one per action dimension."""

    mean: Tensor  # (..., A)
    log_std: Tensor  # (..., A) or (A,)

    @staticmethod
    def noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return the noise for `sample`: one standard normal number per action dimension."""
        return torch.randn(shape, generator=generator, device=generator.device)

    def sample(self, noise: Tensor) -> Tensor:
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mean) * (-self.log_std).exp()
        return (-0.5 * (z.square() + LOG_2PI) - self.log_std).sum(-1)

    def entropy(self, action: Tensor | None = None) -> Tensor:
        return (self.log_std + 0.5 * (1 + LOG_2PI)).expand_as(self.mean).sum(-1)

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other)."""
        ratio = (2 * (self.log_std - other.log_std)).exp()
        shift = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        return (0.5 * (ratio + shift - 1) - (self.log_std - other.log_std)).sum(-1)
