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

LONG, NARROW = 32, 256  # sums over time double their reach from 32 steps on, for at most 256 environments
Add = Callable[..., tuple[Tensor, ...]]  # what each of several tensors adds up to over all ranks


def alone(*parts: Tensor) -> tuple[Tensor, ...]:
    """The sums where there is one rank."""
    return parts


def successor_values(
    value: Float[Tensor, "T N"],
    last_value: Float[Tensor, "N"],
    done: Bool[Tensor, "T N"],
    final_value: Float[Tensor, "T N"],
) -> Float[Tensor, "T N"]:
    """V(s_{t+1}) everywhere: the next row's value, the value of the final observation where an episode ended, and
    `last_value` (that of the observation carried to the next rollout) at the end of the window."""
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
) -> Float[Tensor, "T N"]:
    """Generalised advantage estimates; `next_value` is what `successor_values` gives."""
    delta = reward + gamma * next_value * ~terminated - value  # eq. 12
    decay = gamma * gae_lambda * (~done).to(delta.dtype)
    return _backward_sum(delta, decay)  # eq. 16


def discounted_returns(
    reward: Float[Tensor, "T N"],
    terminated: Bool[Tensor, "T N"],
    done: Bool[Tensor, "T N"],
    next_value: Float[Tensor, "T N"],
    gamma: float,
) -> Float[Tensor, "T N"]:
    """G_t = r_t + gamma G_{t+1} while the episode goes on. Where the clock cuts it, and in the window's last row,
    G_{t+1} is `next_value` (zeros when there is no critic: reward-to-go up to the cut)."""
    cut = done.clone()
    cut[-1] = True
    return _backward_sum(reward + gamma * next_value * (cut & ~terminated), gamma * (~cut).to(reward.dtype))


def running_returns(
    reward: Float[Tensor, "T N"], done: Bool[Tensor, "T N"], start: Float[Tensor, "N"], gamma: float
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "N"]]:
    """R_t = r_t + gamma R_{t-1} within an episode, from the past on; and what to start the next rollout from. Its
    standard deviation is the scale that reward normalisation divides by. [detail 30]"""
    first = reward[:1] + gamma * start
    decay = gamma * (~done[:-1]).to(reward.dtype)
    backwards = torch.cat([first, reward[1:]]).flip(0), torch.cat([decay.flip(0), torch.zeros_like(first)])
    y = _backward_sum(*backwards).flip(0)
    return y, y[-1] * ~done[-1]


def _backward_sum(x: Tensor, decay: Tensor) -> Tensor:
    """y_t = x_t + decay_t y_{t+1}, from the last row to the first; what comes after the last row is 0.

    Where rows are short the time goes into the number of calls, so that the sum doubles its reach each time: once
    y_t = x_t + decay_t y_{t+s} is known, putting it into itself gives the same for 2 s.
    """
    length, width = x.shape
    if length < LONG or width > NARROW:
        y = torch.empty_like(x)
        running = torch.zeros_like(x[0])
        for t in reversed(range(length)):
            running = torch.addcmul(x[t], decay[t], running, out=y[t])
        return y
    y, decay, reach = x.clone(), decay.clone(), 1
    while reach < length:
        y[:-reach] = torch.addcmul(y[:-reach], decay[:-reach], y[reach:])
        decay[:-reach] = decay[:-reach] * decay[reach:]
        reach *= 2
    return y


def alive_mask(done: Bool[Tensor, "T N"]) -> Bool[Tensor, "T N"]:
    """True up to and including the step that ends the first episode of each column."""
    ended_before = torch.cumsum(done, 0) - done.long()
    return ended_before == 0


def running_mask(
    terminated: Bool[Tensor, "T N"], fraction: float | None, add: Add = alone, ranks: int = 1
) -> Bool[Tensor, "T 1"]:
    """True up to and including the step at which that fraction of the columns has terminated; None for everywhere."""
    if fraction is None:
        return torch.ones_like(terminated[:, :1])
    before = (torch.cumsum(terminated, 0) - terminated.long()).clamp(max=1)  # whether each column had
    (dead,) = add(before.sum(1, keepdim=True))
    return dead < fraction * terminated.shape[1] * ranks


def last_row(mask: Bool[Tensor, "T 1"]) -> Bool[Tensor, "T 1"]:
    """True at the last row of a mask that is True from the start on."""
    following = torch.cat([mask[1:], torch.zeros_like(mask[:1])])
    return mask & ~following


def masked_mean(x: Float[Tensor, "*S"], mask: Bool[Tensor, "*S"], add: Add = alone) -> Float[Tensor, ""]:
    """Mean over the entries where the mask is True."""
    total, count = add(torch.where(mask, x, 0.0).sum(), mask.sum())
    return total / count.clamp(min=1)


def mean_of_taken(x: Float[Tensor, "K M"], skipped: Float[Tensor, "K"]) -> Float[Tensor, "M"]:
    """Mean of each column over the rows that were not skipped, whatever is in those that were."""
    taken = 1 - skipped
    return torch.where(taken[:, None] > 0, x, 0.0).sum(0) / taken.sum()


def timestep_mean(x: Float[Tensor, "T N"], alive: Bool[Tensor, "T N"], add: Add = alone) -> Float[Tensor, "T 1"]:
    """Mean over the environments still alive at each time step: the baseline that needs no critic."""
    total, count = add((x * alive).sum(1), alive.sum(1))
    return (total / count.clamp(min=1)).unsqueeze(1)


def standardize(x: Float[Any, "*S"], mean: Tensor | float, std: Tensor | float, eps: float = 1e-8) -> Float[Any, "*S"]:
    """(x - mean) / (std + eps), of a tensor or an array. The statistics are arguments: they may be those of all ranks."""
    return (x - mean) / (std + eps)


def explained_variance(
    prediction: Float[Tensor, "*S"],
    target: Float[Tensor, "*S"],
    variance: Callable[[Tensor], Tensor] = lambda x: x.var(correction=0),
    largest: Callable[[Tensor], Tensor] = lambda x: x,
) -> Float[Tensor, ""]:
    """1 - Var(target - prediction) / Var(target): 1 is perfect, 0 no better than a constant; 0 for a constant target.
    `variance` and `largest` are those of all ranks, where there are several."""
    varies = largest(target.max()) > -largest(-target.min())  # the variance of equal numbers is not exactly 0
    return torch.where(varies, 1 - variance(target - prediction) / variance(target), 0.0)
