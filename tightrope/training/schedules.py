"""Read schedules: settings that follow a function of progress, given as text or as a function."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping

from ..algorithms.common import ANNEALED
from ..envs.registry import id_or_path
from ..errors import UsageError
from ..functional import Schedule
from ..functional.schedules import FUNCTION
from ..types import Settings
from .own_code import check_given

COUNTS = {"constant": 1, "linear": 2, "cosine": 2}  # numbers in the brackets
FORMS = "constant(1e-4), linear(3e-4, 0), cosine(3e-4, 1e-5) or piecewise(0: 3e-4, 0.5: 1e-4, 1: 1e-5)"


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
    check_given(settings["functions"])
    for name, schedule in functions_in(settings).items():
        if schedule.function is None:
            lost = f"{name} of this run is your {schedule}, which is not saved"
            raise UsageError(f"{lost}: pass it again, tr.load(path, {name}=...), or give a number or a schedule")
