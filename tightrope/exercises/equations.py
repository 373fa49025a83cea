"""The exercises that are one equation. Each has cases to try a function on, the right result, and what common mistakes give
instead; `check_equation` says what is wrong with a function that stands for one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import raised
from . import definitions, mistakes
from .comparing import about_rows, about_shape, entries_agree, first_difference, inputs_at
from .mistakes import Wrong

Own = Callable[..., object]
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
        mistakes.RETURNS,
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
        mistakes.GAE, use=train_ppo("gae"),
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

# checking ---------------------------------------------------------------------------------------------------------------


def check_equation(name: str, function: Own, show_inputs: bool = False) -> str | None:
    """What is wrong with a function that stands for this equation; None if nothing is. With `show_inputs`, numbers that no
    known mistake explains are followed by the inputs that give them."""
    exercise = EQUATIONS[name]
    try:
        inspect.signature(function).bind(*range(len(exercise.parameters.split(", "))))
    except (TypeError, ValueError):
        return f"it does not take ({exercise.parameters}): define it with these parameters, in this order"
    tried = []
    for words, case in exercise.cases.items():
        tried.append(case)
        given = copies_of(case)
        try:
            found = function(*given)
        except NotImplementedError:
            raise
        except Exception as error:
            return f"with {words}, it raises {raised(error)}{about_error(error)}"
        wrong = misused(exercise, found, case, given)
        if wrong is not None:
            return wrong
        assert isinstance(found, Tensor)
        expected = exercise.right(*copies_of(case))
        if found.shape != expected.shape:
            return f"with {words}, {about_shape(found, expected, case[0])}"
        if entries_agree(found, expected):
            continue
        numbers = about_numbers(exercise, words, found.detach(), expected)
        known = matching_mistake(exercise, function, [*exercise.cases.values()])
        known = known or matching_mistake(exercise, function, tried) or about_all_rows(exercise, function)
        if known is None and show_inputs and (found.isfinite().all() or words not in exercise.not_finite):
            numbers += f". {inputs_at(exercise.parameters, case, found.detach(), expected)}"
        return f"{known}. With {words}, {numbers}" if known else f"with {words}, {numbers}"
    return check_gradients(exercise, function) if exercise.differentiable else None


def copies_of(case: Case) -> list[Argument]:
    return [x.clone() if isinstance(x, Tensor) else x for x in case]


def about_error(error: Exception) -> str:
    """A hint for an exception of torch that a beginner meets often."""
    hint = ". There is one entry for each environment: use torch.where, or multiply by ~mask, in place of if"
    return hint if "Boolean value of Tensor" in str(error) else ""


def misused(exercise: Exercise, found: object, case: Case, given: list[Argument]) -> str | None:
    """What is wrong apart from numbers: an argument that was changed, or a result that is no tensor."""
    for name, before, after in zip(exercise.parameters.split(", "), case, given, strict=True):
        if isinstance(before, Tensor) and isinstance(after, Tensor) and not torch.equal(before, after):
            return f"it changes its argument {name}: work on a copy, {name}.clone()"
    if found is None:
        return "it returns nothing: end with return"
    if not isinstance(found, Tensor):
        expected = exercise.right(*copies_of(case))
        return f"it returns a {type(found).__name__}: return a tensor of shape {tuple(expected.shape)}"
    return None


def about_numbers(exercise: Exercise, words: str, found: Tensor, expected: Tensor) -> str:
    """The first number that is wrong, and why it is not finite if it is not."""
    hint = exercise.not_finite.get(words, DIVIDED)
    if expected.dim():
        return f"the result is wrong: {first_difference(found, expected, hint)}"
    wrong = f"the result is {float(found):.4g}, expected {float(expected):.4g}"
    return wrong if found.isfinite() else f"{wrong}: {hint}"


def matching_mistake(exercise: Exercise, function: Own, cases: list[Case]) -> str | None:
    """The words of the common mistake that gives the same results in these cases; None if there is none."""
    for words, wrong in exercise.wrong.items():
        if all(same_result(function, wrong, case) for case in cases):
            return words
    return None


def about_all_rows(exercise: Exercise, function: Own) -> str | None:
    """What `about_rows` says of every case; None if it does not say the same of all."""
    said = set()
    for case in exercise.cases.values():
        try:
            found = function(*copies_of(case))
        except Exception:
            return None
        expected = exercise.right(*copies_of(case))
        if not isinstance(found, Tensor) or found.shape != expected.shape:
            return None
        said.add(about_rows(found.detach(), expected))
    return said.pop() if len(said) == 1 else None


def same_result(function: Own, wrong: Wrong, case: Case) -> bool:
    try:
        found, expected = function(*copies_of(case)), wrong(*copies_of(case))
    except Exception:
        return False
    return isinstance(found, Tensor) and found.shape == expected.shape and entries_agree(found, expected)


def check_gradients(exercise: Exercise, function: Own) -> str | None:
    """Whether a gradient reaches what is learned, and nothing else."""
    names = exercise.parameters.split(", ")
    words, case = [*exercise.cases.items()][-1]

    def gradients(of: Own) -> dict[str, Tensor | None]:
        given = [x.clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in case]
        result = of(*given)
        assert isinstance(result, Tensor)
        leaves = {n: x for n, x in zip(names, given, strict=True) if isinstance(x, Tensor) and x.requires_grad}
        if not result.requires_grad:
            return dict.fromkeys(leaves)
        found = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
        return dict(zip(leaves, found, strict=True))

    try:
        found = gradients(function)
    except Exception as error:
        return f"the values are right, but with a gradient it raises {raised(error)}"
    expected, learned = gradients(exercise.right), exercise.differentiable
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
        hint = exercise.not_finite.get(words, DIVIDED)
        wrong = first_difference(mine, right, hint)
        return f"the value is right, but its gradient with respect to {learned} is wrong: {wrong}"
    return None
