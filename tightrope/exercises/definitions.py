"""What a phase must compute, written as the definitions are: plain sums over steps, one environment after the other. Slow, and
independent of `functional`, which the checks compare with it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional.losses import Distribution
from ..models import ActorCritic, Categorical, Gaussian
from ..types import Batch, Rollout, Trajectories


@torch.no_grad()
def next_values(rollout: Rollout, policy: ActorCritic, last_obs: Tensor) -> Tensor:
    """V of the state that each step led to: of the final observation where an episode ended."""
    found = torch.zeros_like(rollout.reward)
    steps, envs = found.shape
    for t in range(steps):
        for n in range(envs):
            ended = bool(rollout.terminated[t, n] or rollout.truncated[t, n])
            following = last_obs[n] if t == steps - 1 else rollout.obs[t + 1, n]
            found[t, n] = policy.value((rollout.final_obs[t, n] if ended else following)[None])[0]
    return found


def advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, done: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """GAE: the sum of (gamma lambda)^l delta_{t+l}, up to the end of the episode."""
    r, v, following, ended, cut = (x.tolist() for x in (reward, value, next_value, terminated, done))
    steps, envs = value.shape
    found = [[0.0] * envs for _ in range(steps)]
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                future = 0.0 if ended[k][n] else gamma * following[k][n]
                found[t][n] += (gamma * gae_lambda) ** (k - t) * (r[k][n] + future - v[k][n])
                if cut[k][n]:
                    break
    return torch.tensor(found)


def returns(reward: Tensor, terminated: Tensor, done: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """The discounted rewards up to the end of the episode or the last row, and what follows there unless the task is over."""
    r, following, ended, cut = (x.tolist() for x in (reward, next_value, terminated, done))
    steps, envs = reward.shape
    found = [[0.0] * envs for _ in range(steps)]
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                found[t][n] += gamma ** (k - t) * r[k][n]
                if cut[k][n] or k == steps - 1:
                    found[t][n] += 0.0 if ended[k][n] else gamma ** (k - t + 1) * following[k][n]
                    break
    return torch.tensor(found)


def mean_of_the_living(x: Tensor, alive: Tensor) -> Tensor:
    """For each step the mean over the environments that are alive, 0 where none is."""
    rows = [[x[t, n] for n in range(x.shape[1]) if alive[t, n]] for t in range(len(x))]
    return torch.stack([torch.stack(row).mean() if row else torch.zeros(()) for row in rows])[:, None]


def quotient(log_prob: Tensor, old_log_prob: Tensor, clamp: float | None) -> Tensor:
    """pi / pi_old, in the interval around 1."""
    low, high = (0.0, float("inf")) if clamp is None else (1 - clamp, 1 + clamp)
    pairs = zip(log_prob.exp().tolist(), old_log_prob.exp().tolist(), strict=True)
    return torch.tensor([min(max(new / old, low), high) for new, old in pairs])


def reinforce(log_prob: Tensor, advantage: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """The mean of w log pi (G - b) over the steps in the mask, where only log pi has a gradient."""
    weights, gains = weight.tolist(), advantage.tolist()
    chosen = [log_prob[i] * weights[i] * gains[i] for i in range(len(mask)) if mask[i]]
    return torch.stack(chosen).mean()


def half_square(value: Tensor, target: Tensor) -> Tensor:
    return torch.stack([(v - t) ** 2 / 2 for v, t in zip(value, target.tolist(), strict=True)]).mean()


def entropy_of(logits: Tensor) -> Tensor:
    """-sum of p log p, for each row."""
    log_p = logits - torch.logsumexp(logits, -1, keepdim=True)  # not log(p): a small p underflows to 0
    return -(log_p.exp() * log_p).sum(-1)


def mean_of(x: Tensor) -> Tensor:
    return x.sum() / len(x)


def first_episodes(rollout: Rollout) -> Tensor:
    """The steps of the first episode of each environment, its last one included."""
    alive = torch.zeros_like(rollout.terminated)
    steps, envs = alive.shape
    for n in range(envs):
        ends = [t for t in range(steps) if rollout.terminated[t, n] or rollout.truncated[t, n]]
        alive[: ends[0] + 1 if ends else steps, n] = True
    return alive


def surrogate_by_cases(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Eq. 7 of PPO, case by case: a ratio that has already gone far enough in the direction of the advantage counts no more."""
    total = torch.zeros(())
    for new, old, advantage in zip(log_prob, old_log_prob.tolist(), advantages.tolist(), strict=True):
        ratio = torch.exp(new - old)
        too_far = ratio > 1 + clip if advantage > 0 else ratio < 1 - clip
        limit = 1 + clip if advantage > 0 else 1 - clip
        total = total + (limit * advantage if too_far else ratio * advantage)
    return total / len(log_prob)


def sampled(distribution: Distribution, noise: Tensor) -> Tensor:
    """The actions for this noise: by inversion of the cumulative probabilities, or mean + noise x deviation."""
    if isinstance(distribution, Categorical):
        sums = torch.cumsum(distribution.logits.double().softmax(-1), -1)
        return torch.tensor([int((row <= u).sum()) for row, u in zip(sums, noise.tolist(), strict=True)])
    assert isinstance(distribution, Gaussian)
    return distribution.mean + noise * distribution.log_std.exp()


def log_probability(distribution: Distribution, action: Tensor) -> Tensor:
    """log pi(a|s): the logarithm of a softmax, or of the density of independent normals."""
    if isinstance(distribution, Categorical):
        rows = distribution.logits - torch.logsumexp(distribution.logits, -1, keepdim=True)
        return torch.stack([row[a] for row, a in zip(rows, action.tolist(), strict=True)])
    assert isinstance(distribution, Gaussian)
    std = distribution.log_std.exp()
    density = torch.exp(-(((action - distribution.mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
    return density.log().sum(-1)


def alive_of(batch: Batch) -> Tensor:
    """The mask of a batch of trajectories; all steps of another batch."""
    return batch.alive if isinstance(batch, Trajectories) else torch.ones_like(batch.advantage, dtype=torch.bool)


def adam(grads: list[Tensor], start: Tensor, rates: list[float], max_norm: float, clips: bool = True) -> list[Tensor]:
    """The parameters after each Adam step, from zero moments, with the gradient's norm limited."""
    first, second, flat, found = torch.zeros_like(start), torch.zeros_like(start), start.clone(), []
    for k, (grad, rate) in enumerate(zip(grads, rates, strict=True), 1):
        norm = float(grad.norm())
        g = grad * (max_norm / norm if clips and norm > max_norm else 1.0)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        flat = flat - rate * (first / (1 - 0.9**k)) / ((second / (1 - 0.999**k)).sqrt() + 1e-5)
        found.append(flat)
    return found


def gradient_of(x: Tensor, policy: ActorCritic) -> Tensor:
    """The gradient by autograd, flat, in the order of the parameters."""
    parts = torch.autograd.grad(x, list(policy.parameters()), retain_graph=True, allow_unused=True)
    pairs = zip(parts, policy.parameters(), strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in pairs])
