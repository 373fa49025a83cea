"""Collection: the policy acts, the environments answer, the rollout remembers."""

import torch
from torch import Tensor

from ..models import ActorCritic
from ..types import Env, Rollout, Row
from .accelerate import capturable, compilable, compiling
from .device import reads_are_free
from .noise import Noise
from .quick import QuickPolicy, quick


@torch.no_grad()
def collect(
    env: Env, policy: ActorCritic, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None = None
) -> tuple[Tensor, int]:
    """Fill the rollout from `obs` on; returns the observation after the last step and the number of steps taken.

    With `dead_fraction`, collection ends once that fraction of the environments has terminated. On the CPU it breaks off
    there; on a device it runs on rather than read a tensor on the host, and the caller masks what came after.
    """
    num_steps = rollout.reward.shape[0]
    dead = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    on_arrays = reads_are_free(env.device) and not compiling()
    player = quick(policy, obs, noise.action[0]) if on_arrays else None
    for t, (row, action_noise, reset_noise) in enumerate(zip(rollout.rows, noise.action, noise.reset, strict=True)):
        obs = advance(env, policy, obs, action_noise, reset_noise, row, player)
        if dead_fraction is not None and reads_are_free(env.device):
            dead |= row.terminated
            if dead.sum() >= dead_fraction * env.num_envs:
                num_steps = t + 1
                break
    if player or policy.critic is not policy.actor:
        judge(player or policy, rollout.first(num_steps))
    return obs, num_steps


@compilable(when=lambda env, *_: env.capturable)
def advance(
    env: Env,
    policy: ActorCritic,
    obs: Tensor,
    action_noise: Tensor,
    reset_noise: Tensor,
    row: Row,
    player: QuickPolicy | None = None,
) -> Tensor:
    """One step of every environment, written down; returns what they show now."""
    action, *judgement = (player.act(obs, action_noise),) if player else act(policy, obs, action_noise)
    step = env.step(policy.head.to_env(action), reset_noise)
    row.write(obs, action, step)
    for column, numbers in zip((row.log_prob, row.value), judgement, strict=False):
        column.copy_(numbers)
    return step.obs


@capturable("part")
def act(policy: ActorCritic, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
    """What the policy does: (action,), and where actor and critic share a trunk, whose answer then has all there is to
    know, (action, log_prob, value). Where they are apart a step needs the actor alone; the rest is one pass at the end."""
    if policy.critic is not policy.actor:
        return (policy.distribution(obs).sample(noise),)
    distribution, value = policy(obs)
    action = distribution.sample(noise)
    return action, distribution.log_prob(action), value


def judge(policy: ActorCritic | QuickPolicy, rollout: Rollout) -> None:
    """Write down how likely each action was and what each observation is worth, under the policy that acted."""
    distribution, value = policy(rollout.obs.flatten(0, 1))
    rollout.log_prob.copy_(distribution.log_prob(rollout.action.flatten(0, 1)).view_as(rollout.log_prob))
    rollout.value.copy_(value.view_as(rollout.value))


@torch.no_grad()
def final_values(policy: ActorCritic, rollout: Rollout) -> Tensor:
    """V(final_obs) where an episode was truncated, 0 elsewhere. (T, N)

    On the CPU only the truncated rows are evaluated; on a device all of them, in one pass that needs no host read.
    """
    truncated = rollout.truncated
    value = torch.zeros_like(rollout.value)
    if reads_are_free(truncated.device):
        if truncated.any():
            value[truncated] = policy.value(rollout.final_obs[truncated])
        return value
    every = policy.value(rollout.final_obs.flatten(0, 1)).view_as(value)
    return torch.where(truncated, every, value)
