"""The exercises that are one equation: cases to try it on, the right result, and what common mistakes give instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import one_line
from . import definitions, mistakes
from .comparing import first_difference
from .mistakes import Wrong

Argument = Tensor | float | None
Case = tuple[Argument, ...]


NOTHING = "nothing"  # no parameter may get a gradient


@dataclass(frozen=True)
class Exercise:
    """One equation. Where `cases` are named, the first that fails names what is wrong."""

    parameters: str
    right: Callable[..., Tensor]
    cases: Mapping[str, Case]
    wrong: Mapping[str, Wrong] = field(default_factory=dict)
    differentiable: str = ""  # the parameter that a gradient must reach, no other may have one; "": not looked at
    use: str = ""  # how to train with it


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
LOGITS = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [-5.0, 0.5, 4.0]])
PROGRESS = (0.0, 0.25, 0.5, 1.0)

EQUATIONS = {
    "discounted_returns": Exercise(
        "reward, terminated, done, next_value, gamma", definitions.returns, in_time(returns_case), mistakes.RETURNS,
        use="tr.VPG('CartPole-v1', discounted_returns={})",
    ),
    "timestep_mean": Exercise(
        "x, alive", definitions.mean_of_the_living,
        {"all environments alive": (tenths(3, 4, 3), ~mask_at(4, 3)), "some environments ended": (tenths(3, 4, 3), ALIVE)},
        mistakes.BASELINES, use="tr.VPG('CartPole-v1', timestep_mean={})",
    ),
    "importance_weights": Exercise(
        "log_prob, old_log_prob, clamp", definitions.quotient,
        {"clamp None": (NEW, OLD, None), "clamp 0.2": (NEW, OLD, 0.2)}, mistakes.WEIGHTS, NOTHING,
        use="tr.VPG('CartPole-v1', rollout_uses=2, use_importance_weights=True, importance_weights={})",
    ),
    "policy_gradient": Exercise(
        "log_prob, advantage, weight, mask", definitions.reinforce,
        {
            "weights of 1, all steps": (NEW, SIGNS, torch.ones(6), torch.ones(6, dtype=torch.bool)),
            "other weights, and padding": (NEW, SIGNS, (NEW - OLD).exp(), SIGNS > -1),
        },
        mistakes.GRADIENT, "log_prob", use="tr.VPG('CartPole-v1', policy_gradient={})",
    ),
    "gae": Exercise(
        "reward, value, next_value, terminated, done, gamma, gae_lambda", definitions.advantages, in_time(gae_case),
        mistakes.GAE,
        use="tr.PPO('CartPole-v1', gae={})",
    ),
    "clipped_surrogate": Exercise(
        "log_prob, old_log_prob, advantage, clip_coef", definitions.surrogate_by_cases,
        {
            "ratios inside the interval": (OLD + 0.05, OLD, SIGNS, 0.2),
            "ratios on both sides, advantages of both signs": (NEW, OLD, SIGNS, 0.2),
        },
        mistakes.SURROGATE, "log_prob", use="tr.PPO('CartPole-v1', clipped_surrogate={})",
    ),
    "value_loss": Exercise(
        "value, target", definitions.half_square, {"six values": (tenths(6, 6), tenths(7, 6))}, mistakes.VALUE, "value",
        use="tr.PPO('CartPole-v1', value_loss={})",
    ),
    "entropy": Exercise(
        "logits", definitions.entropy_of, {"three rows of three": (LOGITS,)},
        mistakes.ENTROPY, "logits",
    ),
    "entropy_bonus": Exercise(
        "entropy", definitions.mean_of, {"six entropies": (tenths(8, 6).abs(),)}, mistakes.BONUS, "entropy",
        use="tr.PPO('CartPole-v1', entropy_bonus={})",
    ),
}  # fmt: skip


def check_equation(name: str, function: Callable[..., object]) -> str | None:
    """What is wrong with a function that stands for this equation; None if nothing is."""
    exercise = EQUATIONS[name]
    try:
        inspect.signature(function).bind(*range(len(exercise.parameters.split(", "))))
    except (TypeError, ValueError):
        return f"it does not take ({exercise.parameters}): define it with these parameters, in this order"
    tried = []
    for words, case in exercise.cases.items():
        tried.append(case)
        wrong = check_case(exercise, function, case)
        if wrong is not None:
            known = matching_mistake(exercise, function, [*exercise.cases.values()]) or matching_mistake(
                exercise, function, tried
            )
            return f"{known}. With {words}, {wrong}" if known else f"with {words}, {wrong}"
    return check_gradients(exercise, function) if exercise.differentiable else None


def copies_of(case: Case) -> list[Argument]:
    return [x.clone() if isinstance(x, Tensor) else x for x in case]


def check_case(exercise: Exercise, function: Callable[..., object], case: Case) -> str | None:
    """What is wrong with the result for one case."""
    given = copies_of(case)
    expected = exercise.right(*copies_of(case))
    try:
        found = function(*given)
    except NotImplementedError:
        raise
    except Exception as error:
        hint = ". There is one entry for each environment: use torch.where, or multiply by ~mask, in place of if"
        per_env = hint if "Boolean value of Tensor" in str(error) else ""
        return f"it raises {type(error).__name__}: {one_line(error)}{per_env}"
    if found is None:
        return "it returns nothing: end with return"
    for name, before, after in zip(exercise.parameters.split(", "), case, given, strict=True):
        if isinstance(before, Tensor) and isinstance(after, Tensor) and not torch.equal(before, after):
            return f"it changes its argument {name}: work on a copy, {name}.clone()"
    if not isinstance(found, Tensor):
        return f"it returns a {type(found).__name__}: return a tensor of shape {tuple(expected.shape)}"
    if found.shape != expected.shape:
        return f"{about_shape(found, expected)}"
    if torch.allclose(found.detach().double(), expected.double(), rtol=1e-4, atol=1e-5):
        return None
    return (
        f"the result is wrong: {first_difference(found.detach(), expected)}"
        if expected.dim()
        else (f"the result is {float(found):.4g}, expected {float(expected):.4g}")
    )


def about_shape(found: Tensor, expected: Tensor) -> str:
    shapes = f"the shape is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if found.numel() == 1 and expected.numel() > 1:
        return f"{shapes}: one number for everything, is there a mean or sum too many?"
    if not expected.dim():
        return f"{shapes}: take the mean over the batch"
    if found.dim() == 2 and tuple(found.t().shape) == tuple(expected.shape):
        return f"{shapes}: time is the first axis, environments the second. It is transposed"
    if found.numel() == expected.numel():
        return f"{shapes}: the same numbers in another form, is there a flatten, or is keepdim=True missing?"
    return shapes


def matching_mistake(exercise: Exercise, function: Callable[..., object], cases: list[Case]) -> str | None:
    """The words of the common mistake that gives the same results in these cases; None if there is none."""
    for words, wrong in exercise.wrong.items():
        if all(same_result(function, wrong, case) for case in cases):
            return words
    return None


def same_result(function: Callable[..., object], wrong: Wrong, case: Case) -> bool:
    try:
        found, expected = function(*copies_of(case)), wrong(*copies_of(case))
    except Exception:
        return False
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    return torch.allclose(found.detach().double(), expected.detach().double(), rtol=1e-4, atol=1e-5)


def check_gradients(exercise: Exercise, function: Callable[..., object]) -> str | None:
    """Whether a gradient reaches what is learned, and nothing else."""
    names, case = exercise.parameters.split(", "), [*exercise.cases.values()][-1]

    def gradients(of: Callable[..., object]) -> dict[str, Tensor | None]:
        given = [x.clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in case]
        result = of(*given)
        assert isinstance(result, Tensor)
        leaves = {n: x for n, x in zip(names, given, strict=True) if isinstance(x, Tensor) and x.requires_grad}
        if not result.requires_grad:
            return dict.fromkeys(leaves)
        found = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
        return dict(zip(leaves, found, strict=True))

    found, expected = gradients(function), gradients(exercise.right)
    learned = exercise.differentiable
    if learned == NOTHING:
        leak = next((name for name, grad in found.items() if grad is not None and grad.any()), None)
        return f"a detach is missing: weights are numbers, and a gradient flows into {leak}" if leak else None
    mine, right = found[learned], expected[learned]
    if mine is None:
        return f"no gradient reaches {learned}: it is detached, or the result is made of plain numbers"
    for name, grad in found.items():
        if name != learned and grad is not None and grad.any():
            return f"a detach is missing: a gradient flows into {name}, which is data. Use {name}.detach()"
    if right is not None and not torch.allclose(mine, right, rtol=1e-3, atol=1e-5):
        return (
            f"the value is right, but its gradient with respect to {learned} is wrong: {first_difference(mine, right)}"
        )
    return None
