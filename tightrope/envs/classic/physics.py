"""Numerics shared by the environments with richer dynamics."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def runge_kutta(derivative: Callable[[Tensor], Tensor], state: Tensor, dt: float) -> Tensor:
    """One classical fourth-order step."""
    k1 = derivative(state)
    k2 = derivative(state + dt / 2 * k1)
    k3 = derivative(state + dt / 2 * k2)
    k4 = derivative(state + dt * k3)
    return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def wrap_angle(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def solve_symmetric3(
    m: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], r: tuple[Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """x of M x = r for symmetric 3 x 3 matrices given as (m00, m01, m02, m11, m12, m22), by cofactors."""
    m00, m01, m02, m11, m12, m22 = m
    c00, c01, c02 = m11 * m22 - m12 * m12, m02 * m12 - m01 * m22, m01 * m12 - m02 * m11
    c11, c12, c22 = m00 * m22 - m02 * m02, m01 * m02 - m00 * m12, m00 * m11 - m01 * m01
    determinant = m00 * c00 + m01 * c01 + m02 * c02
    r0, r1, r2 = r
    rows = (c00 * r0 + c01 * r1 + c02 * r2, c01 * r0 + c11 * r1 + c12 * r2, c02 * r0 + c12 * r1 + c22 * r2)
    return [row / determinant for row in rows]
