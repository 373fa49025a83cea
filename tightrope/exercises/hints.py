"""Words for a result that equals no known mistake: its shape, the order of its rows, and the inputs it was computed from."""

from __future__ import annotations

from torch import Tensor

from .comparing import entries_agree, index_of_difference


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
