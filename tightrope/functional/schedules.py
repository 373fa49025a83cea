"""Schedules, as functions of (done, total): a run of any length ends exactly at the end value."""


def linear(start: float, end: float, done: int, total: int) -> float:
    """Return start + (done / total) (end - start), exact at both ends, and `end` afterwards."""
    return end if done >= total else start + (done / total) * (end - start)
