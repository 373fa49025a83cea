"""Schedules are functions of (phase k, phases P), so that a run of any length ends exactly at its end value."""


def linear(start: float, end: float, phase: int, phases: int) -> float:
    """start + (k / P) (end - start) for k = 0 .. P; exact at both ends, constant afterwards.

    Phase k = P - 1 is the last one trained, so no phase trains at `end` and everything after training reads it.
    """
    return end if phase >= phases else start + (phase / phases) * (end - start)
