"""What common mistakes compute in place of returns and GAE, sums that run backwards through time. See mistakes.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .mistakes import Wrong


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
    "rewards are not discounted: gamma is missing": lambda r, e, d, v, g: backward_sum(
        r + v * (with_last(d) & ~e), 1.0, ~with_last(d)
    ),
    "rewards are not discounted: gamma is missing, except before next_value": lambda r, e, d, v, g: backward_sum(
        bootstrapped(r, e, d, v, g), 1.0, ~with_last(d)
    ),
    "episode ends are ignored: rewards of the next episode leak in, cut the sum where done": lambda r, e, d, v, g: (
        backward_sum(bootstrapped(r, e, with_last(d & False), v, g), g, ~with_last(d & False))
    ),
    "time limits do not cut the sum: cut it where done, not where terminated": lambda r, e, d, v, g: backward_sum(
        bootstrapped(r, e, with_last(e), v, g), g, ~with_last(e)
    ),
    "a time limit counts as the end of the task: add gamma next_value where done and not terminated": lambda r, e, d, v, g: (
        backward_sum(r + g * v * torch.cat([d[:-1] & False, ~d[-1:]]), g, ~with_last(d))
    ),
    "what follows the last row is missing: the sum is cut there too, so add gamma next_value": lambda r, e, d, v, g: (
        backward_sum(r + g * v * (d & ~e), g, ~with_last(d))
    ),
    "next_value is never used: add gamma times it where the sum is cut but the task has not ended": lambda r, e, d, v, g: (
        backward_sum(r, g, ~with_last(d))
    ),
    "next_value is added after the task has ended: only where not terminated": lambda r, e, d, v, g: backward_sum(
        r + g * v * with_last(d), g, ~with_last(d)
    ),
    "next_value is not discounted: multiply it by gamma": lambda r, e, d, v, g: backward_sum(
        r + v * (with_last(d) & ~e), g, ~with_last(d)
    ),
    "next_value is added at every step: only where the sum is cut": lambda r, e, d, v, g: backward_sum(
        r + g * v * ~e, g, ~with_last(d)
    ),
    "off by one: the reward of step t itself is left out, G_t = r_t + gamma G_{t+1}": lambda r, e, d, v, g: (
        right_returns(r, e, d, v, g) - r
    ),
    "off by one: what follows step t is stored, before gamma and reward[t] are in it": lambda r, e, d, v, g: (
        (right_returns(r, e, d, v, g) - r) / g
    ),
    "off by one: the sum is stored before step t is added to it": lambda r, e, d, v, g: after(
        right_returns(r, e, d, v, g), v[-1]
    ),
    "the rewards that follow are missing: next_value stands in for them, even after the end": lambda r, e, d, v, g: (
        r + g * v
    ),
    "the rewards that follow are missing: next_value stands in for them at every step": lambda r, e, d, v, g: (
        r + g * v * ~e
    ),
    "every row holds the return of its whole episode: that of step t begins at step t": lambda r, e, d, v, g: (
        held_from_the_start(right_returns(r, e, d, v, g), d)
    ),
    "the axes are swapped: axis 0 is time, axis 1 the environments": lambda r, e, d, v, g: right_returns(
        r.t(), e.t(), d.t(), v.t(), g
    ).t(),
    "off by one: the sum is cut by done[t-1] and terminated[t-1], where those of step t belong": lambda r, e, d, v, g: (
        looped(r, e.roll(1, 0), d.roll(1, 0), v, g)
    ),
    "off by one: the sum is cut by done[t-1], where done[t] belongs": lambda r, e, d, v, g: looped(
        r, e, d.roll(1, 0), v, g
    ),
    "off by one: the sum is cut by done[t+1] and terminated[t+1], where those of step t belong": lambda r, e, d, v, g: (
        looped(r, after(e, e[-1]), after(d, d[-1]), v, g)
    ),
    "the last step's own reward is missing, its row is next_value: begin the loop there": lambda r, e, d, v, g: (
        without_last_reward(r, e, d, v, g, v[-1])
    ),
    "the last step's own reward is missing, its row is gamma next_value: begin the loop there": lambda r, e, d, v, g: (
        without_last_reward(r, e, d, v, g, g * v[-1])
    ),
    "the last step's own reward is missing, its row is left at 0: begin the loop there": lambda r, e, d, v, g: (
        without_last_reward(r, e, d, v, g, 0 * v[-1])
    ),
    "the last row is left out: begin the loop there, not one step earlier": lambda r, e, d, v, g: (
        without_last_reward(r, e, d, v, g, v[-1]) * (torch.arange(len(r)) < len(r) - 1)[:, None]
    ),
    "it looks back, not ahead: begin at the last step and go backwards": lambda r, e, d, v, g: forward_sum(r, g, ~d),
    "the sign is turned": lambda r, e, d, v, g: -right_returns(r, e, d, v, g),
}

# GAE: (reward, value, next_value, terminated, done, gamma, gae_lambda) --------------------------------------------------------


def traced(r: Tensor, v: Tensor, n: Tensor, stops: Tensor, cuts: Tensor, g: float, decay: float) -> Tensor:
    """Deltas that bootstrap unless `stops`, summed with a decay until `cuts`."""
    return backward_sum(r + g * n * ~stops - v, decay, ~cuts)


def sooner(done: Tensor) -> Tensor:
    """Ends marked a step too early."""
    return torch.cat([done[1:], torch.ones_like(done[:1])])


GAE: dict[str, Wrong] = {
    "a time limit counts as the end of the task: only terminated stops the bootstrap": lambda r, v, n, e, d, g, y: (
        traced(r, v, n, d, d, g, g * y)
    ),
    "resets are ignored, episode ends do not cut the trace: the next episode leaks in": lambda r, v, n, e, d, g, y: (
        traced(r, v, n, e, d & False, g, g * y)
    ),
    "time limits do not cut the trace: cut it where done, not where terminated": lambda r, v, n, e, d, g, y: traced(
        r, v, n, e, e, g, g * y
    ),
    "they bootstrap after the task has ended: multiply next_value by ~terminated": lambda r, v, n, e, d, g, y: traced(
        r, v, n, e & False, d, g, g * y
    ),
    "off by one: the value in delta is V(s_t) twice, where V(s_{t+1}) belongs": lambda r, v, n, e, d, g, y: traced(
        r, v, v, e, d, g, g * y
    ),
    "after a time limit they bootstrap from the reset observation: use next_value, not value": lambda r, v, n, e, d, g, y: (
        traced(r, v, torch.cat([v[1:], n[-1:]]), e, d, g, g * y)
    ),
    "the value after the last step is missing: use next_value": lambda r, v, n, e, d, g, y: traced(
        r, v, torch.cat([v[1:], torch.zeros_like(n[-1:])]), e, d, g, g * y
    ),
    "off by one: the trace is cut one step too early": lambda r, v, n, e, d, g, y: traced(
        r, v, n, e, sooner(d), g, g * y
    ),
    "gamma is missing in delta": lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, 1.0, g * y),
    "lambda is missing: the trace decays by gamma alone": lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, g),
    "gamma is missing in the decay of the trace: it is gamma lambda": lambda r, v, n, e, d, g, y: traced(
        r, v, n, e, d, g, y
    ),
    "the trace does not decay: multiply by gamma lambda": lambda r, v, n, e, d, g, y: traced(r, v, n, e, d, g, 1.0),
    "there is no trace: only the first delta counts": lambda r, v, n, e, d, g, y: r + g * n * ~e - v,
    "the value is not subtracted: this is the value target, advantage + value": lambda r, v, n, e, d, g, y: (
        traced(r, v, n, e, d, g, g * y) + v
    ),
    "the value is missing in delta: delta = r + gamma V(s_{t+1}) - V(s_t)": lambda r, v, n, e, d, g, y: traced(
        r, v * 0, n, e, d, g, g * y
    ),
    "the bootstrap is missing in delta: delta = r + gamma V(s_{t+1}) - V(s_t)": lambda r, v, n, e, d, g, y: traced(
        r, v, n * 0, e, d, g, g * y
    ),
    "the sum runs forwards: begin at the last step and go backwards": lambda r, v, n, e, d, g, y: forward_sum(
        r + g * n * ~e - v, g * y, ~d
    ),
    "the sign is turned: delta = r + gamma V(s_{t+1}) - V(s_t)": lambda r, v, n, e, d, g, y: (
        -traced(r, v, n, e, d, g, g * y)
    ),
}
