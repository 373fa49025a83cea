"""Schedules of the learning rate and other settings."""

from jaxtyping import Float
from torch import Tensor


def linear(start: float, end: float, done: int, total: int) -> float:
    """Return start + (done / total) (end - start), exact at both ends, and `end` afterwards: a run of any length ends there."""
    return end if done >= total else start + (done / total) * (end - start)


def share_of_floor(scale: Float[Tensor, ""], largest: Float[Tensor, ""], floor: float) -> Float[Tensor, ""]:
    """Return min(1, scale / (floor largest)): 1 down to the floor, then in proportion to the scale. 1 if both are 0."""
    return (scale / (floor * largest)).nan_to_num(nan=1.0).clamp(max=1.0)
