"""Schedules are functions of (k done, P in all), so that a run of any length ends exactly at its end value."""


def linear(start: float, end: float, done: int, total: int) -> float:
    """start + (k / P) (end - start) for k = 0 .. P; exact at both ends, constant afterwards.

    Phase k = P - 1 is the last one trained, so no phase trains at `end` and everything after training reads it.
    """
    return end if done >= total else start + (done / total) * (end - start)
