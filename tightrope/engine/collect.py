"""Collection: the policy acts, the environments answer, the rollout remembers."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..envs.step_arrays import ArrayStepper
from ..models import ActorCritic
from ..types import Env, GroupedEnv, Rollout, Row
from .distributed import all_reduce_sum, world
from .noise import Noise
from .rollout_policy import Choose, RolloutPolicy
from .threads import threads, threads_for_acting

Advance = Callable[[Env, ActorCritic, Tensor, Tensor, Tensor, Row], Tensor]
ASKED = 16  # steps after which ranks look whether enough environments have died


@torch.no_grad()
def collect(
    env: Env, policy: ActorCritic, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise,
    dead_fraction: float | None, reads: bool, advance: Advance,
) -> tuple[Tensor, int]:  # fmt: skip
    """Fill the rollout from `obs` on; returns the observation after the last step and the number of steps taken.

    With `dead_fraction`, collection ends once that fraction of the environments has terminated. It breaks off there if tensors
    may be read; otherwise it runs on, and the caller masks what came after.
    """
    num_steps = rollout.reward.shape[0]
    with threads(threads_for_acting(env.num_envs)):
        step = array_stepper(env) if actor.choose is not None else None
        if step is not None and actor.choose is not None:
            obs, num_steps = on_arrays(step, actor.choose, rollout, obs, noise, dead_fraction)
        elif env.groups and dead_fraction is None:
            obs = collect_grouped(cast(GroupedEnv, env), policy, actor, rollout, obs, noise)
        else:
            limit = dead_fraction if reads else None
            obs, num_steps = collect_sync(env, policy, actor, rollout, obs, noise, limit, advance)
    if not actor.evaluates_in_act:
        evaluate_rollout(actor, rollout.first(num_steps))
    return obs, num_steps


def array_stepper(env: Any) -> ArrayStepper | None:
    """How to step an environment over arrays, if it can be. Looked up on its class, so that a wrapper is not bypassed."""
    return env.in_arrays() if hasattr(type(env), "in_arrays") else None


@np.errstate(all="ignore")  # what is not finite is reported once a phase
def on_arrays(
    step: ArrayStepper, choose: Choose, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None
) -> tuple[Tensor, int]:
    """All environments at once, one step after the other, where neither they nor the policy need a tensor."""
    last = obs.clone()
    shown = [*rollout.obs.numpy(), last.numpy()]
    action, reward = rollout.action.numpy(), rollout.reward.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    final_obs, real = rollout.final_obs.numpy(), rollout.real.numpy()
    dead = np.zeros(len(last), bool)
    shown[0][:] = last
    for t, (draw, reset) in enumerate(zip(noise.action.numpy(), noise.reset.numpy(), strict=True)):
        action[t], given = choose(shown[t], draw)
        answer = step(given.copy(), reset)  # which an engine may keep
        activity.mark()
        shown[t + 1][:] = final_obs[t] = answer.obs
        reward[t], terminated[t], truncated[t] = answer.reward, answer.terminated, answer.truncated
        if len(answer.rows):
            final_obs[t, answer.rows] = answer.final_obs
        if answer.real is not None:
            real[t] = answer.real
        if dead_fraction is not None:
            dead |= answer.terminated
            if enough_died(torch.from_numpy(dead), dead_fraction, t + 1):
                return torch.from_numpy(shown[t + 1].copy()), t + 1
    return last, len(rollout.reward)


def collect_sync(
    env: Env, policy: ActorCritic, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise,
    dead_fraction: float | None, advance: Advance,
) -> tuple[Tensor, int]:  # fmt: skip
    """All environments at once, one step after the other."""
    dead = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    for t, (row, action_noise, reset_noise) in enumerate(zip(rollout.rows, noise.action, noise.reset, strict=True)):
        action, *evaluation = actor.act(obs, action_noise)
        obs = advance(env, policy, obs, action, reset_noise, row)
        row.write_evaluation(*evaluation)
        activity.mark()
        if dead_fraction is not None:
            dead |= row.terminated
            if enough_died(dead, dead_fraction, t + 1):
                return obs, t + 1
    return obs, len(rollout.rows)


def enough_died(dead: Tensor, fraction: float, steps: int) -> bool:
    """Whether that fraction of all environments has. Ranks ask each other now and then, and go on a little longer."""
    if not world().is_distributed:
        return int(np.count_nonzero(dead.numpy())) >= fraction * len(dead)
    return steps % ASKED == 0 and bool(all_reduce_sum(dead.sum()) >= fraction * len(dead) * world().size)


def advance(env: Env, policy: ActorCritic, obs: Tensor, action: Tensor, noise: Tensor, row: Row) -> Tensor:
    """One step of every environment, written down; returns what they show now."""
    step = env.step(policy.head.to_env(action), noise)
    row.write_act(obs, action)
    row.write_step(step)
    return step.obs


def collect_grouped(
    env: GroupedEnv, policy: ActorCritic, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise
) -> Tensor:
    """One group after the other, be it only one: while the policy acts for one, the others' engines work. Each action is
    still that of the current policy for what its environment shows now, and nothing depends on who is quicker."""
    parts, draws = rollout.parts, noise.action.tensor_split(env.groups, 1)

    def answer(group: int, t: int, obs: Tensor) -> None:
        action, *evaluation = actor.act(obs, draws[group][t])
        env.send(policy.head.to_env(action), group)
        parts[group].rows[t].write_act(obs, action)  # while the engine works, like all other writing
        parts[group].rows[t].write_evaluation(*evaluation)

    for group, shown in enumerate(obs.tensor_split(env.groups)):
        answer(group, 0, shown)
    for t in range(1, len(rollout.rows)):
        for group, part in enumerate(parts):
            step = env.recv(group)
            answer(group, t, step.obs)
            part.rows[t - 1].write_step(step)
    last = [env.recv(group) for group in range(env.groups)]
    for part, step in zip(parts, last, strict=True):
        part.rows[-1].write_step(step)
    return torch.cat([step.obs for step in last])


def evaluate_rollout(actor: RolloutPolicy, rollout: Rollout) -> None:
    """Write down how likely each action was and what each observation is worth, under the policy that acted."""
    log_prob, value = actor.evaluate_actions(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1))
    rollout.log_prob.copy_(log_prob.view_as(rollout.log_prob))
    rollout.value.copy_(value.view_as(rollout.value))


@torch.no_grad()
def truncated_values(policy: ActorCritic, rollout: Rollout) -> Tensor:
    """V(final_obs) where an episode was truncated, 0 elsewhere, from the truncated rows alone. (T, N)"""
    value = torch.zeros_like(rollout.value)
    if rollout.truncated.any():
        value[rollout.truncated] = policy.value(rollout.final_obs[rollout.truncated])
    return value


@torch.no_grad()
def masked_final_values(value_of: Callable[[Tensor], Tensor], rollout: Rollout) -> Tensor:
    """V(final_obs) where an episode was truncated, 0 elsewhere, in one pass that needs no look at any number. (T, N)"""
    every = value_of(rollout.final_obs.flatten(0, 1)).view_as(rollout.value)
    return torch.where(rollout.truncated, every, torch.zeros_like(rollout.value))
