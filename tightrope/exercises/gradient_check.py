"""The stages of `phase_check` that look at gradients, steps, schedules and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import ActorCritic
from . import definitions, mistakes
from .comparing import agrees, first_difference
from .one_phase import OnePhase, Update

NAMES = ("surrogate", "value loss", "entropy bonus")


@dataclass(frozen=True)
class GradientParts:
    """The gradients of the terms of a loss for one minibatch, and of what common mistakes give in place of the first."""

    policy: ActorCritic
    components: list[Tensor]  # surrogate, value loss, entropy bonus
    guesses: dict[str, Tensor]  # not yet differentiated


def ppo_gradient(one: OnePhase) -> Iterator[str]:
    """The gradient is -g_surrogate + vf_coef g_value - ent_coef g_entropy."""
    yield from wrong_gradients(one, [ppo_parts(one, update) for update in one.updates])


def ppo_parts(one: OnePhase, update: Update) -> GradientParts:
    clip, batch = float(getattr(one.config, "clip_coef", 0.2)), update.batch
    policy = one.policy_with(update.before)
    distribution, value = policy(batch.obs)
    log_prob = distribution.log_prob(batch.action)
    given = log_prob, batch.log_prob, batch.advantage, clip
    critic, entropy = (value - batch.target).square().mean() / 2, distribution.entropy(batch.action).mean()
    terms = definitions.surrogate_by_cases(*given), critic, entropy
    guesses = {words: wrong(*given) for words, wrong in mistakes.SURROGATE.items()}
    return GradientParts(policy, [definitions.gradient_of(x, policy) for x in terms], guesses)


def wrong_gradients(one: OnePhase, parts: Sequence[GradientParts]) -> Iterator[str]:
    """Compare each gradient with the weighted sum of its components. What differs is found by least squares."""
    weights, updates = weights_of(one), one.updates
    expected = [combined(weights, part.components) for part in parts]
    wrong = [k for k, update in enumerate(updates) if not agrees(update.grad, expected[k])]
    if not wrong:
        return
    k = wrong[0]
    fitted, residual = fit(updates[k].grad, parts[k].components)
    changed = (
        f"{name}: {about_weight(got, weight)}"
        for name, weight, got in zip(NAMES, weights, fitted, strict=True)
        if residual < 0.01 and abs(got - weight) > 0.02 * max(1.0, abs(weight))
    )
    if first := next(changed, None):
        yield first
    elif len(updates) > 1 and agrees(updates[1].grad - updates[0].grad, expected[1], 2e-2):
        yield "the gradients of several minibatches add up: set the gradient to zero before each (zero_grad)"
    elif guess := next((words for words in parts[0].guesses if explains(words, one, parts)), None):
        yield f"surrogate: {guess}"
    else:
        actor = not agrees(updates[k].grad[: one.actor_size], expected[k][: one.actor_size])
        place = "surrogate or entropy bonus" if actor else "value loss"
        yield f"{place}: the gradient of minibatch {k} is wrong: is something detached, or not detached?"


def explains(words: str, one: OnePhase, parts: Sequence[GradientParts]) -> bool:
    """Whether a guess in place of the surrogate gives all gradients of the phase."""
    weights = weights_of(one)
    for update, part in zip(one.updates, parts, strict=True):
        guess = definitions.gradient_of(part.guesses[words], part.policy)
        if not agrees(update.grad, combined(weights, [guess, *part.components[1:]]), 2e-2):
            return False
    return True


def weights_of(one: OnePhase) -> tuple[float, ...]:
    """Of surrogate, value loss and entropy bonus in the loss."""
    has_critic = one.old_policy.critic is not None
    return -1.0, one.config.vf_coef * has_critic, -float(getattr(one.config, "ent_coef", 0.0))


def combined(weights: Sequence[float], components: Sequence[Tensor]) -> Tensor:
    return torch.stack([w * c for w, c in zip(weights, components, strict=True)]).sum(0)


def fit(grad: Tensor, components: list[Tensor]) -> tuple[list[float], float]:
    """The weights of the components that come nearest to a gradient, and the relative distance that remains."""
    matrix = torch.stack(components, 1).double()
    found = torch.linalg.pinv(matrix) @ grad.double()
    rest = (matrix @ found - grad.double()).norm() / grad.double().norm().clamp(min=1e-12)
    return found.tolist(), float(rest)


def about_weight(got: float, weight: float) -> str:
    if abs(got) < 0.02:
        return f"it has no gradient, where its weight in the loss is {weight:+.3g}: is it left out, or detached?"
    if abs(got + weight) < 0.05 * abs(weight):
        return f"its sign is turned: its weight in the loss is {weight:+.3g}, here {got:+.3g}"
    return f"its weight in the loss is {got:+.3g}, expected {weight:+.3g}"


def vpg_gradient(one: OnePhase) -> Iterator[str]:
    """The gradient is -g_policy - ent_coef g_entropy over the steps of the episodes."""
    yield from wrong_gradients(one, [vpg_parts(one, update) for update in one.updates])


def vpg_parts(one: OnePhase, update: Update) -> GradientParts:
    policy, batch = one.policy_with(update.before), update.batch
    alive, clamp = definitions.alive_of(batch), float(getattr(one.config, "weight_clamp", 0.0) or 0.0)
    distribution, _ = policy(batch.obs)
    log_prob, kept = distribution.log_prob(batch.action), alive.float() / alive.sum()
    ratio = (log_prob - batch.log_prob).exp()
    wrong_weights = {
        "the importance weight is not detached: its gradient counts too": mistakes.within(ratio, clamp),
        "there are no importance weights, although the rollout is reused": torch.ones_like(ratio),
    }
    for words, wrong in mistakes.WEIGHTS.items():
        wrong_weights[f"importance weights: {words}"] = wrong(log_prob, batch.log_prob, clamp).detach()
    guesses = {words: (w * log_prob * batch.advantage * kept).sum() for words, w in wrong_weights.items()}
    weight = mistakes.within(ratio, clamp).detach()
    for words, gradient in mistakes.GRADIENT.items():
        guesses[words] = gradient(log_prob, batch.advantage, weight, alive)
    terms = (
        definitions.reinforce(log_prob, batch.advantage, weight, alive),
        0 * log_prob.sum(),
        (distribution.entropy(batch.action) * kept).sum(),
    )
    return GradientParts(policy, [definitions.gradient_of(x, policy) for x in terms], guesses)


# step, schedule, statistics ---------------------------------------------------------------------------------------------


def step_stage(one: OnePhase) -> Iterator[str]:
    """Adam on the clipped gradient."""
    updates, limit = one.updates, one.config.max_grad_norm or float("inf")
    rates, grads = [u.learning_rate for u in updates], [u.grad for u in updates]
    found, start = [u.after for u in updates], updates[0].before
    expected = definitions.adam(grads, start, rates, limit)
    if all(agrees(a - start, b - start, 2e-2) for a, b in zip(found, expected, strict=True)):
        return
    moved, must = found[0] - start, expected[0] - start
    if not moved.any():
        yield "optimizer: the first step moves no parameter: is the learning rate 0, or the step left out?"
    elif agrees(-moved, must, 2e-2):
        yield "optimizer: parameters move up the gradient of the loss: subtract the step"
    elif still := unmoved(one, moved):
        yield f"optimizer: the parameters of {still} do not move: are they in the optimizer?"
    elif agrees(found[-1] - start, definitions.adam(grads, start, rates, limit, clips=False)[-1] - start, 2e-2):
        yield f"optimizer: the gradient's norm is not limited to max_grad_norm {limit:g} (detail 11)"
    else:
        size = (
            f"{float(moved.norm() / must.norm()):.2f} times as long as that of Adam (epsilon 1e-5, detail 3), or turned"
        )
        yield f"optimizer: the first step is {size}: {first_difference(moved, must)}"


def unmoved(one: OnePhase, moved: Tensor) -> str:
    """The part of the policy whose parameters stayed, although it has a gradient."""
    offset, still = 0, dict[str, bool]()
    for name, p in one.old_policy.named_parameters():
        part, grad = moved[offset : offset + p.numel()], one.updates[0].grad[offset : offset + p.numel()]
        offset += p.numel()
        if grad.any():
            top = name.partition(".")[0]
            still[top] = still.get(top, True) and not part.any()
    return ", ".join(name for name, stays in still.items() if stays)


def schedule_stage(one: OnePhase) -> Iterator[str]:
    """The learning rate falls linearly, phase by phase."""
    first = one.config.value_after("learning_rate", 0)
    given = {u.learning_rate for u in one.updates}
    if any(abs(rate - first) > 1e-6 for rate in given):
        yield f"schedule: the learning rate of the first phase is {max(given):g}, expected {first:g}"
    steps = one.config.batch_size
    total = one.config.run_steps
    expected, now = first * (1 - steps / total), float(one.state.optimizer.learning_rate)
    if abs(now - expected) > 1e-6:
        yield f"schedule: after {steps} of {total} steps the learning rate is {now:g}, expected {expected:g} (detail 4)"


def statistics_stage(one: OnePhase) -> Iterator[str]:
    """The normalizer of observations has seen the rollout, after learning from it."""
    now, rollout = one.state.policy.normalizer, one.rollout
    if now is None:
        return
    obs = rollout.obs.flatten(0, 1)
    if one.config.by_trajectory:
        obs = obs[definitions.first_episodes(rollout).flatten()]
    if not agrees(now.mean, obs.mean(0)) or not agrees(now.variance, obs.var(0, correction=0)):
        seen = "was not updated" if not int(now.count) else f"has seen {int(now.count)} rows, expected these {len(obs)}"
        yield f"statistics: the normalizer of observations {seen}: runtime.update_statistics after learning (detail 28)"
