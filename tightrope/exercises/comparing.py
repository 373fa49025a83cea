"""Compare tensors, and say where they differ."""

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
