"""Returns and advantages from rewards, values and the two ways in which an episode can end.

`terminated` decides whether there is a future to bootstrap from; `done` (terminated or truncated) decides where the trace
is cut. They are never merged. Time runs along the first axis, environments along the second.

GAE is Schulman et al. 2016 (arXiv:1506.02438), eq. 16, with one departure: the value of a truncated step's successor is
that of the final observation before the reset, where the paper has no time limits.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

LONG, NARROW = 32, 256  # backward_recursion uses the doubling scheme from 32 steps on, for at most 256 environments
Reduce = Callable[..., tuple[Tensor, ...]]  # (tensors) to their sums over all ranks
Recursion = Callable[[Tensor, Tensor], Tensor]  # `backward_recursion`, or a function with the same results


def no_reduce(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return the sums over a single rank: the tensors themselves."""
    return parts


def backward_recursion(x: Tensor, decay: Tensor) -> Tensor:
    """Return y_t = x_t + decay_t y_{t+1}, from the last row to the first, with y = 0 after the last row.

    With few environments the number of calls takes the time. A doubling scheme then needs only log2(T) calls: substituting
    y_t = a_t + d_t y_{t+s} into itself gives the same form with 2 s instead of s.
    """
    length, width = x.shape
    if length < LONG or width > NARROW:
        y = torch.empty_like(x)
        running = torch.zeros_like(x[0])
        for t in reversed(range(length)):
            running = torch.addcmul(x[t], decay[t], running, out=y[t])
        return y
    y, decay, stride = x.clone(), decay.clone(), 1
    while stride < length:
        y[:-stride] = torch.addcmul(y[:-stride], decay[:-stride], y[stride:])
        decay[:-stride] = decay[:-stride] * decay[stride:]
        stride *= 2
    return y


def successor_values(
    value: Float[Tensor, "T N"],
    last_value: Float[Tensor, "N"],
    done: Bool[Tensor, "T N"],
    final_value: Float[Tensor, "T N"],
) -> Float[Tensor, "T N"]:
    """Return V(s_{t+1}) for every step: the value in the next row, but the value of the final observation where an episode
    ended, and in the last row `last_value`, the value of the observation after the rollout."""
    following = torch.cat([value[1:], last_value[None]])
    return torch.where(done, final_value, following)


def gae(
    reward: Float[Tensor, "T N"],
    value: Float[Tensor, "T N"],
    next_value: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    done: Bool[Tensor, "T N"],
    gamma: float,
    gae_lambda: float,
    recursion: Recursion = backward_recursion,
) -> Float[Tensor, "T N"]:
    """Return generalised advantage estimates. `next_value` comes from `successor_values`."""
    delta = reward + gamma * next_value * ~terminated - value  # eq. 12
    decay = gamma * gae_lambda * (~done).to(delta.dtype)
    return recursion(delta, decay)  # eq. 16


def discounted_returns(
    reward: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    done: Bool[Tensor, "T N"],
    next_value: Float[Tensor, "T N"],
    gamma: float,
    recursion: Recursion = backward_recursion,
) -> Float[Tensor, "T N"]:
    """Return G_t = r_t + gamma G_{t+1} within each episode. Where an episode is truncated, and in the last row, G_{t+1} is
    `next_value` (0 without a critic: the reward-to-go up to that step)."""
    cut = done.clone()
    cut[-1] = True
    return recursion(reward + gamma * next_value * (cut & ~terminated), gamma * (~cut).to(reward.dtype))


def running_returns(
    reward: Float[Tensor, "T N"], done: Bool[Tensor, "T N"], start: Float[Tensor, "N"], gamma: float
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "N"]]:
    """Return R_t = r_t + gamma R_{t-1} within each episode, starting from `start`, and the `start` of the next rollout.
    Reward normalisation divides by the standard deviation of R. [detail 30]"""
    first = reward[:1] + gamma * start
    decay = gamma * (~done[:-1]).to(reward.dtype)
    backwards = torch.cat([first, reward[1:]]).flip(0), torch.cat([decay.flip(0), torch.zeros_like(first)])
    y = backward_recursion(*backwards).flip(0)
    return y, y[-1] * ~done[-1]


def alive_mask(done: Bool[Tensor, "T N"]) -> Bool[Tensor, "T N"]:
    """Mark the steps of the first episode in each column, including its last step."""
    ended_before = torch.cumsum(done, 0) - done.long()
    return ended_before == 0


def collected_mask(
    terminated: Bool[Tensor, "T N"], fraction: float | None, add: Reduce = no_reduce, ranks: int = 1
) -> Bool[Tensor, "T 1"]:
    """Mark the steps up to the one at which that fraction of the columns has terminated, and all steps if it is None."""
    if fraction is None:
        return torch.ones_like(terminated[:, :1])
    before = (torch.cumsum(terminated, 0) - terminated.long()).clamp(max=1)  # 1 if the column terminated earlier
    (dead,) = add(before.sum(1, keepdim=True))
    return dead < fraction * terminated.shape[1] * ranks


def last_row(mask: Bool[Tensor, "T 1"]) -> Bool[Tensor, "T 1"]:
    """Mark the last True row of a mask that starts with True and turns False once."""
    following = torch.cat([mask[1:], torch.zeros_like(mask[:1])])
    return mask & ~following


def masked_mean(x: Float[Tensor, "*S"], mask: Bool[Tensor, "*S"], add: Reduce = no_reduce) -> Float[Tensor, ""]:
    """Return the mean over the entries where the mask is True."""
    total, count = add(torch.where(mask, x, 0.0).sum(), mask.sum())
    return total / count.clamp(min=1)


def mean_of_taken(x: Float[Tensor, "K M"], skipped: Float[Tensor, "K"] | None = None) -> Float[Tensor, "M"]:
    """Return the mean of each column over the rows with skipped 0. Skipped rows may hold NaN."""
    if skipped is None:
        return x.mean(0)
    taken = 1 - skipped
    return torch.where(taken[:, None] > 0, x, 0.0).sum(0) / taken.sum()


def timestep_mean(x: Float[Tensor, "T N"], alive: Bool[Tensor, "T N"], add: Reduce = no_reduce) -> Float[Tensor, "T 1"]:
    """Return the mean over the environments that are alive at each time step: a baseline without a critic."""
    total, count = add((x * alive).sum(1), alive.sum(1))
    return (total / count.clamp(min=1)).unsqueeze(1)


def standardize(x: Float[Any, "*S"], mean: Tensor | float, std: Tensor | float, eps: float = 1e-8) -> Float[Any, "*S"]:
    """Return (x - mean) / (std + eps) of a tensor or an array. Mean and std are arguments: they may be those of all ranks."""
    return (x - mean) / (std + eps)


def explained_variance(
    prediction: Float[Tensor, "*S"],
    target: Float[Tensor, "*S"],
    variance: Callable[[Tensor], Tensor] = lambda x: x.var(correction=0),
    largest: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, ""]:
    """Return 1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant. A constant target gives 0.
    With several ranks, `variance` and `largest` compute over all of them."""
    low, high = target.aminmax()
    varies = largest(high) > -largest(-low)  # rounding can make the variance of equal numbers nonzero
    return torch.where(varies, 1 - variance(target - prediction) / variance(target), 0.0)
