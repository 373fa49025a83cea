"""Kernels for the rollout: acting, and evaluating actions and observations."""

import triton
import triton.language as tl

from .blocks import (
    column,
    deviations,
    first_hidden,
    first_linear,
    gaussian_log_prob,
    hidden,
    load_linear,
    load_observations,
    log_deviations,
    log_softmax,
    one_hot_action,
    product,
)  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def act_kernel(
    obs, mean, variance, noise, flat, action, rows,
    ACTOR_1: tl.constexpr, ACTOR_2: tl.constexpr, HEAD: tl.constexpr, CRITIC_1: tl.constexpr, CRITIC_2: tl.constexpr,
    VALUE_HEAD: tl.constexpr, LOG_STD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_OUT: tl.constexpr,
    RELU: tl.constexpr, GAUSSIAN: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sample an action for each observation with the given noise, like `sample` in models/distributions.py."""
    w1 = first_linear(flat, ACTOR_1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    w2, b2 = load_linear(flat, ACTOR_2, WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    w3, b3 = load_linear(flat, HEAD, WIDTH, OUT, PAD_WIDTH, PAD_OUT)
    r, o = tl.arange(0, BLOCK), tl.arange(0, PAD_OUT)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        first = tile * BLOCK
        x = load_observations(obs, mean, variance, first, rows, IN, PAD_IN, NORMALIZE, BLOCK)
        features = hidden(first_hidden(x, w1, RELU, PRECISION), w2, b2, RELU, PRECISION)
        y = product(features, w3, False, False, PRECISION) + b3[None, :]
        valid = r < rows - first
        if GAUSSIAN:
            at = first.to(tl.int64) * OUT + r[:, None] * OUT + o[None, :]
            inside = valid[:, None] & (o[None, :] < OUT)
            std = tl.exp(log_deviations(flat, LOG_STD, OUT, PAD_OUT))
            tl.store(action + at, y + std[None, :] * tl.load(noise + at, mask=inside, other=0.0), mask=inside)
        else:
            _, probs = log_softmax(y, OUT, PAD_OUT)
            cumulative = tl.cumsum(probs, 1)
            total = tl.sum(tl.where(o[None, :] == OUT - 1, cumulative, 0.0), 1)
            threshold = tl.load(noise + first + r, mask=valid, other=0.0) * total
            passed = (cumulative <= threshold[:, None]) & (o[None, :] < OUT)
            tl.store(action + first + r, tl.sum(passed.to(tl.int64), 1), mask=valid)


@triton.jit(do_not_specialize=["rows"])
def evaluate_kernel(
    obs, mean, variance, action, flat, log_prob, value, rows,
    ACTOR_1: tl.constexpr, ACTOR_2: tl.constexpr, HEAD: tl.constexpr, CRITIC_1: tl.constexpr, CRITIC_2: tl.constexpr,
    VALUE_HEAD: tl.constexpr, LOG_STD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_OUT: tl.constexpr,
    RELU: tl.constexpr, GAUSSIAN: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs (i, 0) write the values of observations, programs (i, 1) the log-probabilities of actions."""
    if tl.program_id(1) == 0:
        values(
            obs, mean, variance, flat, value, rows, CRITIC_1, CRITIC_2, VALUE_HEAD, IN, WIDTH, PAD_IN, PAD_WIDTH,
            RELU, NORMALIZE, PRECISION, BLOCK,
        )  # fmt: skip
    else:
        likelihoods(
            obs, mean, variance, action, flat, log_prob, rows, ACTOR_1, ACTOR_2, HEAD, LOG_STD,
            IN, WIDTH, OUT, PAD_IN, PAD_WIDTH, PAD_OUT, RELU, GAUSSIAN, NORMALIZE, PRECISION, BLOCK,
        )  # fmt: skip


@triton.jit
def values(
    obs, mean, variance, flat, value, rows,
    CRITIC_1: tl.constexpr, CRITIC_2: tl.constexpr, VALUE_HEAD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr,
    RELU: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    w1 = first_linear(flat, CRITIC_1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    w2, b2 = load_linear(flat, CRITIC_2, WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    w3, b3 = column(flat, VALUE_HEAD, WIDTH, PAD_WIDTH)
    r = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        first = tile * BLOCK
        x = load_observations(obs, mean, variance, first, rows, IN, PAD_IN, NORMALIZE, BLOCK)
        features = hidden(first_hidden(x, w1, RELU, PRECISION), w2, b2, RELU, PRECISION)
        tl.store(value + first + r, tl.sum(features * w3[None, :], 1) + b3, mask=r < rows - first)


@triton.jit
def likelihoods(
    obs, mean, variance, action, flat, log_prob, rows,
    ACTOR_1: tl.constexpr, ACTOR_2: tl.constexpr, HEAD: tl.constexpr, LOG_STD: tl.constexpr,
    IN: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    PAD_IN: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_OUT: tl.constexpr,
    RELU: tl.constexpr, GAUSSIAN: tl.constexpr, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    w1 = first_linear(flat, ACTOR_1, IN, WIDTH, PAD_IN, PAD_WIDTH)
    w2, b2 = load_linear(flat, ACTOR_2, WIDTH, WIDTH, PAD_WIDTH, PAD_WIDTH)
    w3, b3 = load_linear(flat, HEAD, WIDTH, OUT, PAD_WIDTH, PAD_OUT)
    r = tl.arange(0, BLOCK)
    for tile in range(tl.program_id(0), tl.cdiv(rows, BLOCK), tl.num_programs(0)):
        first = tile * BLOCK
        x = load_observations(obs, mean, variance, first, rows, IN, PAD_IN, NORMALIZE, BLOCK)
        features = hidden(first_hidden(x, w1, RELU, PRECISION), w2, b2, RELU, PRECISION)
        y = product(features, w3, False, False, PRECISION) + b3[None, :]
        if GAUSSIAN:
            log_std = log_deviations(flat, LOG_STD, OUT, PAD_OUT)
            z = deviations(y, action, log_std, first, rows, BLOCK, OUT, PAD_OUT)
            likely = gaussian_log_prob(z, log_std, OUT, PAD_OUT)
        else:
            log_probs, _ = log_softmax(y, OUT, PAD_OUT)
            taken = one_hot_action(action, first, rows, BLOCK, PAD_OUT)
            likely = tl.sum(tl.where(taken, log_probs, 0.0), 1)
        tl.store(log_prob + first + r, likely, mask=r < rows - first)
