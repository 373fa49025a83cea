"""Collection: the policy acts, the environments answer, the rollout remembers."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import activity
from ..envs.step_arrays import ArrayStepper
from ..models import ActorCritic
from ..types import Env, GroupedEnv, Rollout, Row
from .accelerate import compilable, compiling
from .device import reads_are_free
from .distributed import all_reduce_sum, world
from .noise import Noise
from .players import Player, player_for, value_of
from .recorded_policy import RecordedPolicy
from .threads import threads, threads_for_acting

ASKED = 16  # steps after which ranks look whether enough environments have died


@torch.no_grad()
def collect(
    env: Env, policy: ActorCritic, rollout: Rollout, obs: Tensor, noise: Noise, dead_fraction: float | None = None
) -> tuple[Tensor, int]:
    """Fill the rollout from `obs` on; returns the observation after the last step and the number of steps taken.

    With `dead_fraction`, collection ends once that fraction of the environments has terminated. On the CPU it breaks off
    there; on a device it runs on rather than read a tensor on the host, and the caller masks what came after.
    """
    num_steps, on_device = rollout.reward.shape[0], not reads_are_free(obs.device)
    activity.begin(activity.STEPPING, waits=on_device)  # where the policy may wait for what other ranks have to send
    player = player_for(policy, obs, noise.action)
    with threads(threads_for_acting(env.num_envs)):
        step = array_stepper(env) if hasattr(player, "choose") else None
        if step is not None:
            obs, num_steps = on_arrays(step, cast(RecordedPolicy, player), rollout, obs, noise, dead_fraction)
        elif env.groups and dead_fraction is None:
            obs = by_turns(cast(GroupedEnv, env), policy, player, rollout, obs, noise)
        else:
            obs, num_steps = together(env, policy, player, rollout, obs, noise, dead_fraction)
    if not player.judges_at_once:
        judge(player, rollout.first(num_steps))
    activity.begin("learning", waits=on_device)
    return obs, num_steps


def array_stepper(env: Any) -> ArrayStepper | None:
    """How to step an environment over arrays, if it can be. Its class is asked: who wraps one means to be asked himself."""
    return env.in_arrays() if hasattr(type(env), "in_arrays") else None


@np.errstate(all="ignore")  # what is not finite is reported once a phase
def on_arrays(
    step: ArrayStepper,
    player: RecordedPolicy,
    rollout: Rollout,
    obs: Tensor,
    noise: Noise,
    dead_fraction: float | None,
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
        action[t], given = player.choose(shown[t], draw)
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


def together(
    env: Env,
    policy: ActorCritic,
    player: Player,
    rollout: Rollout,
    obs: Tensor,
    noise: Noise,
    dead_fraction: float | None,
) -> tuple[Tensor, int]:
    """All environments at once, one step after the other."""
    dead = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    for t, (row, action_noise, reset_noise) in enumerate(zip(rollout.rows, noise.action, noise.reset, strict=True)):
        action, *judgement = player.act(obs, action_noise)
        obs = advance(env, policy, obs, action, reset_noise, row)
        row.write_judgement(*judgement)
        activity.mark()
        if dead_fraction is not None and reads_are_free(env.device) and not compiling():  # which wants one length
            dead |= row.terminated
            if enough_died(dead, dead_fraction, t + 1):
                return obs, t + 1
    return obs, len(rollout.rows)


def enough_died(dead: Tensor, fraction: float, steps: int) -> bool:
    """Whether that fraction of all environments has. Ranks ask each other now and then, and go on a little longer."""
    if not world().is_distributed:
        return int(np.count_nonzero(dead.numpy())) >= fraction * len(dead)
    return steps % ASKED == 0 and bool(all_reduce_sum(dead.sum()) >= fraction * len(dead) * world().size)


@compilable(when=lambda env, *_: env.capturable)
def advance(env: Env, policy: ActorCritic, obs: Tensor, action: Tensor, noise: Tensor, row: Row) -> Tensor:
    """One step of every environment, written down; returns what they show now."""
    step = env.step(policy.head.to_env(action), noise)
    row.write_act(obs, action)
    row.write_step(step)
    return step.obs


def by_turns(
    env: GroupedEnv, policy: ActorCritic, player: Player, rollout: Rollout, obs: Tensor, noise: Noise
) -> Tensor:
    """One group after the other, be it only one: while the policy acts for one, the others' engines work. Each action is
    still that of the current policy for what its environment shows now, and nothing depends on who is quicker."""
    parts, draws = rollout.parts, noise.action.tensor_split(env.groups, 1)

    def answer(group: int, t: int, obs: Tensor) -> None:
        action, *judgement = player.act(obs, draws[group][t])
        env.send(policy.head.to_env(action), group)
        parts[group].rows[t].write_act(obs, action)  # while the engine works, like all other writing
        parts[group].rows[t].write_judgement(*judgement)

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


def judge(player: Player, rollout: Rollout) -> None:
    """Write down how likely each action was and what each observation is worth, under the policy that acted."""
    log_prob, value = player.judge(rollout.obs.flatten(0, 1), rollout.action.flatten(0, 1))
    rollout.log_prob.copy_(log_prob.view_as(rollout.log_prob))
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
    every = value_of(policy, rollout.final_obs.flatten(0, 1)).view_as(value)
    return torch.where(truncated, every, value)
