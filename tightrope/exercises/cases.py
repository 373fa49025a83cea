"""The exercises that are one equation: cases to try it on, the right result, and what common mistakes give instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import definitions, mistakes, mistakes_over_time
from .mistakes import Wrong

Argument = Tensor | float | None
Case = tuple[Argument, ...]


NOTHING = "nothing"  # no parameter may get a gradient
DIVIDED = "something is divided by 0, or a logarithm is taken of 0 or less"


@dataclass(frozen=True)
class Exercise:
    """One equation. Where `cases` are named, the first that fails names what is wrong."""

    parameters: str
    right: Callable[..., Tensor]
    cases: Mapping[str, Case]
    wrong: Mapping[str, Wrong] = field(default_factory=dict)
    differentiable: str = ""  # the parameter that a gradient must reach, no other may have one; "": not looked at
    use: str = ""  # what to do with it once it is right
    not_finite: Mapping[str, str] = field(default_factory=dict)  # why a result is not finite, by case; else DIVIDED


def train_vpg(settings: str) -> str:
    """How to train with a right function, whose name replaces {}."""
    return f"Train with it: tr.VPG('CartPole-v1', {settings}={{}}).learn(400_000)"


def train_ppo(settings: str) -> str:
    return f"Train with it: tr.PPO('CartPole-v1', {settings}={{}}).learn(60_000)"


def tenths(seed: int, *shape: int) -> Tensor:
    """Numbers with one decimal: readable in a message, and none is 0."""
    drawn = torch.randint(1, 20, shape, generator=torch.Generator().manual_seed(seed)) / 10
    return drawn * (torch.randint(2, shape, generator=torch.Generator().manual_seed(seed + 99)) * 2 - 1)


def mask_at(steps: int, envs: int, *places: tuple[int, int]) -> Tensor:
    """A mask with True at these (step, environment)."""
    mask = torch.zeros(steps, envs, dtype=torch.bool)
    for place in places:
        mask[place] = True
    return mask


def returns_case(steps: int, envs: int, ends: Tensor, limits: Tensor) -> Case:
    return tenths(1, steps, envs), ends, ends | limits, tenths(2, steps, envs), 0.9


def gae_case(steps: int, envs: int, ends: Tensor, limits: Tensor) -> Case:
    value, done = tenths(2, steps, envs), ends | limits
    following = torch.where(done, tenths(4, steps, envs), torch.cat([value[1:], tenths(5, 1, envs)]))
    return tenths(1, steps, envs), value, following, ends, done, 0.9, 0.8


def in_time(make: Callable[[int, int, Tensor, Tensor], Case]) -> dict[str, Case]:
    """From one episode that goes on to several environments with every kind of end."""
    none = mask_at(4, 1)
    return {
        "one episode that goes on": make(4, 1, none, none),
        "one episode that terminates after the second of four steps": make(4, 1, mask_at(4, 1, (1, 0)), none),
        "one episode cut by a time limit after the second of four steps": make(4, 1, none, mask_at(4, 1, (1, 0))),
        "three environments with both kinds of end": make(
            6, 3, mask_at(6, 3, (2, 0), (5, 1), (0, 2)), mask_at(6, 3, (1, 1), (4, 0), (3, 2))
        ),
        "forty steps of two environments": make(40, 2, mask_at(40, 2, (17, 0)), mask_at(40, 2, (30, 1), (5, 0))),
    }


ALIVE = torch.tensor([[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
NEW, OLD = torch.tensor([-0.5, -1.0, -0.2, -2.0, -0.7, -1.5]), torch.tensor([-0.6, -0.4, -0.9, -1.5, -0.7, -2.6])
SIGNS = torch.tensor([1.0, 1.0, 1.0, -1.0, -2.0, -0.5])
LOGITS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [-5.0, 0.5, 4.0], [2.0, 0.0, -1.0]])
FAR_APART = torch.cat([torch.tensor([[0.0, 200.0, 0.0]]), LOGITS[1:]])

EQUATIONS = {
    "discounted_returns": Exercise(
        "reward, terminated, done, next_value, gamma", definitions.returns, in_time(returns_case),
        mistakes_over_time.RETURNS,
        use=train_vpg("discounted_returns"),
    ),
    "timestep_mean": Exercise(
        "x, alive", definitions.mean_of_the_living,
        {"all environments alive": (tenths(3, 4, 3), ~mask_at(4, 3)), "some environments ended": (tenths(3, 4, 3), ALIVE)},
        mistakes.BASELINES, use=train_vpg("timestep_mean"),
        not_finite={"some environments ended": "nobody is alive at the last step, and the result there is to be 0"},
    ),
    "importance_weights": Exercise(
        "log_prob, old_log_prob, clamp", definitions.quotient,
        {"clamp None": (NEW, OLD, None), "clamp 0.2": (NEW, OLD, 0.2)}, mistakes.WEIGHTS, NOTHING,
        use=train_vpg("rollout_uses=2, use_importance_weights=True, importance_weights"),
    ),
    "policy_gradient": Exercise(
        "log_prob, advantage, weight, mask", definitions.reinforce,
        {
            "weights of 1, all steps": (NEW, SIGNS, torch.ones(6), torch.ones(6, dtype=torch.bool)),
            "other weights, and padding": (NEW, SIGNS, (NEW - OLD).exp(), SIGNS > -1),
        },
        mistakes.GRADIENT, "log_prob", use=train_vpg("policy_gradient"),
    ),
    "gae": Exercise(
        "reward, value, next_value, terminated, done, gamma, gae_lambda", definitions.advantages, in_time(gae_case),
        mistakes_over_time.GAE, use=train_ppo("gae"),
    ),
    "clipped_surrogate": Exercise(
        "log_prob, old_log_prob, advantage, clip_coef", definitions.surrogate_by_cases,
        {
            "ratios inside the interval": (OLD + 0.05, OLD, SIGNS, 0.2),
            "ratios on both sides, advantages of both signs": (NEW, OLD, SIGNS, 0.2),
        },
        mistakes.SURROGATE, "log_prob", use=train_ppo("clipped_surrogate"),
    ),
    "value_loss": Exercise(
        "value, target", definitions.half_square, {"six values": (tenths(6, 6), tenths(7, 6))}, mistakes.VALUE, "value",
        use=train_ppo("value_loss"),
    ),
    "entropy": Exercise(
        "logits", definitions.entropy_of, {"four rows of three": (LOGITS,), "logits far apart": (FAR_APART,)},
        mistakes.ENTROPY, "logits", use="Nothing trains with it by itself: go on to entropy_bonus",
        not_finite={
            "four rows of three": "a logarithm is taken of a logit that is 0 or less: log_softmax gives log p",
            "logits far apart": "a probability underflows to 0, and its logarithm is -inf: use log_softmax",
        },
    ),
    "entropy_bonus": Exercise(
        "entropy", definitions.mean_of, {"six entropies": (tenths(8, 6).abs(),)}, mistakes.BONUS, "entropy",
        use="PPO uses it, on the second afternoon. " + train_ppo("entropy_bonus"),
    ),
}  # fmt: skip
