"""Schedules: values that depend on how much of a run is done. A run of any length ends exactly at the end value."""

import math
from collections.abc import Callable
from dataclasses import dataclass

FUNCTION = "function "  # begins the text of a schedule that is a function of the user's


def linear(start: float, end: float, done: int | float, total: int | float) -> float:
    """Return start + (done / total) (end - start), exact at both ends, and `end` afterwards."""
    return end if done >= total else start + (done / total) * (end - start)


def cosine(start: float, end: float, done: int | float, total: int | float) -> float:
    """Return start + (end - start) (1 - cos(pi done / total)) / 2, exact at both ends, and `end` afterwards."""
    return end if done >= total else start + (end - start) * (1 - math.cos(math.pi * done / total)) / 2


def piecewise(points: tuple[tuple[float, float], ...], progress: float) -> float:
    """Interpolate linearly between points (progress, value). Before the first point and after the last it is constant."""
    x, value = points[0]
    for next_x, next_value in points[1:]:
        if progress <= x:
            break
        if progress < next_x:
            return linear(value, next_value, progress - x, next_x - x)
        x, value = next_x, next_value
    return value


@dataclass(frozen=True)
class Schedule:
    """A function of progress, which is 0 at the start of a run and 1 at its end.

    The kinds constant, linear, cosine and piecewise have points (progress, value). Otherwise it is a function of the user's,
    which is None after a run is loaded.
    """

    kind: str
    points: tuple[tuple[float, float], ...] = ()
    function: Callable[[float], float] | None = None

    def __call__(self, progress: float) -> float:
        """Return the value at this progress."""
        if self.function is not None:
            return float(self.function(progress))
        if self.kind == "cosine":
            return cosine(self.points[0][1], self.points[-1][1], progress, 1.0)
        return piecewise(self.points, progress)

    def __str__(self) -> str:
        """The text that the settings have for it."""
        if not self.points:
            return self.kind
        if self.kind == "piecewise":
            return f"piecewise({', '.join(f'{short(x)}: {short(value)}' for x, value in self.points)})"
        return f"{self.kind}({', '.join(short(value) for _, value in self.points)})"


def short(number: float) -> str:
    """The shortest text of a number that is read back exactly."""
    return text if float(text := f"{number:g}") == number else repr(number)
