"""What common mistakes compute in place of an equation. A result that equals one of these is explained by its words."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Wrong = Callable[..., Tensor]


# baselines: (x, alive) ----------------------------------------------------------------------------------------------------

BASELINES: dict[str, Wrong] = {
    "it counts environments whose episode has ended: divide by the number alive, not by N": lambda x, alive: (
        x * alive
    ).mean(1, keepdim=True),
    "padding is in it: multiply by alive before the sum": lambda x, alive: (
        x.sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
    ),
    "the mask is not used: only environments that are alive count": lambda x, alive: x.mean(1, keepdim=True),
    "it is one number for all steps: take the mean over environments, for each step": lambda x, alive: (
        (x * alive).sum() / alive.sum()
    ).expand(len(x), 1),
    "it is the sum, not the mean": lambda x, alive: (x * alive).sum(1, keepdim=True),
}

# importance weights: (log_prob, old_log_prob, clamp) ------------------------------------------------------------------------


def within(x: Tensor, clamp: float | None) -> Tensor:
    return x if clamp is None else x.clamp(1 - clamp, 1 + clamp)


WEIGHTS: dict[str, Wrong] = {
    "the weight is upside down: it is pi / pi_old, exp(log_prob - old_log_prob)": lambda p, q, c: within(
        (q - p).exp(), c
    ),
    "the exponential is missing: this is log pi - log pi_old": lambda p, q, c: within(p - q, c),
    "this is a quotient of logarithms: subtract them, then take the exponential": lambda p, q, c: within(p / q, c),
    "it is pi alone: divide by pi_old": lambda p, q, c: within(p.exp(), c),
    "it is not clamped to [1 - clamp, 1 + clamp]": lambda p, q, c: (p - q).exp(),
    "it is clamped to [-clamp, clamp]: the interval lies around 1": lambda p, q, c: (
        (p - q).exp() if c is None else (p - q).exp().clamp(-c, c)
    ),
    "only large weights are clamped: clamp small ones too": lambda p, q, c: (
        (p - q).exp() if c is None else (p - q).exp().clamp(max=1 + c)
    ),
}

# REINFORCE: (log_prob, advantage, weight, mask) ----------------------------------------------------------------------------


def mean_where(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / mask.sum().clamp(min=1)


GRADIENT: dict[str, Wrong] = {
    "the sign is turned: this is a loss, and the objective is to be maximised": lambda p, a, w, m: (
        -mean_where(w * p * a, m)
    ),
    "padding is in it: take the mean over the steps in the mask": lambda p, a, w, m: (w * p * a).mean(),
    "it divides by all steps: divide by the number in the mask": lambda p, a, w, m: (w * p * a * m).mean(),
    "it is the sum: take the mean": lambda p, a, w, m: (w * p * a * m).sum(),
    "the weight is not used": lambda p, a, w, m: mean_where(p * a, m),
    "the advantage is not used: every action becomes more likely": lambda p, a, w, m: mean_where(w * p, m),
    "it holds probabilities: use their logarithms": lambda p, a, w, m: mean_where(w * p.exp() * a, m),
}

# PPO's losses: (log_prob, old_log_prob, advantage, clip_coef), (value, target), (entropy) ------------------------------------


def lesser(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)


SURROGATE: dict[str, Wrong] = {
    "the ratio is upside down: it is pi / pi_old, exp(log_prob - old_log_prob)": lambda p, q, a, c: lesser(
        (q - p).exp(), a, 1 - c, 1 + c
    ).mean(),
    "the ratio is not clipped": lambda p, q, a, c: ((p - q).exp() * a).mean(),
    "it takes the larger of the two products: take the smaller, the minimum": lambda p, q, a, c: torch.max(
        (p - q).exp() * a, (p - q).exp().clamp(1 - c, 1 + c) * a
    ).mean(),
    "only the clipped ratio counts: take the smaller of the two products": lambda p, q, a, c: (
        (p - q).exp().clamp(1 - c, 1 + c) * a
    ).mean(),
    "the ratio is clipped on one side only": lambda p, q, a, c: lesser((p - q).exp(), a, 0.0, 1 + c).mean(),
    "the ratio is clipped from 1 on: the interval is [1 - clip, 1 + clip]": lambda p, q, a, c: lesser(
        (p - q).exp(), a, 1.0, 1 + c
    ).mean(),
    "the ratio is clipped to [-clip, clip]: the interval lies around 1": lambda p, q, a, c: lesser(
        (p - q).exp(), a, -c, c
    ).mean(),
    "the minimum is taken before the product with the advantage: multiply first": lambda p, q, a, c: (
        torch.min((p - q).exp(), (p - q).exp().clamp(1 - c, 1 + c)) * a
    ).mean(),
    "the ratio is a difference of logarithms: take its exponential": lambda p, q, a, c: lesser(
        p - q, a, 1 - c, 1 + c
    ).mean(),
    "this is REINFORCE, without a ratio: the old log-probability does not count": lambda p, q, a, c: (p * a).mean(),
    "the sign is turned: this is a loss, and the surrogate is to be maximised": lambda p, q, a, c: (
        -lesser((p - q).exp(), a, 1 - c, 1 + c).mean()
    ),
    "it is the sum: take the mean": lambda p, q, a, c: lesser((p - q).exp(), a, 1 - c, 1 + c).sum(),
}
VALUE: dict[str, Wrong] = {
    "the factor 1/2 is missing": lambda v, t: (v - t).square().mean(),
    "a coefficient is in it besides 1/2: the loss multiplies by vf_coef": lambda v, t: 0.25 * (v - t).square().mean(),
    "it is the sum: take the mean": lambda v, t: 0.5 * (v - t).square().sum(),
    "the error is not squared": lambda v, t: 0.5 * (v - t).mean(),
    "it is the absolute error: square it": lambda v, t: (v - t).abs().mean(),
    "half the absolute error: square it": lambda v, t: 0.5 * (v - t).abs().mean(),
    "the sign is turned: this is to be minimised": lambda v, t: -0.5 * (v - t).square().mean(),
    "the mean is squared: square first, then take the mean": lambda v, t: 0.5 * (v - t).mean().square(),
}
BONUS: dict[str, Wrong] = {
    "the sign is turned: the bonus is to be maximised": lambda e: -e.mean(),
    "it is the sum: take the mean": lambda e: e.sum(),
    "a coefficient is in it: the loss multiplies the mean by ent_coef": lambda e: 0.01 * e.mean(),
}
ENTROPY: dict[str, Wrong] = {
    "the sign is turned: entropy is not negative, -sum of p log p": lambda x: (x.softmax(-1) * x.log_softmax(-1)).sum(
        -1
    ),
    "it is the mean over actions: take the sum": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).mean(-1),
    "logits are not probabilities: apply softmax": lambda x: -(x * x.exp()).sum(-1),
    "logits are not log-probabilities: apply log_softmax": lambda x: -(x.softmax(-1) * x).sum(-1),
    "it is the mean of -log p: weight each action by its probability": lambda x: -x.log_softmax(-1).mean(-1),
    "the logarithm is to base 2: take the natural one": lambda x: -(x.softmax(-1) * x.softmax(-1).log2()).sum(-1),
    "softmax runs over the batch: it belongs to the last axis": lambda x: -(x.softmax(0) * x.log_softmax(0)).sum(-1),
}
