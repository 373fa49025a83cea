"""The kernel of PPO's gradient.

Each program iterates over tiles of rows, with the weight gradients of its network in on-chip memory. It writes one row of
partial sums: its part of the gradient, then of the loss's terms. `sum_kernel` adds the rows in a fixed order, so that the same
shapes give the same bits.
"""

import triton
import triton.language as tl

from .blocks import (
    column,
    first_hidden,
    first_linear,
    hidden,
    load_linear,
    load_observations,
    log_deviations,
    product,
    slope,
    write_first_linear,
    write_linear,
)  # fmt: skip
from .loss import policy_head_gradient, value_head_gradient


@triton.jit(do_not_specialize=["rows"])
def gradient_kernel(
    obs, mean, variance, action, old_log_prob, old_value, advantage, target, clip, vf_coef, ent_coef, flat, parts, rows,
    SIZE: tl.constexpr, STRIDE: tl.constexpr,
    ACTOR_1: tl.constexpr, ACTOR_2: tl.constexpr, HEAD: tl.constexpr, CRITIC_1: tl.constexpr, CRITIC_2: tl.constexpr,
    VALUE_HEAD: tl.constexpr, LOG_STD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_OUT: tl.constexpr,
    RELU: tl.constexpr, GAUSSIAN: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr,
    CLIP_IS_STORED: tl.constexpr, BONUS_IS_STORED: tl.constexpr, CLIP_VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Run programs (i, 0) for the actor and (i, 1) for the critic. Both fill row i of `parts`."""
    epsilon = tl.load(clip) if CLIP_IS_STORED else clip
    bonus = tl.load(ent_coef) if BONUS_IS_STORED else ent_coef
    part = parts + tl.program_id(0) * STRIDE
    if tl.program_id(1) == 0:
        actor(
            obs, mean, variance, action, old_log_prob, advantage, epsilon, bonus, flat, part, rows,
            SIZE, ACTOR_1, ACTOR_2, HEAD, LOG_STD, IN, WIDTH, OUT, PAD_IN, PAD_WIDTH, PAD_OUT,
            RELU, GAUSSIAN, NORMALIZE, PRECISION, BLOCK,
        )  # fmt: skip
    else:
        critic(
            obs, mean, variance, old_value, target, epsilon, vf_coef, flat, part, rows,
            SIZE, CRITIC_1, CRITIC_2, VALUE_HEAD, IN, WIDTH, PAD_IN, PAD_WIDTH,
            RELU, NORMALIZE, PRECISION, CLIP_VALUE, BLOCK,
        )  # fmt: skip


@triton.jit
def actor(
    obs, mean, variance, action, old_log_prob, advantage, epsilon, ent_coef, flat, part, rows,
    SIZE: tl.constexpr, ACTOR_1: tl.constexpr, ACTOR_2: tl.constexpr, HEAD: tl.constexpr, LOG_STD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_OUT: tl.constexpr,
    RELU: tl.constexpr, GAUSSIAN: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of surrogate and entropy bonus with respect to the actor's parameters."""
    w1 = first_linear(flat, ACTOR_1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    w2, b2 = load_linear(flat, ACTOR_2, WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    w3, b3 = load_linear(flat, HEAD, WIDTH, OUT, PAD_WIDTH, PAD_OUT)
    log_std = log_deviations(flat, LOG_STD, OUT, PAD_OUT) if GAUSSIAN else b3
    gw1 = tl.zeros((PAD_WIDTH, PAD_IN), tl.float32)
    gw2, gb2 = tl.zeros((PAD_WIDTH, PAD_WIDTH), tl.float32), tl.zeros((PAD_WIDTH, 16), tl.float32)
    gw3, gb3 = tl.zeros((PAD_WIDTH, PAD_OUT), tl.float32), tl.zeros((PAD_OUT,), tl.float32)
    g_log_std = tl.zeros((PAD_OUT,), tl.float32)
    losses, entropies = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    divergences, outside = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    r = tl.arange(0, BLOCK)
    ones = tl.full((BLOCK, 16), 1.0, tl.float32)
    share = 1.0 / rows
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        first = tile * BLOCK
        valid = r < rows - first
        x = load_observations(obs, mean, variance, first, rows, IN, PAD_IN, NORMALIZE, BLOCK)
        h1 = first_hidden(x, w1, RELU, PRECISION)
        h2 = hidden(h1, w2, b2, RELU, PRECISION)
        y = product(h2, w3, False, False, PRECISION) + b3[None, :]
        old = tl.load(old_log_prob + first + r, mask=valid, other=0.0)
        worth = tl.load(advantage + first + r, mask=valid, other=0.0)

        gy, spread, loss, entropy, divergence, clipped = policy_head_gradient(
            y, log_std, old, worth, action, epsilon, ent_coef, valid, first, rows, OUT, PAD_OUT, GAUSSIAN, BLOCK
        )
        if GAUSSIAN:
            g_log_std += spread
        losses += tl.where(valid, loss, 0.0)
        entropies += tl.where(valid, entropy, 0.0)
        divergences += tl.where(valid, divergence, 0.0)
        outside += tl.where(valid & clipped, 1.0, 0.0)

        # and through the layers
        gw3 += product(h2, gy, True, False, PRECISION)
        gb3 += tl.sum(gy, 0)
        g2 = product(gy, w3, False, True, PRECISION) * slope(h2, RELU)
        gw2 += product(g2, h1, True, False, PRECISION)  # (out, in)
        gb2 += product(g2, ones, True, False, PRECISION)  # a sum, without leaving the tensor cores
        g1 = product(g2, w2, False, True, PRECISION) * slope(h1, RELU)
        gw1 += product(g1, x, True, False, PRECISION)

    write_first_linear(part, ACTOR_1, gw1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    write_linear(part, ACTOR_2, tl.trans(gw2), tl.max(gb2, 1), WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    write_linear(part, HEAD, gw3, gb3, WIDTH, OUT, PAD_WIDTH, PAD_OUT)
    if GAUSSIAN:
        o = tl.arange(0, PAD_OUT)
        tl.store(part + LOG_STD + o, g_log_std, mask=o < OUT)
    terms = part + SIZE  # in the order of layout.TERMS; the critic writes the value loss
    tl.store(terms, tl.sum(losses, 0) * share)
    tl.store(terms + 2, tl.sum(entropies, 0) * share)
    tl.store(terms + 3, tl.sum(divergences, 0) * share)
    tl.store(terms + 4, tl.sum(outside, 0) * share)


@triton.jit
def critic(
    obs, mean, variance, old_value, target, epsilon, vf_coef, flat, part, rows,
    SIZE: tl.constexpr, CRITIC_1: tl.constexpr, CRITIC_2: tl.constexpr, VALUE_HEAD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr,
    RELU: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr, CLIP_VALUE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the value loss with respect to the critic's parameters."""
    w1 = first_linear(flat, CRITIC_1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    w2, b2 = load_linear(flat, CRITIC_2, WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    w3, b3 = column(flat, VALUE_HEAD, WIDTH, PAD_WIDTH)
    gw1 = tl.zeros((PAD_WIDTH, PAD_IN), tl.float32)
    gw2, gb2 = tl.zeros((PAD_WIDTH, PAD_WIDTH), tl.float32), tl.zeros((PAD_WIDTH, 16), tl.float32)
    gw3, gb3 = tl.zeros((PAD_WIDTH,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    losses = tl.zeros((BLOCK,), tl.float32)
    r = tl.arange(0, BLOCK)
    ones = tl.full((BLOCK, 16), 1.0, tl.float32)
    share = 1.0 / rows
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        first = tile * BLOCK
        valid = r < rows - first
        x = load_observations(obs, mean, variance, first, rows, IN, PAD_IN, NORMALIZE, BLOCK)
        h1 = first_hidden(x, w1, RELU, PRECISION)
        h2 = hidden(h1, w2, b2, RELU, PRECISION)
        value = tl.sum(h2 * w3[None, :], 1) + b3
        gy, loss = value_head_gradient(
            value, old_value, target, epsilon, vf_coef, valid, first, rows, CLIP_VALUE, BLOCK
        )
        losses += tl.where(valid, loss, 0.0)
        gb3 += gy

        gw3 += tl.sum(h2 * gy[:, None], 0)
        g2 = gy[:, None] * w3[None, :] * slope(h2, RELU)
        gw2 += product(g2, h1, True, False, PRECISION)  # (out, in)
        gb2 += product(g2, ones, True, False, PRECISION)  # a sum, without leaving the tensor cores
        g1 = product(g2, w2, False, True, PRECISION) * slope(h1, RELU)
        gw1 += product(g1, x, True, False, PRECISION)

    write_first_linear(part, CRITIC_1, gw1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    write_linear(part, CRITIC_2, tl.trans(gw2), tl.max(gb2, 1), WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    h = tl.arange(0, PAD_WIDTH)
    tl.store(part + VALUE_HEAD + h, gw3, mask=h < WIDTH)
    tl.store(part + VALUE_HEAD + WIDTH, tl.sum(gb3, 0))
    tl.store(part + SIZE + 1, tl.sum(losses, 0) * (0.5 * share))
