"""Compare tensors, and say in words how they differ: where, in their shapes, in the order of their rows."""

from __future__ import annotations

import torch
from torch import Tensor


def agrees(a: Tensor, b: Tensor, tolerance: float = 2e-3) -> bool:
    """Whether two tensors agree, relative to the norm."""
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= tolerance * b.norm() + 1e-5)


def entries_agree(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of the same shape agree, entry by entry."""
    return torch.allclose(a.detach().double(), b.detach().double(), rtol=1e-4, atol=1e-5)


def index_of_difference(found: Tensor, expected: Tensor) -> tuple[int, ...]:
    """Where the first entry is that differs: one that is not finite, if there is one."""
    bad = (expected.isfinite() & ~found.isfinite()).nonzero()
    if not len(bad):
        bad = ((found.double() - expected.double()).abs() > 1e-5 + 1e-3 * expected.double().abs()).nonzero()
    return tuple(bad[0].tolist()) if len(bad) else ()


def first_difference(found: Tensor, expected: Tensor, not_finite: str = "something is divided by 0") -> str:
    """The first entry that differs, with both numbers; `not_finite` says why it may be nan or infinite."""
    if found.shape != expected.shape:
        return f"the shape is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    index = index_of_difference(found, expected)
    if not index:
        return "small differences everywhere"
    words = f"at {list(index)} it is {found[index]:.4g}, expected {expected[index] + 0.0:.4g}"  # + 0.0: not -0
    return words if found[index].isfinite() else f"{words}: {not_finite}"


def about_shape(found: Tensor, expected: Tensor, given: object) -> str:
    """What a wrong shape says about an equation whose first argument is `given`."""
    shapes = f"the shape is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if found.numel() == expected.numel() and found.dim() > expected.dim():
        return f"{shapes}: an axis too many, remove keepdim=True or the extra brackets"
    if found.numel() == 1:
        return f"{shapes}: one number for everything, is there a mean or sum too many?"
    if not expected.dim():
        return f"{shapes}: take the mean over the batch"
    if found.dim() == 2 and tuple(found.t().shape) == tuple(expected.shape):
        return f"{shapes}: time is the first axis, environments the second. It is transposed"
    if found.numel() == expected.numel():
        return f"{shapes}: an axis is missing, is keepdim=True left out?"
    if isinstance(given, Tensor) and given.dim() == 2:
        if found.shape == given.shape:
            over_time = "one number for each step: take the mean over the environments, axis 1"
            return (
                f"{shapes}: {over_time if expected.dim() == 2 else 'the sum over actions, the last axis, is missing'}"
            )
        if found.numel() == given.shape[1]:
            over_time = "the mean is over time: environments are axis 1, and there is one number for each step"
            return (
                f"{shapes}: {over_time if expected.dim() == 2 else 'it sums over the batch: actions are the last axis'}"
            )
    return shapes


def about_rows(found: Tensor, expected: Tensor) -> str | None:
    """What the rows of a result over time have in common with the right ones."""
    if expected.dim() != 2 or len(expected) < 2:
        return None
    if entries_agree(found.flip(0), expected):
        return "the rows are in reverse order: the first belongs to step 0"
    for row, words in (
        (-1, "last row is left at 0: begin the loop there"),
        (0, "first row is left at 0: end the loop there"),
    ):
        if not found[row].any() and expected[row].all():
            return f"the {words}"
    return None


def inputs_at(parameters: str, case: tuple[object, ...], found: Tensor, expected: Tensor) -> str:
    """The inputs that the first wrong number depends on, so that it can be computed by hand."""
    index = index_of_difference(found, expected) or (0,) * expected.dim()
    shown, place = [], ""
    for name, x in zip(parameters.split(", "), case, strict=True):
        if isinstance(x, Tensor) and expected.dim() and x.shape == expected.shape and x.dim() == 2:
            x, place = x[:, index[1]], f" of environment {index[1]}"  # a column, all its steps
        elif isinstance(x, Tensor) and expected.dim():
            x, place = x[index[0]], f" of row {index[0]}"
        shown.append(
            f"{name} {[tidy(v) for v in x.flatten().tolist()] if isinstance(x, Tensor) else x}".replace("'", "")
        )
    return f"Inputs{place}: {', '.join(shown)}"


def tidy(x: float) -> str:
    """A number as it is written by hand."""
    return str(x) if isinstance(x, bool) else f"{x:.4g}"
