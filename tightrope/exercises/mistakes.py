"""What common mistakes compute in place of an equation. A result that equals one of these is explained by its words."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Wrong = Callable[..., Tensor]


# baselines: (x, alive) ----------------------------------------------------------------------------------------------------

BASELINES: dict[str, Wrong] = {
    "it counts environments whose episode has ended: divide by the number alive, not by N":
        lambda x, alive: (x * alive).mean(1, keepdim=True),
    "padding is in it: multiply by alive before the sum":
        lambda x, alive: x.sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1),
    "the mask is not used: only environments that are alive count": lambda x, alive: x.mean(1, keepdim=True),
    "it is one number for all steps: take the mean over environments, for each step":
        lambda x, alive: ((x * alive).sum() / alive.sum()).expand(len(x), 1),
    "it is the sum, not the mean": lambda x, alive: (x * alive).sum(1, keepdim=True),
}  # fmt: skip

# importance weights: (log_prob, old_log_prob, clamp) ------------------------------------------------------------------------


def within(x: Tensor, clamp: float | None) -> Tensor:
    return x if clamp is None else x.clamp(1 - clamp, 1 + clamp)


WEIGHTS: dict[str, Wrong] = {
    "the weight is upside down: it is pi / pi_old, exp(log_prob - old_log_prob)":
        lambda p, q, c: within((q - p).exp(), c),
    "the exponential is missing: this is log pi - log pi_old": lambda p, q, c: within(p - q, c),
    "this is a quotient of logarithms: subtract them, then take the exponential":
        lambda p, q, c: within(p / q, c),
    "it is pi alone: divide by pi_old": lambda p, q, c: within(p.exp(), c),
    "it is not clamped to [1 - clamp, 1 + clamp]": lambda p, q, c: (p - q).exp(),
    "it is clamped to [-clamp, clamp]: the interval lies around 1":
        lambda p, q, c: (p - q).exp() if c is None else (p - q).exp().clamp(-c, c),
    "only large weights are clamped: clamp small ones too":
        lambda p, q, c: (p - q).exp() if c is None else (p - q).exp().clamp(max=1 + c),
}  # fmt: skip

# REINFORCE: (log_prob, advantage, weight, mask) ----------------------------------------------------------------------------


def mean_where(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / mask.sum().clamp(min=1)


GRADIENT: dict[str, Wrong] = {
    "the sign is turned: this is a loss, and the objective is to be maximised":
        lambda p, a, w, m: -mean_where(w * p * a, m),
    "padding is in it: take the mean over the steps in the mask": lambda p, a, w, m: (w * p * a).mean(),
    "it divides by all steps: divide by the number in the mask": lambda p, a, w, m: (w * p * a * m).mean(),
    "it is the sum: take the mean": lambda p, a, w, m: (w * p * a * m).sum(),
    "the weight is not used": lambda p, a, w, m: mean_where(p * a, m),
    "the advantage is not used: every action becomes more likely": lambda p, a, w, m: mean_where(w * p, m),
    "it holds probabilities: use their logarithms": lambda p, a, w, m: mean_where(w * p.exp() * a, m),
}  # fmt: skip

# PPO's losses: (log_prob, old_log_prob, advantage, clip_coef), (value, target), (entropy) ------------------------------------


def lesser(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)


SURROGATE: dict[str, Wrong] = {
    "the ratio is upside down: it is pi / pi_old, exp(log_prob - old_log_prob)":
        lambda p, q, a, c: lesser((q - p).exp(), a, 1 - c, 1 + c).mean(),
    "the ratio is not clipped": lambda p, q, a, c: ((p - q).exp() * a).mean(),
    "it takes the larger of the two products: take the smaller, the minimum":
        lambda p, q, a, c: torch.max((p - q).exp() * a, (p - q).exp().clamp(1 - c, 1 + c) * a).mean(),
    "only the clipped ratio counts: take the smaller of the two products":
        lambda p, q, a, c: ((p - q).exp().clamp(1 - c, 1 + c) * a).mean(),
    "the ratio is clipped on one side only": lambda p, q, a, c: lesser((p - q).exp(), a, 0.0, 1 + c).mean(),
    "the ratio is clipped from 1 on: the interval is [1 - clip, 1 + clip]":
        lambda p, q, a, c: lesser((p - q).exp(), a, 1.0, 1 + c).mean(),
    "the ratio is clipped to [-clip, clip]: the interval lies around 1":
        lambda p, q, a, c: lesser((p - q).exp(), a, -c, c).mean(),
    "the minimum is taken before the product with the advantage: multiply first":
        lambda p, q, a, c: (torch.min((p - q).exp(), (p - q).exp().clamp(1 - c, 1 + c)) * a).mean(),
    "the ratio is a difference of logarithms: take its exponential":
        lambda p, q, a, c: lesser(p - q, a, 1 - c, 1 + c).mean(),
    "this is REINFORCE, without a ratio: the old log-probability does not count":
        lambda p, q, a, c: (p * a).mean(),
    "the sign is turned: this is a loss, and the surrogate is to be maximised":
        lambda p, q, a, c: -lesser((p - q).exp(), a, 1 - c, 1 + c).mean(),
    "it is the sum: take the mean": lambda p, q, a, c: lesser((p - q).exp(), a, 1 - c, 1 + c).sum(),
}  # fmt: skip
VALUE: dict[str, Wrong] = {
    "the factor 1/2 is missing": lambda v, t: (v - t).square().mean(),
    "a coefficient is in it besides 1/2: the loss multiplies by vf_coef":
        lambda v, t: 0.25 * (v - t).square().mean(),
    "it is the sum: take the mean": lambda v, t: 0.5 * (v - t).square().sum(),
    "the error is not squared": lambda v, t: 0.5 * (v - t).mean(),
    "it is the absolute error: square it": lambda v, t: (v - t).abs().mean(),
    "half the absolute error: square it": lambda v, t: 0.5 * (v - t).abs().mean(),
    "the sign is turned: this is to be minimised": lambda v, t: -0.5 * (v - t).square().mean(),
    "the mean is squared: square first, then take the mean": lambda v, t: 0.5 * (v - t).mean().square(),
}  # fmt: skip
BONUS: dict[str, Wrong] = {
    "the sign is turned: the bonus is to be maximised": lambda e: -e.mean(),
    "it is the sum: take the mean": lambda e: e.sum(),
    "a coefficient is in it: the loss multiplies the mean by ent_coef": lambda e: 0.01 * e.mean(),
}  # fmt: skip
ENTROPY: dict[str, Wrong] = {
    "the sign is turned: entropy is not negative, -sum of p log p":
        lambda x: (x.softmax(-1) * x.log_softmax(-1)).sum(-1),
    "it is the mean over actions: take the sum": lambda x: -(x.softmax(-1) * x.log_softmax(-1)).mean(-1),
    "logits are not probabilities: apply softmax": lambda x: -(x * x.exp()).sum(-1),
    "logits are not log-probabilities: apply log_softmax": lambda x: -(x.softmax(-1) * x).sum(-1),
    "it is the mean of -log p: weight each action by its probability": lambda x: -x.log_softmax(-1).mean(-1),
    "the logarithm is to base 2: take the natural one":
        lambda x: -(x.softmax(-1) * x.softmax(-1).log2()).sum(-1),
    "softmax runs over the batch: it belongs to the last axis":
        lambda x: -(x.softmax(0) * x.log_softmax(0)).sum(-1),
}  # fmt: skip

# over time: sums that run backwards --------------------------------------------------------------------------------------


def backward_sum(x: Tensor, decay: Tensor | float, keeps: Tensor) -> Tensor:
    """y_t = x_t + decay y_{t+1} where `keeps`, and x_t elsewhere."""
    found, running = torch.zeros_like(x), torch.zeros_like(x[0])
    for t in reversed(range(len(x))):
        running = x[t] + decay * keeps[t] * running
        found[t] = running
    return found


def forward_sum(x: Tensor, decay: float, keeps: Tensor) -> Tensor:
    """The same from the first step on."""
    return backward_sum(x.flip(0), decay, torch.cat([torch.zeros_like(keeps[:1]), keeps[:-1]]).flip(0)).flip(0)


def after(x: Tensor, last: Tensor) -> Tensor:
    """The rows of the following step, and `last` after the last one."""
    return torch.cat([x[1:], last[None]])


def with_last(done: Tensor) -> Tensor:
    return torch.cat([done[:-1], torch.ones_like(done[:1])])


# returns: (reward, terminated, done, next_value, gamma) -------------------------------------------------------------------


def bootstrapped(reward: Tensor, terminated: Tensor, done: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """The rewards plus what follows where the sum is cut."""
    return reward + gamma * next_value * (with_last(done) & ~terminated)


def right_returns(reward: Tensor, terminated: Tensor, done: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """The right ones."""
    return backward_sum(bootstrapped(reward, terminated, done, next_value, gamma), gamma, ~with_last(done))


def looped(reward: Tensor, stops: Tensor, cuts: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """Returns by a loop that begins with the last next_value, and in which these masks stand for terminated and done."""
    found, following = torch.zeros_like(reward), next_value[-1]
    for t in reversed(range(len(reward))):
        following = torch.where(cuts[t], next_value[t] * ~stops[t], following)
        found[t] = following = reward[t] + gamma * following
    return found


def without_last_reward(
    reward: Tensor, terminated: Tensor, done: Tensor, next_value: Tensor, gamma: float, last: Tensor
) -> Tensor:
    """Returns by a loop that begins one step before the last, with `last` as the last row."""
    x = bootstrapped(reward, terminated, done, next_value, gamma)
    return backward_sum(torch.cat([x[:-1], last[None]]), gamma, ~with_last(done))


def held_from_the_start(right: Tensor, done: Tensor) -> Tensor:
    """In each row the return of the first step of the episode."""
    found = right.clone()
    for t in range(1, len(found)):
        found[t] = torch.where(done[t - 1], right[t], found[t - 1])
    return found


RETURNS: dict[str, Wrong] = {
    "it is the reward alone, without the rewards that follow": lambda r, e, d, v, g: r,
    "rewards are not discounted: gamma is missing":
        lambda r, e, d, v, g: backward_sum(r + v * (with_last(d) & ~e), 1.0, ~with_last(d)),
    "rewards are not discounted: gamma is missing, except before next_value":
        lambda r, e, d, v, g: backward_sum(bootstrapped(r, e, d, v, g), 1.0, ~with_last(d)),
    "episode ends are ignored: rewards of the next episode leak in, cut the sum where done":
        lambda r, e, d, v, g: backward_sum(bootstrapped(r, e, with_last(d & False), v, g), g, ~with_last(d & False)),
    "time limits do not cut the sum: cut it where done, not where terminated":
        lambda r, e, d, v, g: backward_sum(bootstrapped(r, e, with_last(e), v, g), g, ~with_last(e)),
    "a time limit counts as the end of the task: add gamma next_value where done and not terminated":
        lambda r, e, d, v, g: backward_sum(r + g * v * torch.cat([d[:-1] & False, ~d[-1:]]), g, ~with_last(d)),
    "what follows the last row is missing: the sum is cut there too, so add gamma next_value":
        lambda r, e, d, v, g: backward_sum(r + g * v * (d & ~e), g, ~with_last(d)),
    "next_value is never used: add gamma times it where the sum is cut but the task has not ended":
        lambda r, e, d, v, g: backward_sum(r, g, ~with_last(d)),
    "next_value is added after the task has ended: only where not terminated":
        lambda r, e, d, v, g: backward_sum(r + g * v * with_last(d), g, ~with_last(d)),
    "next_value is not discounted: multiply it by gamma":
        lambda r, e, d, v, g: backward_sum(r + v * (with_last(d) & ~e), g, ~with_last(d)),
    "next_value is added at every step: only where the sum is cut":
        lambda r, e, d, v, g: backward_sum(r + g * v * ~e, g, ~with_last(d)),
    "off by one: the reward of step t itself is left out, G_t = r_t + gamma G_{t+1}":
        lambda r, e, d, v, g: right_returns(r, e, d, v, g) - r,
    "off by one: what follows step t is stored, before gamma and reward[t] are in it":
        lambda r, e, d, v, g: (right_returns(r, e, d, v, g) - r) / g,
    "off by one: the sum is stored before step t is added to it":
        lambda r, e, d, v, g: after(right_returns(r, e, d, v, g), v[-1]),
    "the rewards that follow are missing: next_value stands in for them, even after the end":
        lambda r, e, d, v, g: r + g * v,
    "the rewards that follow are missing: next_value stands in for them at every step":
        lambda r, e, d, v, g: r + g * v * ~e,
    "every row holds the return of its whole episode: that of step t begins at step t":
        lambda r, e, d, v, g: held_from_the_start(right_returns(r, e, d, v, g), d),
    "the axes are swapped: axis 0 is time, axis 1 the environments":
        lambda r, e, d, v, g: right_returns(r.t(), e.t(), d.t(), v.t(), g).t(),
    "off by one: the sum is cut by done[t-1] and terminated[t-1], where those of step t belong":
        lambda r, e, d, v, g: looped(r, e.roll(1, 0), d.roll(1, 0), v, g),
    "off by one: the sum is cut by done[t-1], where done[t] belongs":
        lambda r, e, d, v, g: looped(r, e, d.roll(1, 0), v, g),
    "off by one: the sum is cut by done[t+1] and terminated[t+1], where those of step t belong":
        lambda r, e, d, v, g: looped(r, after(e, e[-1]), after(d, d[-1]), v, g),
    "the last step's own reward is missing, its row is next_value: begin the loop there":
        lambda r, e, d, v, g: without_last_reward(r, e, d, v, g, v[-1]),
    "the last step's own reward is missing, its row is gamma next_value: begin the loop there":
        lambda r, e, d, v, g: without_last_reward(r, e, d, v, g, g * v[-1]),
    "the last step's own reward is missing, its row is left at 0: begin the loop there":
        lambda r, e, d, v, g: without_last_reward(r, e, d, v, g, 0 * v[-1]),
    "the last row is left out: begin the loop there, not one step earlier":
        lambda r, e, d, v, g: without_last_reward(r, e, d, v, g, v[-1]) * (torch.arange(len(r)) < len(r) - 1)[:, None],
    "it looks back, not ahead: begin at the last step and go backwards":
        lambda r, e, d, v, g: forward_sum(r, g, ~d),
    "the sign is turned": lambda r, e, d, v, g: -right_returns(r, e, d, v, g),
}  # fmt: skip

# GAE: (reward, value, next_value, terminated, done, gamma, gae_lambda) --------------------------------------------------------


def traced(r: Tensor, v: Tensor, n: Tensor, stops: Tensor, cuts: Tensor, g: float, decay: float) -> Tensor:
    """Deltas that bootstrap unless `stops`, summed with a decay until `cuts`."""
    return backward_sum(r + g * n * ~stops - v, decay, ~cuts)


def sooner(done: Tensor) -> Tensor:
    """Ends marked a step too early."""
    return torch.cat([done[1:], torch.ones_like(done[:1])])


GAE: dict[str, Wrong] = {
    "a time limit counts as the end of the task: only terminated stops the bootstrap":
        lambda r, v, n, e, d, g, y: traced(r, v, n, d, d, g, g * y),
    "resets are ignored, episode ends do not cut the trace: the next episode leaks in":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, d & False, g, g * y),
    "time limits do not cut the trace: cut it where done, not where terminated":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, e, g, g * y),
    "they bootstrap after the task has ended: multiply next_value by ~terminated":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e & False, d, g, g * y),
    "off by one: the value in delta is V(s_t) twice, where V(s_{t+1}) belongs":
        lambda r, v, n, e, d, g, y: traced(r, v, v, e, d, g, g * y),
    "after a time limit they bootstrap from the reset observation: use next_value, not value":
        lambda r, v, n, e, d, g, y: traced(r, v, torch.cat([v[1:], n[-1:]]), e, d, g, g * y),
    "the value after the last step is missing: use next_value":
        lambda r, v, n, e, d, g, y: traced(r, v, torch.cat([v[1:], torch.zeros_like(n[-1:])]), e, d, g, g * y),
    "off by one: the trace is cut one step too early":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, sooner(d), g, g * y),
    "gamma is missing in delta": lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, 1.0, g * y),
    "lambda is missing: the trace decays by gamma alone":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, g),
    "gamma is missing in the decay of the trace: it is gamma lambda":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, y),
    "the trace does not decay: multiply by gamma lambda":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, 1.0),
    "there is no trace: only the first delta counts": lambda r, v, n, e, d, g, y: r + g * n * ~e - v,
    "the value is not subtracted: this is the value target, advantage + value":
        lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, g * y) + v,
    "the value is missing in delta: delta = r + gamma V(s_{t+1}) - V(s_t)":
        lambda r, v, n, e, d, g, y: traced(r, v * 0, n, e, d, g, g * y),
    "the bootstrap is missing in delta: delta = r + gamma V(s_{t+1}) - V(s_t)":
        lambda r, v, n, e, d, g, y: traced(r, v, n * 0, e, d, g, g * y),
    "the sum runs forwards: begin at the last step and go backwards":
        lambda r, v, n, e, d, g, y: forward_sum(r + g * n * ~e - v, g * y, ~d),
    "the sign is turned: delta = r + gamma V(s_{t+1}) - V(s_t)":
        lambda r, v, n, e, d, g, y: -traced(r, v, n, e, d, g, g * y),
}  # fmt: skip
