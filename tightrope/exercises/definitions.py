"""What a phase must compute, written as the definitions are: plain sums over steps, one environment after the other. Slow, and
independent of `functional`, which the checks compare with it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import ActorCritic
from ..types import Batch, Rollout


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


def advantages(rollout: Rollout, value: Tensor, following: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """GAE: the sum of (gamma lambda)^l delta_{t+l}, up to the end of the episode."""
    found = torch.zeros_like(value)
    steps, envs = value.shape
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                future = 0.0 if rollout.terminated[k, n] else gamma * following[k, n]
                found[t, n] += (gamma * gae_lambda) ** (k - t) * (rollout.reward[k, n] + future - value[k, n])
                if rollout.terminated[k, n] or rollout.truncated[k, n]:
                    break
    return found


def reward_to_go(rollout: Rollout, gamma: float) -> tuple[Tensor, Tensor]:
    """The discounted rewards up to the end of the first episode, and the steps of that episode."""
    found, alive = torch.zeros_like(rollout.reward), torch.zeros_like(rollout.terminated)
    steps, envs = found.shape
    for n in range(envs):
        ends = [t for t in range(steps) if rollout.terminated[t, n] or rollout.truncated[t, n]]
        last = ends[0] if ends else steps - 1
        alive[: last + 1, n] = True
        for t in range(last + 1):
            found[t, n] = sum(gamma ** (k - t) * rollout.reward[k, n] for k in range(t, last + 1))
    return found, alive


def surrogate_by_cases(log_prob: Tensor, batch: Batch, clip: float) -> Tensor:
    """Eq. 7 of PPO, case by case: a ratio that has already gone far enough in the direction of the advantage counts no more."""
    total = torch.zeros(())
    for new, old, advantage in zip(log_prob, batch.log_prob, batch.advantage, strict=True):
        ratio = torch.exp(new - old)
        too_far = ratio > 1 + clip if advantage > 0 else ratio < 1 - clip
        limit = 1 + clip if advantage > 0 else 1 - clip
        total = total + (limit * advantage if too_far else ratio * advantage)
    return total / len(log_prob)


def weighted_gradient(log_prob: Tensor, batch: Batch, alive: Tensor, clamp: float) -> Tensor:
    """REINFORCE with clamped importance weights, over the steps of the episodes."""
    total = torch.zeros(())
    for i in alive.nonzero().flatten().tolist():
        weight = float(torch.exp(log_prob[i] - batch.log_prob[i]).detach())
        total = total + min(max(weight, 1 - clamp), 1 + clamp) * log_prob[i] * batch.advantage[i]
    return total / alive.sum()


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
