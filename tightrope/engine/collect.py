"""Filling a rollout: the policy acts, the environments step, and the rollout stores both."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..envs.step_arrays import ArrayStepper
from ..recording import Array
from ..types import Env, GroupedEnv, Rollout, Row
from .distributed import all_reduce_sum, world
from .noise import Noise
from .rollout_in_c import act_in_c, collect_in_c
from .rollout_policy import Choose, RolloutPolicy
from .threads import threads, threads_for_acting

Advance = Callable[[Env, Tensor, Tensor, Tensor, Tensor, Row], Tensor]
STEPS_BETWEEN_CHECKS = 16  # steps after which ranks count their terminated environments together


@torch.no_grad()
def collect(
    env: Env, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None, stop_early: bool,
    advance: Advance,
) -> tuple[Tensor, int]:  # fmt: skip
    """Fill the rollout, starting at `obs`. Return the observation after the last step and the number of steps taken.

    `dead_fraction` ends the rollout once that fraction of the environments has terminated. Collection stops there with
    `stop_early`, for which tensors are read on the host; otherwise all steps are taken, and the caller masks the later ones.
    """
    num_steps = rollout.reward.shape[0]
    with threads(threads_for_acting(env.num_envs)):
        in_c = collect_in_c(env, actor, rollout, obs, noise, dead_fraction)
        step = array_stepper(env) if in_c is None and actor.choose is not None else None
        if in_c is not None:
            obs, num_steps = in_c
        elif step is not None and actor.choose is not None:
            act = act_in_c(actor, rollout, noise) or act_on_arrays(actor.choose, rollout, noise)
            obs, num_steps = on_arrays(step, act, rollout, obs, noise, dead_fraction)
        elif env.groups and dead_fraction is None:
            obs = collect_grouped(cast(GroupedEnv, env), actor, rollout, obs, noise)
        else:
            limit = dead_fraction if stop_early else None
            obs, num_steps = collect_sync(env, actor, rollout, obs, noise, limit, advance)
    if not actor.evaluates_in_act:
        evaluate_rollout(actor, rollout.first(num_steps))
    return obs, num_steps


def array_stepper(env: Any) -> ArrayStepper | None:
    """Return a function that steps the environments on NumPy arrays, or None. A wrapper without `in_arrays` gives None."""
    return env.in_arrays() if hasattr(type(env), "in_arrays") else None


def act_on_arrays(choose: Choose, rollout: Rollout, noise: Noise) -> Callable[[int], Array]:
    """Return a function of the step that writes an action to the rollout, and returns it for the environment."""
    shown, draws = rollout.obs.numpy(), noise.action.numpy()
    written = [x.numpy() for x in (rollout.action, rollout.log_prob, rollout.value)]

    def act(t: int) -> Array:
        action, given, *evaluation = choose(shown[t], draws[t])
        for place, x in zip(written, (action, *evaluation), strict=False):
            place[t] = x
        return given

    return act


@np.errstate(all="ignore")  # the guard reports non-finite numbers once per phase
def on_arrays(
    step: ArrayStepper,
    act: Callable[[int], Array],
    rollout: Rollout,
    obs: Tensor,
    noise: Noise,
    dead_fraction: float | None,
) -> tuple[Tensor, int]:
    """Collect with NumPy arrays: all environments at once, one step after the other."""
    last = obs.clone()
    shown = [*rollout.obs.numpy(), last.numpy()]
    reward = rollout.reward.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    final_obs, valid = rollout.final_obs.numpy(), rollout.valid.numpy()
    dead = np.zeros(len(last), bool)
    shown[0][:] = last
    for t, reset in enumerate(noise.reset.numpy()):
        answer = step(act(t).copy(), reset)  # a copy, because an engine may keep the array
        activity.mark()
        shown[t + 1][:] = final_obs[t] = answer.obs
        reward[t], terminated[t], truncated[t] = answer.reward, answer.terminated, answer.truncated
        if len(answer.rows):
            final_obs[t, answer.rows] = answer.final_obs
        if answer.valid is not None:
            valid[t] = answer.valid
        if dead_fraction is not None:
            dead |= answer.terminated
            if enough_died(torch.from_numpy(dead), dead_fraction, t + 1):
                return torch.from_numpy(shown[t + 1].copy()), t + 1
    return last, len(rollout.reward)


def collect_sync(
    env: Env, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None, advance: Advance
) -> tuple[Tensor, int]:  # fmt: skip
    """Collect with tensors: all environments at once, one step after the other."""
    dead = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    for t, (row, action_noise, reset_noise) in enumerate(zip(rollout.rows, noise.action, noise.reset, strict=True)):
        action, given, *evaluation = actor.act(obs, action_noise)
        obs = advance(env, obs, action, given, reset_noise, row)
        row.write_evaluation(*evaluation)
        activity.mark()
        if dead_fraction is not None:
            dead |= row.terminated
            if enough_died(dead, dead_fraction, t + 1):
                return obs, t + 1
    return obs, len(rollout.rows)


def enough_died(dead: Tensor, fraction: float, steps: int) -> bool:
    """Whether that fraction of all environments has terminated. Several ranks count only every STEPS_BETWEEN_CHECKS steps."""
    if not world().is_distributed:
        return int(np.count_nonzero(dead.numpy())) >= fraction * len(dead)
    return steps % STEPS_BETWEEN_CHECKS == 0 and bool(all_reduce_sum(dead.sum()) >= fraction * len(dead) * world().size)


def advance(env: Env, obs: Tensor, action: Tensor, given: Tensor, noise: Tensor, row: Row) -> Tensor:
    """Take one step with the actions `given` to every environment, write it into `row`, and return the new observations."""
    step = env.step(given, noise)
    row.write_act(obs, action)
    row.write_step(step)
    return step.obs


def collect_grouped(env: GroupedEnv, actor: RolloutPolicy, rollout: Rollout, obs: Tensor, noise: Noise) -> Tensor:
    """Collect one group of environments after the other: while the policy acts for one group, the engines of the others work.

    Each action is the current policy's for the current observation, and results do not depend on timing.
    """
    parts, draws = rollout.parts, noise.action.tensor_split(env.groups, 1)

    def answer(group: int, t: int, obs: Tensor) -> None:
        action, given, *evaluation = actor.act(obs, draws[group][t])
        env.send(given, group)
        parts[group].rows[t].write_act(obs, action)  # write while the engine works
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
    """Write the log-probability of each action and the value of each observation, under the policy that acted."""
    log_prob, value = actor.evaluate_actions(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1))
    rollout.log_prob.copy_(log_prob.view_as(rollout.log_prob))
    rollout.value.copy_(value.view_as(rollout.value))


@torch.no_grad()
def truncated_values(value_of: Callable[[Tensor], Tensor], rollout: Rollout) -> Tensor:
    """Return V(final_obs) where an episode was truncated, 0 elsewhere. Evaluates only the truncated rows. (T, N)"""
    value = torch.zeros_like(rollout.value)
    if rollout.truncated.numpy().any():
        value[rollout.truncated] = value_of(rollout.final_obs[rollout.truncated])
    return value


@torch.no_grad()
def masked_final_values(value_of: Callable[[Tensor], Tensor], rollout: Rollout) -> Tensor:
    """Return V(final_obs) where an episode was truncated, 0 elsewhere. Evaluates all rows, and reads nothing. (T, N)"""
    every = value_of(rollout.final_obs.flatten(0, 1)).view_as(rollout.value)
    return torch.where(rollout.truncated, every, torch.zeros_like(rollout.value))
