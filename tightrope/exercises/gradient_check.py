"""The stages of `phase_check` that look at gradients, steps, schedules and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import definitions, mistakes
from .comparing import agrees, first_difference
from .one_phase import OnePhase, Update

NAMES = ("surrogate", "value loss", "entropy bonus")


def ppo_gradient(one: OnePhase) -> Iterator[str]:
    """The gradient is -g_surrogate + vf_coef g_value - ent_coef g_entropy."""
    clip = float(getattr(one.config, "clip_coef", 0.2))
    for update in one.updates:
        policy = one.policy_with(update.before)
        distribution, value = policy(update.batch.obs)
        log_prob = distribution.log_prob(update.batch.action)
        critic = (value - update.batch.target).square().mean() / 2
        entropy = distribution.entropy(update.batch.action).mean()
        parts = [definitions.gradient_of(x, policy) for x in (critic, entropy)]
        right = definitions.gradient_of(definitions.surrogate_by_cases(log_prob, update.batch, clip), policy)
        guesses = {}
        for words, wrong in wrong_surrogates(log_prob, update, clip):
            guesses[words] = definitions.gradient_of(wrong, policy)
        found = list(wrong_gradient(one, update, [right, *parts], guesses))
        yield from found
        if found:
            return


def wrong_surrogates(log_prob: Tensor, update: Update, clip: float) -> Iterator[tuple[str, Tensor]]:
    """What common mistakes give instead of the clipped surrogate."""
    batch = update.batch
    for words, wrong in mistakes.SURROGATE.items():
        yield words, wrong(log_prob, batch.log_prob, batch.advantage, clip)


def wrong_gradient(
    one: OnePhase, update: Update, components: list[Tensor], guesses: dict[str, Tensor]
) -> Iterator[str]:
    """Compare a gradient with the weighted sum of its components: what differs is found by least squares."""
    weights = weights_of(one)
    expected = combined(weights, components)
    if agrees(update.grad, expected):
        return
    k = one.updates.index(update)
    fitted, residual = fit(update.grad, components)
    if residual < 0.01:
        for name, weight, got in zip(NAMES, weights, fitted, strict=True):
            if abs(got - weight) > 0.02 * max(1.0, abs(weight)):
                yield f"{name}: {about_weight(got, weight)}"
                return
    if k and agrees(update.grad - one.updates[k - 1].grad, expected, 2e-2):
        yield "the gradients of several minibatches add up: set the gradient to zero before each (zero_grad)"
        return
    for words, guess in guesses.items():
        if fit(update.grad, [guess, *components[1:]])[1] < 0.01:
            yield f"surrogate: {words}"
            return
    actor = all(agrees(update.grad[c == 0], expected[c == 0]) for c in components[:1])
    place = "surrogate or entropy bonus" if actor else "value loss"
    yield f"{place}: the gradient of minibatch {k} is {1 + residual:.0%} off: is something detached, or not detached?"


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
    clamp = float(getattr(one.config, "weight_clamp", 0.0) or 0.0)
    for update in one.updates:
        policy, batch = one.policy_with(update.before), update.batch
        alive = batch.alive if hasattr(batch, "alive") else torch.ones_like(batch.advantage, dtype=torch.bool)
        distribution, _ = policy(batch.obs)
        log_prob = distribution.log_prob(batch.action)
        entropy = distribution.entropy(batch.action)
        ratio = (log_prob - batch.log_prob).exp()
        weight, kept = ratio.detach(), alive.float() / alive.sum()
        within = weight.clamp(1 - clamp, 1 + clamp)
        guesses = {
            "the importance weight is upside down: it is pi / pi_old": 1 / weight * log_prob,
            "the importance weight is not detached: its gradient counts too": ratio.clamp(1 - clamp, 1 + clamp)
            * log_prob,
            "the importance weights are not clamped": weight * log_prob,
            "there are no importance weights, although the rollout is reused": log_prob,
            "the importance weight is pi alone, it must be pi / pi_old": log_prob.detach().exp() * log_prob,
            "it holds the probability, not its logarithm": within * log_prob.exp(),
        }
        terms = definitions.weighted_gradient(log_prob, batch, alive, clamp), (entropy * kept).sum()
        gradients = [definitions.gradient_of(x, policy) for x in terms]
        found = {
            words: definitions.gradient_of((x * batch.advantage * kept).sum(), policy) for words, x in guesses.items()
        }
        padding = "steps after the end of an episode count: take the mean over `alive`"
        found[padding] = definitions.gradient_of((within * log_prob * batch.advantage).mean(), policy)
        wrong = list(wrong_gradient(one, update, [gradients[0], torch.zeros_like(gradients[0]), gradients[1]], found))
        yield from wrong
        if wrong:
            return


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
    offset, still = 0, {}
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
        obs = obs[definitions.reward_to_go(rollout, 1.0)[1].flatten()]
    if not agrees(now.mean, obs.mean(0)) or not agrees(now.variance, obs.var(0, correction=0)):
        seen = "was not updated" if not int(now.count) else f"has seen {int(now.count)} rows, expected these {len(obs)}"
        yield f"statistics: the normalizer of observations {seen}: runtime.update_statistics after learning (detail 28)"
