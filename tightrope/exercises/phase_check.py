"""Compare one phase with the definitions, stage by stage, and say in words what is wrong at the first stage that differs.

The stages follow the data: rollout, returns or advantages, minibatches, gradient, step, schedule, statistics. A stage is only
looked at if those before it are right, so the first finding names the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..errors import one_line
from ..types import Batch
from . import definitions
from .comparing import near, where
from .gradient_check import ppo_gradient, schedule_stage, statistics_stage, step_stage, vpg_gradient
from .one_phase import OnePhase, run_phase

STAGES = ("rollout", "advantages", "minibatches", "gradient", "step", "schedule", "statistics")
Stage = Callable[[OnePhase], Iterator[str]]


def check_phase(algo: str, phase: Callable[..., tuple[object, ...]] | None = None) -> tuple[str, str] | None:
    """(stage, words) of the first thing that is wrong with a phase; None if it agrees with the definitions."""
    try:
        discrete = run_phase(algo, phase=phase)
    except Exception as error:
        return "phase", f"the phase raises {type(error).__name__}: {one_line(error)}"
    for name, stage in zip(STAGES, stages(algo), strict=True):
        for words in stage(discrete):
            return name, words
    for words in rollout_stage(run_phase(algo, continuous=True, phase=phase)):
        return "rollout", f"continuous actions: {words}"
    return None


def stages(algo: str) -> tuple[Stage, ...]:
    first = (
        (ppo_advantages, ppo_minibatches, ppo_gradient) if algo == "ppo" else (vpg_returns, vpg_batches, vpg_gradient)
    )
    return rollout_stage, *first, step_stage, schedule_stage, statistics_stage


# the rollout ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def rollout_stage(one: OnePhase) -> Iterator[str]:
    """Play the stored actions again, in a copy of the environments as they were before the phase."""
    r, env, old = one.rollout, one.state.env.spawn(one.state.env.num_envs, 0), one.old_policy
    env.load_state_dict(one.env_before)
    obs = env.reset(noise=one.noise.start) if one.config.by_trajectory else one.obs_before
    for t in range(len(r.reward)):
        if not near(r.obs[t], obs):
            yield f"obs[{t}] is not what the policy saw at step {t}: store the observation before the step"
        expected = old.distribution(obs).sample(one.noise.action[t])
        if not near(r.action[t], expected):
            clipped = near(r.action[t], old.head.to_env(expected).view_as(expected))
            advice = "clipped or scaled: store it as sampled" if clipped else "not the one that the policy sampled"
            yield f"action[{t}] is {advice} (detail 27)"
        log_prob = old.distribution(obs).log_prob(r.action[t])
        if not near(r.log_prob[t], log_prob):
            words = f"{where(r.log_prob[t], log_prob)}. It is that of the stored action, under the policy that acted"
            yield f"log_prob[{t}] is wrong: {words}"
        if old.critic is not None and not near(r.value[t], old.value(obs)):
            yield f"value[{t}] is not the critic's value of obs[{t}]: {where(r.value[t], old.value(obs))}"
        step = env.step(old.head.to_env(r.action[t]), one.noise.reset[t])
        done = step.terminated | step.truncated
        if not torch.equal(r.terminated[t], step.terminated):
            merged = torch.equal(r.terminated[t], done)
            yield f"terminated[{t}] is wrong" + (": it also holds time limits, keep truncated apart" if merged else "")
        if not torch.equal(r.truncated[t], step.truncated):
            yield f"truncated[{t}] is wrong: it marks the episodes that the time limit ended, and no others"
        if not near(r.reward[t], step.reward):
            yield f"reward[{t}] is not that of step {t}: {where(r.reward[t], step.reward)}"
        if not near(r.final_obs[t], step.final_obs):
            after_reset = near(r.final_obs[t], step.obs)
            hint = "it is the observation after the reset" if after_reset else "it is not where the step led"
            yield f"final_obs[{t}] is wrong: {hint}, and V(final_obs) is the value after a time limit"
        obs = step.obs
    if not near(one.state.obs, obs):
        yield "state.obs is not the observation after the last step: the next rollout would start elsewhere"


# PPO ----------------------------------------------------------------------------------------------------------------------


def rows_in_rollout(one: OnePhase, batch: Batch) -> Tensor | None:
    """The flat index of each row in the rollout, found by its observation; None if there is none."""
    obs = one.rollout.obs.flatten(0, 1)
    distance = (batch.obs[:, None] - obs[None]).abs().sum(-1)
    least, index = distance.min(1)
    return index if bool((least < 1e-6).all()) else None


@torch.no_grad()
def ppo_advantages(one: OnePhase) -> Iterator[str]:
    """Value targets hold the advantages before they are standardised: target - V."""
    r, config = one.rollout, one.config
    if not one.updates:
        yield "no minibatch went through state.runtime.backward"
        return
    gamma, lam = config.gamma, float(getattr(config, "gae_lambda", 1.0))
    following = definitions.next_values(r, one.old_policy, one.state.obs)
    expected = definitions.advantages(r, r.value, following, gamma, lam)
    batch = one.updates[0].batch
    index = rows_in_rollout(one, batch)
    if index is None or batch.target.shape != index.shape:
        return  # what the minibatches hold is looked at next
    found, value = batch.target - r.value.flatten()[index], r.value.flatten()[index]

    def is_like(x: Tensor) -> bool:
        return near(found, x.flatten()[index])

    if is_like(expected):
        return
    for words, wrong in wrong_advantages(one, following, gamma, lam):
        if is_like(wrong):
            yield f"advantages (GAE, successor_values): {words}"
            return
    if near(batch.target, expected.flatten()[index]):
        yield "value targets: target is the advantage alone, it must be advantage + value (detail 5)"
    elif near(batch.target, value):
        yield "value targets: target is the critic's own value, from which it learns nothing"
    elif near(batch.target, r.reward.flatten()[index]):
        yield "value targets: target is the reward of one step, it must be advantage + value"
    else:
        words = where(found, expected.flatten()[index])
        yield f"advantages or value targets: target - value {words}, by the sum of (gamma lambda)^l delta"


def wrong_advantages(one: OnePhase, following: Tensor, gamma: float, lam: float) -> Iterator[tuple[str, Tensor]]:
    """What common mistakes give instead, as (words, advantages)."""
    r = one.rollout
    done, ended = r.terminated | r.truncated, r.terminated.float()

    def backward(
        next_value: Tensor, stops: Tensor, cuts: Tensor, g: float = gamma, decay: float = gamma * lam
    ) -> Tensor:
        found, running = torch.zeros_like(r.value), torch.zeros_like(r.value[0])
        for t in reversed(range(len(r.value))):
            running = r.reward[t] + g * next_value[t] * (1 - stops[t].float()) - r.value[t] + decay * ~cuts[t] * running
            found[t] = running
        return found

    last = one.old_policy.value(one.state.obs)
    after_reset = torch.cat([r.value[1:], last[None]])
    yield (
        "a time limit counts as the end of the task: only terminated stops the bootstrap",
        backward(following, done, done),
    )
    yield (
        "after a time limit they bootstrap from the reset observation: use V(final_obs)",
        backward(after_reset, ended, done),
    )
    yield (
        "episode ends do not cut the trace: rewards of the next episode leak in",
        backward(following, ended, done & False),
    )
    yield "time limits do not cut the trace: cut it where done", backward(following, ended, r.terminated)
    yield "they bootstrap after the task has ended: multiply by ~terminated", backward(following, ended * 0, done)
    yield "the next value is off by one: it is V(s_t), not V(s_t+1)", backward(r.value, ended, done)
    yield "gamma is missing in delta", backward(following, ended, done, g=1.0)
    yield "lambda is missing: the trace decays by gamma alone", backward(following, ended, done, decay=gamma)
    yield "the trace does not decay: multiply by gamma lambda", backward(following, ended, done, decay=1.0)
    yield "gamma is missing in the decay of the trace", backward(following, ended, done, decay=lam)
    yield "there is no trace: only the first delta counts", backward(following, ended, done, decay=0.0)
    cut = torch.cat([done[1:], done[:1] | True])
    yield "episode ends are off by one: the trace is cut a step too early", backward(following, ended, cut)
    zero = torch.cat([following[:-1], torch.zeros_like(last)[None]])
    yield "the value after the last step is missing", backward(torch.where(done, following, zero), ended, done)


@torch.no_grad()
def ppo_minibatches(one: OnePhase) -> Iterator[str]:
    """Rows stay together, each occurs once in a pass, and advantages have mean 0 and deviation 1 in each minibatch."""
    config, r, size = one.config, one.rollout, one.config.minibatch_size
    if len(one.updates) != config.updates_per_phase:
        yield f"minibatches: {len(one.updates)} updates, expected update_epochs x num_minibatches = {config.updates_per_phase}"
        return
    seen: list[int] = []
    for k, update in enumerate(one.updates):
        index = rows_in_rollout(one, update.batch)
        if index is None:
            yield "minibatches: obs has rows that are not in the rollout"
            return
        if len(index) != size:
            yield f"minibatches: the first has {len(index)} rows, expected {size}"
            return
        for name in ("action", "log_prob", "value"):
            column, expected = getattr(update.batch, name), getattr(r, name).flatten(0, 1)[index]
            if column.shape != expected.shape:
                yield f"minibatches: {name} has shape {tuple(column.shape)}, expected {tuple(expected.shape)}: flatten (T, N)"
            elif not near(column, expected):
                yield f"minibatches: {name} is not of the same rows as obs: shuffle all columns by one permutation"
        seen += index.tolist()
        if (k + 1) % config.minibatches_per_epoch == 0:
            if sorted(seen) != list(range(config.batch_size)):
                yield "minibatches: a pass leaves out some rows and repeats others: cut one permutation into parts"
            seen = []
    yield from standardised(one)


def standardised(one: OnePhase) -> Iterator[str]:
    """Check the advantages of the first minibatch."""
    batch = one.updates[0].batch
    raw = batch.target - batch.value
    mean, std = raw.mean(), raw.std()
    expected = (raw - mean) / (std + 1e-8)
    if near(batch.advantage, expected):
        return
    every = torch.cat([u.batch.target - u.batch.value for u in one.updates[: one.config.minibatches_per_epoch]])
    guesses = [
        ("their sign is turned", -expected),
        ("they are not standardised (detail 7)", raw),
        ("the mean is not subtracted", raw / (std + 1e-8)),
        ("they are not divided by the standard deviation", raw - mean),
        ("they are divided by the variance, not by the standard deviation", (raw - mean) / (raw.var() + 1e-8)),
        (
            "they are standardised over the whole rollout, not in each minibatch",
            (raw - every.mean()) / (every.std() + 1e-8),
        ),
        ("the standard deviation is the biased one", (raw - mean) / (raw.std(correction=0) + 1e-8)),
        (
            "they are value targets: subtract the value",
            (batch.target - batch.target.mean()) / (batch.target.std() + 1e-8),
        ),
    ]
    for words, guess in guesses:
        if near(batch.advantage, guess):
            yield f"advantages of a minibatch: {words}"
            return
    yield f"advantages of a minibatch: not of the same rows as obs and target, or not standardised: {where(batch.advantage, expected)}"


# VPG ----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def vpg_returns(one: OnePhase) -> Iterator[str]:
    """Rewards to go of each first episode, less their mean over the episodes that still run at that step."""
    if not one.updates:
        yield "no minibatch went through state.runtime.backward"
        return
    r, gamma = one.rollout, one.config.gamma
    returns, alive = definitions.reward_to_go(r, gamma)
    mean = (returns * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
    batch = one.updates[0].batch
    index = rows_in_rollout(one, batch)
    if index is None or batch.target.shape != index.shape:
        return
    if hasattr(batch, "alive") and not torch.equal(batch.alive, alive.flatten()[index]):
        yield "alive: it does not mark the steps of the first episode, its last one included"
        return
    kept = alive.flatten()[index]

    def is_like(found: Tensor, x: Tensor) -> bool:
        return near(found[kept], x.flatten()[index][kept])

    if not is_like(batch.target, returns):
        wrong = next((words for words, x in wrong_returns(one) if is_like(batch.target, x)), None)
        wrong = wrong or where(batch.target[kept], returns.flatten()[index][kept])
        yield f"returns (discounted_returns): {wrong}"
        return
    if not is_like(batch.advantage, returns - mean):
        whole = (returns * alive).sum() / alive.sum()
        per_env = (returns * alive).sum(0, keepdim=True) / alive.sum(0, keepdim=True)
        guesses = [
            ("no baseline is subtracted", returns),
            ("the baseline is added: subtract it", returns + mean),
            (
                "it counts environments whose episode has ended: divide by the number alive",
                returns - (returns * alive).mean(1, keepdim=True),
            ),
            (
                "it is a mean over time, for each environment: take the mean over environments, for each step",
                returns - per_env,
            ),
            ("it is one mean for all steps", returns - whole),
            ("the sign of the advantage is turned", mean - returns),
        ]
        found = next((words for words, x in guesses if is_like(batch.advantage, x)), None)
        yield f"baseline (timestep_mean): {found or where(batch.advantage[kept], (returns - mean).flatten()[index][kept])}"


def wrong_returns(one: OnePhase) -> Iterator[tuple[str, Tensor]]:
    """What common mistakes give instead, as (words, returns)."""
    r, gamma = one.rollout, one.config.gamma
    done = r.terminated | r.truncated

    def backward(g: float, cut: Tensor, reward: Tensor = r.reward) -> Tensor:
        found, running = torch.zeros_like(reward), torch.zeros_like(reward[0])
        for t in reversed(range(len(reward))):
            running = reward[t] + g * ~cut[t] * running
            found[t] = running
        return found

    yield "episode ends do not cut the sum: rewards of the next episode leak in", backward(gamma, done & False)
    yield "rewards are not discounted: gamma is missing", backward(1.0, done)
    yield "time limits do not cut the sum: cut it where done", backward(gamma, r.terminated)
    yield "it is the reward alone, without the rewards that follow", r.reward
    yield "the sum starts one step late: G_t = r_t + gamma G_t+1", backward(gamma, done) - r.reward


@torch.no_grad()
def vpg_batches(one: OnePhase) -> Iterator[str]:
    """Whole trajectories, each once in a pass."""
    r, config = one.rollout, one.config
    if len(one.updates) != config.updates_per_phase:
        yield f"minibatches: {len(one.updates)} updates, expected rollout_uses x num_batches = {config.updates_per_phase}"
        return
    for update in one.updates:
        index = rows_in_rollout(one, update.batch)
        if index is None:
            yield "minibatches: obs has rows that are not in the rollout"
            return
        for name in ("action", "log_prob"):
            if not near(getattr(update.batch, name), getattr(r, name).flatten(0, 1)[index]):
                yield f"minibatches: {name} is not of the same rows as obs: shuffle all columns by one permutation"
                return
