"""Schedules are functions of (done, total), so that a run of any length ends exactly at its end value."""


def linear(start: float, end: float, done: int, total: int) -> float:
    """start + (done / total) (end - start), exact at both ends and constant afterwards."""
    return end if done >= total else start + (done / total) * (end - start)
