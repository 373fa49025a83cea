"""Try a function that stands for one equation on the cases of its exercise, and say what is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import raised
from .cases import DIVIDED, NOTHING, Argument, Case, Exercise
from .cases import EQUATIONS as EQUATIONS  # re-exported
from .comparing import entries_agree, first_difference
from .hints import about_rows, about_shape, inputs_at
from .mistakes import Wrong

Own = Callable[..., object]


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
