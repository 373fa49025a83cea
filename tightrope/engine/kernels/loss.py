"""PPO's loss in kernels: its gradient at the outputs of the networks, for a tile of rows.

`loss_kernel` writes that gradient for networks whose layers are kernels of their own (layers.py); learn.py goes on with it in
the same kernel. Several choices (MultiDiscrete) are handled one after another, each of OUT options.
"""

import triton
import triton.language as tl

from .blocks import (
    EVERYWHERE,
    HALF_LOG_2PI,
    clamp,
    deviations,
    gaussian_log_prob,
    log_deviations,
    log_softmax,
    one_hot_action,
)  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def loss_kernel(
    output, value, output_grad, value_grad, action, old_log_prob, old_value, advantage, target, clip, vf_coef, ent_coef,
    flat, parts, rows,
    STRIDE: tl.constexpr, LOG_STD: tl.constexpr, OUT: tl.constexpr, PAD_OUT: tl.constexpr, CHOICES: tl.constexpr,
    GAUSSIAN: tl.constexpr, CLIP_IS_STORED: tl.constexpr, BONUS_IS_STORED: tl.constexpr, CLIP_VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients with respect to the policy head's outputs (rows, CHOICES * OUT) and the values (rows,). Each program
    writes a row of `parts`: the terms of the loss, in the order of layout.TERMS, then the gradient of log_std."""
    epsilon = tl.load(clip) if CLIP_IS_STORED else clip
    bonus = tl.load(ent_coef) if BONUS_IS_STORED else ent_coef
    r, o = tl.arange(0, BLOCK), tl.arange(0, PAD_OUT)
    first = tl.program_id(0) * BLOCK
    valid = r < rows - first
    old = tl.load(old_log_prob + first + r, mask=valid, other=0.0)
    worth = tl.load(advantage + first + r, mask=valid, other=0.0)
    if CHOICES > 1:
        loss, entropy, divergence, clipped = choices_gradient(
            output, output_grad, old, worth, action, epsilon, bonus, valid, first, rows, OUT, PAD_OUT, CHOICES, BLOCK
        )
    else:
        at = (first.to(tl.int64) + r[:, None]) * OUT + o[None, :]
        inside = valid[:, None] & (o[None, :] < OUT)
        y = tl.load(output + at, mask=inside, other=0.0)
        log_std = log_deviations(flat, LOG_STD, OUT, PAD_OUT)
        gy, spread, loss, entropy, divergence, clipped = policy_head_gradient(
            y, log_std, old, worth, action, epsilon, bonus, valid, first, rows, OUT, PAD_OUT, GAUSSIAN, BLOCK
        )
        tl.store(output_grad + at, gy, mask=inside)
        tl.store(parts + tl.program_id(0) * STRIDE + 5 + o, spread, mask=o < OUT)
    v = tl.load(value + first + r, mask=valid, other=0.0)
    gv, value_loss = value_head_gradient(v, old_value, target, epsilon, vf_coef, valid, first, rows, CLIP_VALUE, BLOCK)
    tl.store(value_grad + first + r, gv, mask=valid)
    part, share = parts + tl.program_id(0) * STRIDE, 1.0 / rows
    tl.store(part, tl.sum(tl.where(valid, loss, 0.0), 0) * share)
    tl.store(part + 1, tl.sum(tl.where(valid, value_loss, 0.0), 0) * (0.5 * share))
    tl.store(part + 2, tl.sum(tl.where(valid, entropy, 0.0), 0) * share)
    tl.store(part + 3, tl.sum(tl.where(valid, divergence, 0.0), 0) * share)
    tl.store(part + 4, tl.sum(tl.where(valid & clipped, 1.0, 0.0), 0) * share)


@triton.jit
def choices_gradient(
    output, output_grad, old, worth, action, epsilon, ent_coef, valid, first, rows,
    OUT: tl.constexpr, PAD_OUT: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write for a tile of rows the gradient with respect to the logits of all choices. Return for each row loss, entropy,
    divergence and whether the ratio is outside its interval."""
    r, o = tl.arange(0, BLOCK), tl.arange(0, PAD_OUT)
    row, share = first.to(tl.int64) + r, 1.0 / rows
    log_ratio, entropy = -old, tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(CHOICES):
        log_probs, probs, taken = choice(output, action, row, valid, k, OUT, PAD_OUT, CHOICES)
        log_ratio += tl.sum(tl.where(taken, log_probs, 0.0), 1)
        entropy -= tl.sum(probs * log_probs, 1)
    weight, loss, clipped = surrogate(log_ratio, worth, epsilon)
    weight, bonus = tl.where(valid, weight * share, 0.0), tl.where(valid, ent_coef * share, 0.0)
    for k in tl.static_range(CHOICES):
        log_probs, probs, taken = choice(output, action, row, valid, k, OUT, PAD_OUT, CHOICES)
        gy = logits_gradient(log_probs, probs, taken, -tl.sum(probs * log_probs, 1), weight, bonus)
        at = (row[:, None] * CHOICES + k) * OUT + o[None, :]
        tl.store(output_grad + at, gy, mask=valid[:, None] & (o[None, :] < OUT))
    return loss, entropy, divergence_of(log_ratio), clipped


@triton.jit
def choice(output, action, row, valid, k, OUT: tl.constexpr, PAD_OUT: tl.constexpr, CHOICES: tl.constexpr):
    """Return of one choice log-probabilities, probabilities and the option taken, as one-hot booleans."""
    o = tl.arange(0, PAD_OUT)[None, :]
    at = (row[:, None] * CHOICES + k) * OUT + o
    y = tl.load(output + at, mask=valid[:, None] & (o < OUT), other=0.0)
    log_probs, probs = log_softmax(y, OUT, PAD_OUT)
    return log_probs, probs, o == tl.load(action + row * CHOICES + k, mask=valid, other=0)[:, None]


@triton.jit
def logits_gradient(log_probs, probs, taken, entropy, weight, bonus):
    """Return the gradient at the logits of one choice. It is 0 for an option of probability 0."""
    gy = weight[:, None] * (tl.where(taken, 1.0, 0.0) - probs)
    return gy + bonus[:, None] * probs * (log_probs + entropy[:, None])


@triton.jit
def policy_head_gradient(
    y, log_std, old, worth, action, epsilon, ent_coef, valid, first, rows,
    OUT: tl.constexpr, PAD_OUT: tl.constexpr, GAUSSIAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return for a tile of rows the gradient with respect to the head's output y and, summed, to log_std, and for each row
    loss, entropy, divergence and whether the ratio is outside its interval."""
    share = 1.0 / rows
    if GAUSSIAN:
        z = deviations(y, action, log_std, first, rows, BLOCK, OUT, PAD_OUT)
        log_ratio = gaussian_log_prob(z, log_std, OUT, PAD_OUT) - old
        weight, loss, clipped = surrogate(log_ratio, worth, epsilon)
        weight = tl.where(valid, weight * share, 0.0)[:, None]
        gy = weight * z * tl.exp(-log_std)[None, :]
        spread = tl.sum(weight * (z * z - 1) - tl.where(valid, ent_coef * share, 0.0)[:, None], 0)
        exists = tl.arange(0, PAD_OUT) < OUT
        entropy = tl.sum(tl.where(exists, log_std + 0.5 + HALF_LOG_2PI, 0.0), 0) + tl.zeros((BLOCK,), tl.float32)
    else:
        log_probs, probs = log_softmax(y, OUT, PAD_OUT)
        taken = one_hot_action(action, first, rows, BLOCK, PAD_OUT)
        log_ratio = tl.sum(tl.where(taken, log_probs, 0.0), 1) - old
        weight, loss, clipped = surrogate(log_ratio, worth, epsilon)
        weight = tl.where(valid, weight * share, 0.0)
        entropy = -tl.sum(probs * log_probs, 1)
        bonus = tl.where(valid, ent_coef * share, 0.0)
        gy = logits_gradient(log_probs, probs, taken, entropy, weight, bonus)
        spread = tl.zeros((PAD_OUT,), tl.float32)
    return gy, spread, loss, entropy, divergence_of(log_ratio), clipped


@triton.jit
def surrogate(log_ratio, advantage, epsilon):
    """Return for each row d loss / d log-probability, the loss, and whether the ratio is outside its interval."""
    ratio = tl.exp(log_ratio)
    plain = ratio * advantage
    kept = clamp(ratio, 1 - epsilon, 1 + epsilon) * advantage
    return tl.where(plain <= kept, -plain, 0.0), -tl.minimum(plain, kept, EVERYWHERE), tl.abs(ratio - 1) > epsilon


@triton.jit
def divergence_of(x):
    """Return e^x - 1 - x, for small x by its series, to avoid cancellation."""
    series = x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040)))))
    return tl.where(tl.abs(x) < 0.25, series, tl.exp(x) - 1 - x)


@triton.jit
def value_head_gradient(
    value, old_value, target, epsilon, vf_coef, valid, first, rows, CLIP_VALUE: tl.constexpr, BLOCK: tl.constexpr
):
    """Return for each row the gradient with respect to the value, and its loss (without the factor 1/2)."""
    r = tl.arange(0, BLOCK)
    goal = tl.load(target + first + r, mask=valid, other=0.0)
    error = value - goal
    loss = error * error
    gy = tl.where(valid, error * (vf_coef * (1.0 / rows)), 0.0)
    if CLIP_VALUE:
        old = tl.load(old_value + first + r, mask=valid, other=0.0)
        near = old + clamp(value - old, -epsilon, epsilon) - goal
        # within the interval the two errors are equal up to rounding
        gy = tl.where((loss >= near * near) | (tl.abs(value - old) <= epsilon), gy, 0.0)
        loss = tl.maximum(loss, near * near, EVERYWHERE)
    return gy, loss
