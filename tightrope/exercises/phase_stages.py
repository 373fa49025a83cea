"""The stages of `phase_check` that look at advantages and minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from ..types import Batch
from . import definitions
from .comparing import agrees, first_difference
from .mistakes import GAE, RETURNS, traced
from .one_phase import OnePhase

Guess = tuple[str, Tensor]  # words for a mistake, and what it gives

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
    expected = definitions.advantages(r.reward, r.value, following, r.terminated, r.done, gamma, lam)
    batch = one.updates[0].batch
    index = rows_in_rollout(one, batch)
    if index is None or batch.target.shape != index.shape:
        return  # what the minibatches hold is looked at next
    value = r.value.flatten()[index]
    if not agrees(batch.value, value):
        return
    found = batch.target - value

    def is_like(x: Tensor) -> bool:
        return agrees(found, x.flatten()[index])

    if is_like(expected):
        return
    if words := words_that_fit(wrong_advantages(one, following, gamma, lam), is_like):
        yield f"advantages (GAE, successor_values): {words}"
        return
    targets = [
        ("the advantage alone, it must be advantage + value (detail 5)", expected),
        ("the critic's own value, from which it learns nothing", r.value),
        ("the reward of one step, it must be advantage + value", r.reward),
    ]
    if words := words_that_fit(targets, lambda x: agrees(batch.target, x.flatten()[index])):
        yield f"value targets: target is {words}"
    else:
        difference = first_difference(found, expected.flatten()[index])
        yield f"advantages or value targets: target - value, {difference} by the sum of (gamma lambda)^l delta"


def words_that_fit(guesses: Iterable[Guess], fits: Callable[[Tensor], bool]) -> str | None:
    """The words of the first guess that fits."""
    return next((words for words, guess in guesses if fits(guess)), None)


def wrong_advantages(one: OnePhase, following: Tensor, gamma: float, lam: float) -> Iterator[Guess]:
    """What common mistakes give instead."""
    r, last = one.rollout, one.old_policy.value(one.state.obs)

    def with_next(value: Tensor) -> Tensor:
        return traced(r.reward, r.value, value, r.terminated, r.done, gamma, gamma * lam)

    after_reset = torch.cat([r.value[1:], last[None]])
    yield "after a time limit they bootstrap from the reset observation: use V(final_obs)", with_next(after_reset)
    late = torch.where(r.done, following, torch.cat([r.value[:-1], last[None]]))
    yield "the next value is off by one: it is V(s_t), where V(s_{t+1}) belongs", with_next(late)
    no_future = torch.where(r.truncated, 0.0, following)
    words = "after a time limit they bootstrap from 0: it is not the end of the task, use V(final_obs)"
    yield words, with_next(no_future)
    for words, wrong in GAE.items():
        yield words, wrong(r.reward, r.value, following, r.terminated, r.done, gamma, lam)


@torch.no_grad()
def ppo_minibatches(one: OnePhase) -> Iterator[str]:
    """Rows stay together, each occurs once in a pass, and advantages have mean 0 and deviation 1 in each minibatch."""
    config, r, size = one.config, one.rollout, one.config.minibatch_size
    if len(one.updates) != config.updates_per_phase:
        yield f"minibatches: {len(one.updates)} updates, expected update_epochs x num_minibatches = {config.updates_per_phase}"
        return
    first, time_order = rows_in_rollout(one, one.updates[0].batch), list(range(config.batch_size))
    if first is not None and first.tolist() == time_order[: len(first)]:
        yield "minibatches: rows are in the order of time: shuffle them (batch.order, detail 6)"
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
            elif not agrees(column, expected):
                yield f"minibatches: {name} is not of the same rows as obs: shuffle all columns by one permutation"
        seen += index.tolist()
        if (k + 1) % config.minibatches_per_epoch == 0:
            if sorted(seen) != time_order:
                yield "minibatches: a pass leaves out some rows and repeats others: cut one permutation into parts"
            seen = []
    yield from standardised(one)


def standardised(one: OnePhase) -> Iterator[str]:
    """Check the advantages of the first minibatch."""
    batch = one.updates[0].batch
    raw = batch.target - batch.value
    mean, std = raw.mean(), raw.std()
    expected = (raw - mean) / (std + 1e-8)
    if agrees(batch.advantage, expected):
        return
    every = torch.cat([u.batch.target - u.batch.value for u in one.updates[: one.config.minibatches_per_epoch]])
    over_all = (raw - every.mean()) / (every.std() + 1e-8)
    of_targets = (batch.target - batch.target.mean()) / (batch.target.std() + 1e-8)
    guesses = [
        ("their sign is turned", -expected),
        ("they are not standardised (detail 7)", raw),
        ("the mean is not subtracted", raw / (std + 1e-8)),
        ("they are not divided by the standard deviation", raw - mean),
        ("they are divided by the variance, not by the standard deviation", (raw - mean) / (raw.var() + 1e-8)),
        ("they are standardised over the whole rollout, not in each minibatch", over_all),
        ("the standard deviation is the biased one", (raw - mean) / (raw.std(correction=0) + 1e-8)),
        ("they are value targets: subtract the value", of_targets),
    ]
    words = words_that_fit(guesses, lambda guess: agrees(batch.advantage, guess))
    if words is None:
        difference = first_difference(batch.advantage, expected)
        words = f"not of the same rows as obs and target, or not standardised: {difference}"
    yield f"advantages of a minibatch: {words}"


# VPG ----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def vpg_returns(one: OnePhase) -> Iterator[str]:
    """Rewards to go of each first episode, less their mean over the episodes that still run at that step."""
    if not one.updates:
        yield "no minibatch went through state.runtime.backward"
        return
    r, gamma = one.rollout, one.config.gamma
    alive = definitions.first_episodes(r)
    returns = definitions.returns(r.reward, r.terminated, r.done, torch.zeros_like(r.reward), gamma)
    mean = (returns * alive).sum(1, keepdim=True) / alive.sum(1, keepdim=True).clamp(min=1)
    batch = one.updates[0].batch
    index = rows_in_rollout(one, batch)
    if index is None or batch.target.shape != index.shape:
        return
    if not agrees(batch.log_prob, r.log_prob.flatten()[index]):
        return
    if hasattr(batch, "alive") and not torch.equal(batch.alive, alive.flatten()[index]):
        yield "alive: it does not mark the steps of the first episode, its last one included"
        return
    kept = alive.flatten()[index]

    def is_like(found: Tensor, x: Tensor) -> bool:
        return agrees(found[kept], x.flatten()[index][kept])

    if not is_like(batch.target, returns):
        wrong = [
            (words, f(r.reward, r.terminated, r.done, torch.zeros_like(r.reward), gamma))
            for words, f in RETURNS.items()
        ]
        words = words_that_fit(wrong, lambda x: is_like(batch.target, x))
        yield f"returns (discounted_returns): {words or first_difference(batch.target[kept], returns.flatten()[index][kept])}"
    elif not is_like(batch.advantage, returns - mean):
        words = words_that_fit(wrong_baselines(returns, alive, mean), lambda x: is_like(batch.advantage, x))
        right = (returns - mean).flatten()[index][kept]
        yield f"baseline (timestep_mean): {words or first_difference(batch.advantage[kept], right)}"


def wrong_baselines(returns: Tensor, alive: Tensor, mean: Tensor) -> list[Guess]:
    """What common mistakes give for advantages, whose baseline is this mean."""
    total = returns * alive
    return [
        ("no baseline is subtracted", returns),
        ("the baseline is added: subtract it", returns + mean),
        ("it counts environments whose episode has ended: divide by the number alive", returns - total.mean(1, keepdim=True)),
        ("it is a mean over time, for each environment: take the mean over environments, for each step",
         returns - total.sum(0, keepdim=True) / alive.sum(0, keepdim=True)),
        ("it is one mean for all steps", returns - total.sum() / alive.sum()),
        ("the sign of the advantage is turned", mean - returns),
    ]  # fmt: skip


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
            if not agrees(getattr(update.batch, name), getattr(r, name).flatten(0, 1)[index]):
                yield f"minibatches: {name} is not of the same rows as obs: shuffle all columns by one permutation"
                return
