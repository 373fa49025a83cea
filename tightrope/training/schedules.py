"""Settings that change during a run: by a schedule, or because the user changed them, which the history of the run records."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..algorithms.common import ANNEALED
from ..envs.registry import id_or_path
from ..errors import UsageError, printable
from ..functional import Schedule
from ..functional.schedules import FUNCTION
from ..types import Settings

COUNTS = {"constant": 1, "linear": 2, "cosine": 2}  # numbers in the brackets
FORMS = "constant(1e-4), linear(3e-4, 0), cosine(3e-4, 1e-5) or piecewise(0: 3e-4, 0.5: 1e-4, 1: 1e-5)"

HISTORY = "changes"  # the key in config.yaml and in manifests
MAX_CHANGES = 10_000
OF_THE_MACHINE = ("device", "accelerate", "threads", "backend")  # chosen anew on each machine
CHANGEABLE = (  # settings of a run that may be changed while it trains
    "eval_every", "eval_episodes", "eval_envs", "eval_seconds", "stop_at_return", "save_seconds", "save_every",
    "keep_checkpoints",
)  # fmt: skip
OBSERVING = (  # settings that change no number of training
    *CHANGEABLE, "rank_timeout", "video_every", "log", "project", "entity", "run_name", "watch", "tags", "defaults",
)  # fmt: skip

# schedules --------------------------------------------------------------------------------------------------------------


def read_schedule(name: str, value: object) -> Schedule | None:
    """The schedule that a value or a text stands for; None for a number. UsageError if it is neither."""
    if isinstance(value, Schedule):
        return value
    if callable(value):
        return Schedule(FUNCTION + id_or_path(value), function=value)
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith(FUNCTION):  # of a saved run, without the function itself
        return Schedule(text)
    if text.startswith("lin_") and is_number(text[4:]):  # of rl-zoo3
        raise UsageError(f"{name} {value!r} is a schedule of rl-zoo3: give linear({text[4:]}, 0)")
    if "(" not in text:
        return None
    match = re.fullmatch(r"(\w+)\s*\((.*)\)", text, re.DOTALL)
    points = read_points(name, text, match[1], match[2].split(",")) if match else None
    if match is None or points is None:
        raise UsageError(f"{name} {value!r} is neither a number nor a schedule: give a number, {FORMS}")
    return Schedule(match[1], points)


def read_points(name: str, text: str, kind: str, parts: list[str]) -> tuple[tuple[float, float], ...] | None:
    """The points (progress, value) of a schedule in text; None if it has another form."""
    pairs = [re.split("[:=]", part) for part in parts]
    if kind == "piecewise" and all(len(pair) == 2 for pair in pairs):
        points = [(read_number(name, text, x), read_number(name, text, value)) for x, value in pairs]
        progress = [x for x, _ in points]
        if progress != sorted({*progress}) or not 0 <= progress[0] <= progress[-1] <= 1:
            raise UsageError(
                f"{name} {text} is not in order: give progress that grows, from 0 at the start to 1 at the end"
            )
        return tuple(points)
    if len(parts) != COUNTS.get(kind):
        return None
    values = [read_number(name, text, part) for part in parts]
    return tuple(zip((0.0, 1.0), values, strict=False))


def read_number(name: str, text: str, word: str) -> float:
    if not is_number(word):
        raise UsageError(f"{name} {text}: {word.strip()!r} is not a finite number. Give {FORMS}")
    return float(word)


def is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return math.isfinite(float(text))
    return False


def replace_annealing(layer: Settings, known: Mapping[str, object]) -> Settings:
    """A layer of settings in which a schedule also switches off the linear decay that a lower layer may have switched on.
    UsageError if the layer itself gives both."""
    added: Settings = {}
    for name, switch in ANNEALED.items():
        value = layer.get(name)
        if not isinstance(value, Schedule) or switch not in known:
            continue
        for other in (switch, "learning_rate_end") if name == "learning_rate" else (switch,):
            if layer.get(other):
                raise UsageError(f"{name} {value} is a schedule, and {other} is for a number: drop {other}")
            added[other] = False if other == switch else 0.0
    return layer | added


def functions_in(settings: Mapping[str, object]) -> dict[str, Schedule]:
    """The settings that are functions of the user's, which no file can hold."""
    return {k: v for k, v in settings.items() if isinstance(v, Schedule) and not v.points}


def check_functions(settings: Settings) -> None:
    """Raise UsageError if a function of a saved run was not given again."""
    for own in settings["functions"]:
        if own.function is None:
            lost = f"{own.name} of this run is your function {own.path}, which is not saved"
            again = f"pass it again, tr.load(path, {own.name}=...) or --functions {own}"
            raise UsageError(f"{lost}: {again}, or give functions=[] for ours")
    for name, schedule in functions_in(settings).items():
        if schedule.function is None:
            lost = f"{name} of this run is your {schedule}, which is not saved"
            raise UsageError(f"{lost}: pass it again, tr.load(path, {name}=...), or give a number or a schedule")


# changes by the user ----------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A setting that was changed after some steps. The values are plain data."""

    step: int
    setting: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.setting} {self.before} -> {self.after}"

    def saved(self) -> Settings:
        return {"step": self.step, "setting": self.setting, "from": self.before, "to": self.after}


def changes_between(before: Settings, after: Settings, step: int) -> tuple[Change, ...]:
    """The settings that differ, except those of the machine."""
    names = [name for name in after if name not in OF_THE_MACHINE and before.get(name) != after[name]]
    return tuple(Change(step, name, before.get(name), after[name]) for name in names)


def read_changes(saved: object) -> tuple[Change, ...]:
    """The history in a file, whose content is not trusted: entries of another form are ignored."""
    entries = saved[:MAX_CHANGES] if isinstance(saved, list) else []
    found = [(entry.get("step"), entry.get("setting"), entry) for entry in entries if isinstance(entry, dict)]
    return tuple(
        Change(step, setting, entry.get("from"), entry.get("to"))
        for step, setting, entry in found
        if type(step) is int and isinstance(setting, str)
    )


def change_lines(changes: Sequence[Change]) -> list[str]:
    """One line for each step at which settings were changed."""
    steps = dict.fromkeys(change.step for change in changes)
    return [changed_at(step, [change for change in changes if change.step == step]) for step in steps]


def changed_at(step: int, changes: Sequence[Change]) -> str:
    return printable(f"changed at {step:,} steps: {', '.join(map(str, changes))}")


def resumed_with(changes: Sequence[Change], varies: bool) -> list[str]:
    """The line for a run that resumes with other settings. `varies`: a schedule depends on total_timesteps."""
    if not changes:
        return []
    harmless = (*OBSERVING, *(() if varies else ("total_timesteps",)))
    differs = any(change.setting not in harmless for change in changes)
    note = "; from here on the run differs from one that was not changed" if differs else ""
    return [changed_at(changes[0].step, changes) + note]
