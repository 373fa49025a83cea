"""The score of what was learned, at the end of a run: kept in its directory and told to its audience.

It comes after the last checkpoint, so that whatever happens to it costs nothing, and before anyone is told that the run has
ended, so that reports and trackers have it. It is no row of metrics.jsonl, which a run that goes on continues.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ..engine import State
from ..view import Audience
from .directory import RunDirectory
from .evaluate import Evaluation
from .reports import add_score
from .signals import Interrupts

Score = Callable[[], Evaluation]


def last_score(
    score: Score, state: State, audience: Audience, run: RunDirectory | None, interrupts: Interrupts
) -> Evaluation | None:
    """The score; None if a signal broke it off."""
    audience.tell("over", state)
    try:
        with interrupts.raised():
            found = score()
    except KeyboardInterrupt:
        return None
    if run is not None:
        keep(run.path, state.steps, found)
    audience.tell("scored", {"step": state.steps, "phase": state.phase, **found.metrics})
    return found


def keep(run_dir: Path, step: int, score: Evaluation) -> None:
    """In the run's directory, where its report finds it. A disk that does not take it stops nobody."""
    try:
        add_score(run_dir, step, score)
    except OSError as error:
        print(f"warning: the score is not in the report: {error}", file=sys.stderr)
