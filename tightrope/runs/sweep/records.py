"""What a storage says of a trial, checked before it is used: whoever may write to the storage may have written anything."""

from __future__ import annotations

import math
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from ...errors import UsageError
from .space import Space, kept_value

PLACE, BEAT, WORKER, OUTCOME, SCORES = "place", "beat", "worker", "outcome", "scores"  # attributes of trials
FIXED = "fixed_params"  # Optuna's own, of a trial that waits with given settings


def malformed(trial: FrozenTrial, space: Space | None, types: dict[str, Any]) -> str | None:
    """Why a trial cannot be one of this sweep, in words; None if it can. Without a space its settings are not looked at."""
    attributes = trial.user_attrs
    if type(place := attributes.get(PLACE, 0)) is not int or place < 0:
        return f"{PLACE} {place!r} is not a number of trials"
    if not isinstance(worker := attributes.get(WORKER, {}), dict):
        return f"{WORKER} {worker!r} is not a process"
    if not isinstance(outcome := attributes.get(OUTCOME, ""), str):
        return f"{OUTCOME} {outcome!r} is not text"
    scores = attributes.get(SCORES, [])
    if not isinstance(scores, list) or not all(map(is_number, scores)):
        return f"{SCORES} {scores!r} are not numbers"
    if not isinstance(fixed := trial.system_attrs.get(FIXED, {}), dict):
        return f"{FIXED} {fixed!r} are not settings"
    if trial.state == TrialState.COMPLETE and not is_number(trial.value):
        return f"score {trial.value!r} is not a number"
    return None if space is None else outside(trial, fixed, space, types)


def outside(trial: FrozenTrial, fixed: dict[str, Any], space: Space, types: dict[str, Any]) -> str | None:
    """Which of its settings is none that this sweep searches."""
    for name, value in [*trial.params.items(), *fixed.items()]:
        if name not in space:
            return f"{name} is not searched"
        try:
            kept_value(name, value, space[name], types[name])
        except UsageError as error:
            return str(error)
    missing = [name for name in space if name not in trial.params]
    return f"it has no {missing[0]}" if trial.state == TrialState.COMPLETE and missing else None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
