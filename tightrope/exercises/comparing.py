"""Compare tensors, and say where they differ."""

from __future__ import annotations

from torch import Tensor


def agrees(a: Tensor, b: Tensor, tolerance: float = 2e-3) -> bool:
    """Whether two tensors agree, relative to the norm."""
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= tolerance * b.norm() + 1e-5)


def first_difference(found: Tensor, expected: Tensor) -> str:
    """The first entry that differs, with both numbers."""
    if found.shape != expected.shape:
        return f"the shape is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    if len(bad := (expected.isfinite() & ~found.isfinite()).nonzero()):
        hint = ": is something divided by 0?" if found.isnan().any() else ""
        return f"at {bad[0].tolist()} it is {found[tuple(bad[0].tolist())]:.4g}{hint}"
    wrong = ((found.double() - expected.double()).abs() > 1e-5 + 1e-3 * expected.double().abs()).nonzero()
    if not len(wrong):
        return "small differences everywhere"
    index = tuple(wrong[0].tolist())
    return f"at {list(index)} it is {found[index]:.4g}, expected {expected[index]:.4g}"
